"""The loggers of a run, none of which can stop it: the files are the truth."""

import contextlib
import importlib.util
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from experiments.config import Config
from experiments.errors import ConfigError


class Loggers:
    """Hands everything to each logger; one that raises is said once and left out.

    A logger has `open`, `rows` and `close` as here, and `package`, what it needs to have
    installed.

    loggers: name -> logger, the names those of `runtime.loggers`.
    say: is told in a line what was left out, and why.
    """

    def __init__(
        self,
        loggers: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ):
        self._loggers = dict(loggers or {})
        self._say = say
        self._open: dict[str, Any] = {}
        self._run = ""

    @classmethod
    def of(cls, config: Config, say: Callable[[str], None]) -> "Loggers":
        """Those a config asks for."""
        parts = config.runtime.logger_parts()
        return cls({name: part.build({}, name) for name, part in parts.items()}, say)

    def __bool__(self) -> bool:
        return bool(self._loggers)

    def open(
        self,
        run_path: pathlib.Path,
        run_id: str,
        config: dict[str, Any],
        attempt: int,
        resume_step: int,
    ) -> None:
        """Begins, or goes on, with what belongs to this run.

        run_id: tells the run from all others, the same at every attempt.
        config: the resolved config as plain data.
        attempt: counts from 1.
        resume_step: of the checkpoint it goes on from; 0: from the start.
        """
        self._run = run_path.name
        self._open = dict(self._loggers)
        self._each("open", run_path, run_id, config, attempt, resume_step)

    def rows(self, rows: list[dict[str, Any]]) -> None:
        """Rows as they go to metrics.jsonl."""
        if rows:
            self._each("rows", rows)

    def close(self, state: str) -> None:
        """The end of this attempt, whatever it was; `state` as in status.json.

        Nothing happens where nothing is open, so it may be called twice.
        """
        self._each("close", state)
        self._open = {}

    def _each(self, method: str, *arguments: Any) -> None:
        for name, logger in list(self._open.items()):
            try:
                getattr(logger, method)(*arguments)
            except Exception as error:
                del self._open[name]
                lines = str(error).strip().splitlines()
                why = ": ".join([type(error).__name__, *lines[:1]])
                with contextlib.suppress(Exception):
                    self._say(f"{self._run}: goes on without {name} ({method}: {why})")
                if method == "rows":  # it may hold threads and files
                    with contextlib.suppress(Exception):
                        logger.close("failed")


def check_installed(config: Config) -> None:
    """Refuses loggers whose package is missing.

    Raises:
        ConfigError: names the logger, the package and how to get it.
    """
    for name, part in config.runtime.logger_parts().items():
        package = part.cls.package
        found = importlib.util.find_spec(package)
        # Without an origin it is a folder of that name, such as W&B leaves behind.
        if found is None or found.origin is None:
            raise ConfigError(
                f"runtime.loggers.{name}: needs {package}, which is not installed "
                "(pip install blocklab[loggers])"
            )
