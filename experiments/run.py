"""The run directory: the only module that creates or writes one.

See docs/run_directory.md for the contract.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import math
import os
import pathlib
import re
import time
import traceback
from typing import Any

import yaml

from experiments.config import Config
from experiments.errors import UserError

# A file system over a network may show a file late, or a text before all of it is there.
RETRIES = (0.02, 0.05, 0.1)  # seconds

FULL = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the quota on the device is used up",
}


@dataclasses.dataclass
class Status:
    """Contents of status.json."""

    state: str
    step: int
    steps: int
    started: float
    updated: float
    seconds: float = 0.0
    diverged_step: int | None = None
    error: str | None = None
    attempt: int = 1
    params_digest: str | None = None
    warning: str | None = None  # of a run that probably failed in silence
    restores: int = (
        0  # how often it diverged and went back (`experiments.guards.restore`)
    )
    diverged_at: dict[str, Any] | None = None  # `experiments.replay.site_of`

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do for the run."""
        return self.state in ("completed", "diverged")


class BusyError(UserError):
    """Another launcher holds the run."""


class DiskError(UserError):
    """Something cannot be written; nothing that was there before has changed."""

    def __init__(self, path: pathlib.Path, error: OSError):
        what = FULL.get(error.errno)
        what = what or f"cannot write there ({error.strerror or error})"
        super().__init__(
            f"{path}: {what}; what was written before is kept, the same command "
            "continues"
        )


@contextlib.contextmanager
def _writing(path: pathlib.Path):
    """Tells an error of the disk as one line that names the file."""
    try:
        yield
    except OSError as error:
        raise DiskError(path, error) from error


class RunDirectory:
    """One run on disk. Creating the object touches nothing; `open` does.

    Args:
        config: the run.
        data_fingerprint: of the data it sees.
        shared: overrides common to all runs of a sweep, left out of the folder's name.
    """

    def __init__(
        self,
        config: Config,
        data_fingerprint: str,
        shared: frozenset[str] = frozenset(),
    ):
        self.config = config
        self._shared = shared
        self.identity = config.identity(data_fingerprint)
        self.root = config.folder
        self.path = self._find()
        self._lock_file = None

    def _find(self) -> pathlib.Path:
        """The run's folder: the one that has its hash, or where it is going to be."""
        found = sorted(self.root.glob(f"*-{self.identity}"))
        return found[0] if found else self.root / self.run_id

    @property
    def run_id(self) -> str:
        own = [o for o in self.config.overrides if o not in self._shared]
        return f"{_slug(own)}-{self.identity}"

    # -- life cycle --------------------------------------------------------------

    def status(self) -> Status | None:
        """What status.json says, None if there is no readable one."""
        node = self._read_status()
        try:
            known = {f.name for f in dataclasses.fields(Status)}
            return Status(**{k: v for k, v in node.items() if k in known})
        except (TypeError, AttributeError):
            return None

    def _read_status(self) -> Any:
        """The content of status.json; where a run has been, not given up at once."""
        for wait in (*RETRIES, None):
            with contextlib.suppress(OSError, ValueError):
                return json.loads((self.path / "status.json").read_bytes())
            if wait is None or not (self.path / "config.json").exists():
                break
            time.sleep(wait)
        return None

    def open(self, env: dict[str, Any]) -> bool:
        """Creates the directory if need be, takes its lock and marks it running.

        Returns:
            False if another launcher has finished the run in the meantime; the lock is
            free then.

        Raises:
            UserError: another launcher is at work on this run, or the folder cannot be
                written.
        """
        self.path = self._find()  # another launcher may have named it since
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            # Closed by `close`, and by the kernel if the process dies: never stale.
            self._lock_file = (self.path / ".lock").open("w")
        try:
            self._take_lock()
            before = self.status()
            if before is not None and not self.is_wanted_again(before):
                self.close()
                return False
            self._start(env, before)
        except BaseException:
            self.close()
            raise
        return True

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"{self.path}: another launcher is running it") from None
        except OSError as error:
            raise UserError(
                f"{self.path / '.lock'}: cannot be locked ({error.strerror}); the file "
                "system must have locks"
            ) from error

    def _start(self, env: dict[str, Any], before: Status | None) -> None:
        """Writes what stands before the first row."""
        for left in self.path.glob(".*.tmp"):  # by an attempt that was killed
            left.unlink(missing_ok=True)
        now = time.time()
        node = self.config.to_config()  # tags and runtime may be others than before
        overrides = "\n".join(self.config.overrides) + "\n"
        _write(self.path / "config.yaml", _to_yaml(node), durable=False)
        _write(self.path / "overrides.txt", overrides, durable=False)
        _write(self.path / "config.json", to_json(node, indent=1))
        _write(self.path / "env.json", to_json(env, indent=1), durable=False)
        (self.path / "error.txt").unlink(missing_ok=True)
        self._status = Status(
            state="running",
            step=before.step if before else 0,
            steps=self.config.steps,
            started=before.started if before else now,
            updated=now,
            seconds=before.seconds if before else 0.0,
            attempt=before.attempt + 1 if before else 1,
            warning=before.warning if before else None,
            restores=before.restores if before else 0,
        )
        # The clock on the wall may be set while the run goes on.
        self._opened = time.monotonic() - self._status.seconds
        self.update()

    def update(self, **changes) -> None:
        """Replaces status.json atomically."""
        seconds = round(time.monotonic() - self._opened, 3)
        self._status = dataclasses.replace(
            self._status, updated=time.time(), seconds=seconds, **changes
        )
        _write(self.path / "status.json", to_json(dataclasses.asdict(self._status)))

    def is_wanted_again(self, status: Status) -> bool:
        """Whether a launch works on a run that stands so."""
        retry = self.config.runtime.retry
        if status.state == "failed":
            return retry is not None
        if status.state == "diverged":
            return retry == "diverged"
        return status.state != "completed"

    def look_again(self) -> None:
        """Finds the folder that another process may have made since."""
        self.path = self._find()

    def is_taken(self) -> bool:
        """Whether a launcher, of this process or another, is at work on the run."""
        try:
            with (self.path / ".lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def fail(self, error: BaseException) -> None:
        """Marks the run failed and keeps the traceback, as far as the disk lets it.

        On a full disk the run may stay `running`, as one whose launcher died.
        """
        text = "".join(traceback.format_exception(error))
        with contextlib.suppress(DiskError):
            _write(self.path / "error.txt", text)
        with contextlib.suppress(DiskError):
            self.update(state="failed", error=line_of(error))

    def close(self) -> None:
        """Lets go of the lock."""
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    # -- rows --------------------------------------------------------------------

    def append(self, file: str, rows: list[dict[str, Any]]) -> None:
        """Appends rows to metrics.jsonl or probes.jsonl and flushes them to disk.

        Raises:
            DiskError: none of the rows was written.
        """
        if not rows:
            return
        path = self.path / file
        text = "".join(to_json(_flagged(row)) + "\n" for row in rows)
        with _writing(path):
            size = path.stat().st_size if path.exists() else 0
            try:
                with path.open("a", encoding="utf-8") as f:
                    f.write(text)
                    f.flush()
                    os.fsync(f.fileno())
            except BaseException:  # after closing, which tries to write once more
                with contextlib.suppress(OSError):
                    os.truncate(path, size)
                raise

    def rows(self, file: str) -> list[dict[str, Any]]:
        """All whole rows of metrics.jsonl or probes.jsonl."""
        rows = []
        with contextlib.suppress(OSError):
            for line in (self.path / file).read_bytes().splitlines():
                with contextlib.suppress(ValueError):
                    rows.append(json.loads(line))
        return rows

    def rewind(self, file: str, step: int | None) -> list[dict[str, Any]]:
        """Keeps the rows up to `step` (None: no row) and returns them.

        A line cut by a crash, or not of ours, is dropped with what follows it.
        """
        path = self.path / file
        if not path.exists():
            return []
        content = path.read_bytes()
        size, rows = 0, []
        for line in content.splitlines(keepends=True):
            row = _row(line)
            if row is None or step is None or row["step"] > step:
                break
            size += len(line)
            rows.append(row)
        if size < len(content):
            _write(path, content[:size].decode())
        return rows


def _row(line: bytes) -> dict[str, Any] | None:
    """A row of ours from its line, None if it is cut or of something else."""
    try:
        row = json.loads(line)
        return row if line.endswith(b"\n") and row["step"] >= 0 else None
    except (ValueError, TypeError, LookupError):
        return None


def line_of(error: BaseException) -> str:
    """An error in one line: `ValueError: what it says`, or only what a user is told."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, UserError):
        text = str(error)
    return text.splitlines()[0]


def last_value(rows: list[dict[str, Any]], key: str) -> float | None:
    """The last known value of a column."""
    return next((r[key] for r in reversed(rows) if r.get(key) is not None), None)


def _flagged(row: dict[str, Any]) -> dict[str, Any]:
    """The row, saying so if a number in it is not finite."""
    numbers = [v for v in row.values() if isinstance(v, float)]
    numbers += [v for v in row.get("values", ()) if isinstance(v, float)]
    return row if all(map(math.isfinite, numbers)) else {**row, "finite": False}


def to_json(node: Any, indent: int | None = None) -> str:
    """Strict JSON: what is not a finite number is null."""
    return json.dumps(_finite(node), indent=indent, allow_nan=False)


def _finite(node: Any) -> Any:
    if isinstance(node, float):
        return node if math.isfinite(node) else None
    if isinstance(node, dict):
        return {k: _finite(v) for k, v in node.items()}
    if isinstance(node, (list, tuple)):
        return [_finite(v) for v in node]
    return node


def _to_yaml(node: Any) -> str:
    """Plain data as YAML in the order of its keys, by libyaml where that is built in."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    plain = json.loads(to_json(node))  # tuples as lists
    return yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True)


def _write(path: pathlib.Path, text: str, *, durable: bool = True) -> None:
    """Replaces a file as a whole: a reader sees the old text or the new.

    Not `durable` leaves it to the system when the text reaches the disk: what can be
    made again may be lost with the machine, though not with the process.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _writing(path):
        try:
            with temporary.open("w", encoding="utf-8") as f:
                f.write(text)
                if durable:
                    f.flush()
                    os.fsync(f.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def _slug(overrides: list[str]) -> str:
    """What was asked for, readable as a folder name."""
    asked = [_short(o) for o in overrides if not _names_place(o)]
    text = re.sub(r"[^A-Za-z0-9=.+-]+", "_", "_".join(asked) or "run")
    return text[:100].strip("_.-")


def _names_place(override: str) -> bool:
    return override.lstrip("+~").split("=")[0].split(".")[0] in (
        "runtime", "name", "tags", "log_every", "experiment", "hydra", "logger", "dispatch",
    )  # fmt: skip


def _short(override: str) -> str:
    if override.startswith("~"):
        return "no-" + override.lstrip("~").partition("=")[0]
    key, _, value = override.lstrip("+").partition("=")
    return f"{key.rsplit('.', 1)[-1]}={value}"
