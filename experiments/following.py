"""The run directory of a run that several processes make: the first one writes."""

from typing import Any

from experiments import distributed
from experiments.config import Config
from experiments.errors import UserError
from experiments.run import BusyError, RunDirectory

FINISHED, OPENED, REFUSED = 0, 1, 2


def directory_of(
    config: Config, data_fingerprint: str, shared: frozenset[str] = frozenset()
) -> RunDirectory:
    """The run's directory, for this process."""
    kinds = (RunDirectory, First, Follower)
    kind = kinds[distributed.is_shared() + (not distributed.is_first())]
    return kind(config, data_fingerprint, shared)


class First(RunDirectory):
    """The one that writes; tells the others whether there is something to do."""

    def open(self, env: dict[str, Any]) -> bool:
        said = REFUSED
        try:
            said = OPENED if super().open(env) else FINISHED
        except BusyError as error:  # to wait for it, each would have to see it end
            raise UserError(str(error)) from None
        finally:
            distributed.everyones(said)
        return said == OPENED


class Follower(RunDirectory):
    """Reads what the first process writes, and writes nothing."""

    def open(self, env: dict[str, Any]) -> bool:
        del env
        said = distributed.everyones(FINISHED)[0]
        if said == REFUSED:
            raise UserError(f"{self.path}: the first process could not open it")
        self.look_again()
        return said == OPENED

    def update(self, **changes) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        pass

    def append(self, file: str, rows: list[dict[str, Any]]) -> None:
        pass

    def rewind(self, file: str, step: int | None) -> list[dict[str, Any]]:
        """The rows that the first process keeps."""
        return [r for r in self.rows(file) if step is not None and r["step"] <= step]
