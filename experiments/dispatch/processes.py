"""Groups in processes of this machine (loky, the pool under joblib)."""

import contextlib
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

from experiments.dispatch.devices import take_device, visible_devices
from experiments.dispatch.elsewhere import Elsewhere, WorkerDied, Workers
from experiments.dispatch.share import Outcome, Share, work
from experiments.environment import available_cores


class Processes(Elsewhere):
    """Shares in `n_jobs` processes.

    On a machine with GPUs every process has one to itself, chosen before JAX starts.

    Args:
        n_jobs: processes; None is one per GPU, or per core where there are none.
        devices: ids of the GPUs to use; None is all that CUDA_VISIBLE_DEVICES names, or
            all of the machine.
    """

    traced = ()
    package = "joblib"

    @staticmethod
    def check(*, n_jobs: int | None = None, devices: tuple[str, ...] | None = None):
        """Refuses what cannot be."""
        if n_jobs is not None and n_jobs < 1:
            raise ValueError(f"n_jobs: must be at least 1 or null, got {n_jobs}")
        if devices is not None and n_jobs is not None and n_jobs > len(devices):
            raise ValueError(
                f"n_jobs: there are {len(devices)} devices, got {n_jobs} processes"
            )

    def __init__(
        self, *, n_jobs: int | None = None, devices: tuple[str, ...] | None = None
    ):
        self.devices = visible_devices() if devices is None else list(devices)
        self.n_jobs = n_jobs

    def n_workers(self) -> int:
        if self.n_jobs is None:
            return len(self.devices) or available_cores()
        return min(self.n_jobs, len(self.devices) or self.n_jobs)

    @contextlib.contextmanager
    def workers(self):
        pool = _Pool(self.n_workers(), self.devices)
        try:
            yield pool
        finally:
            pool.close()


class _Pool(Workers):
    """A loky executor that is made again when one of its processes died."""

    def __init__(self, n_workers: int, devices: list[str]):
        self._n_workers, self._devices = n_workers, devices
        self._executor = self._start()

    def _start(self):
        from joblib.externals.loky import ProcessPoolExecutor

        return ProcessPoolExecutor(
            max_workers=self._n_workers,
            initializer=take_device if self._devices else None,
            initargs=(self._devices,) if self._devices else (),
        )

    def submit(self, share: Share) -> Future:
        try:
            return self._executor.submit(work, share)
        except (BrokenProcessPool, RuntimeError):  # a process of it died
            self._executor.shutdown(wait=True)
            self._executor = self._start()
            return self._executor.submit(work, share)

    def is_done(self, handle: Future) -> bool:
        return handle.done()

    def result(self, handle: Future) -> list[Outcome]:
        try:
            return handle.result()
        except BrokenProcessPool as error:
            raise WorkerDied(str(error).strip().splitlines()[0][:200]) from None

    def close(self) -> None:
        self._executor.shutdown(wait=True)
