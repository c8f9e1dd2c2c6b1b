"""Groups as jobs of a Slurm cluster, or of this machine (submitit)."""

import contextlib
import pathlib
import threading
from typing import Any

from experiments.dispatch.elsewhere import Elsewhere, WorkerDied, Workers
from experiments.dispatch.share import Outcome, Share, work
from experiments.execute import THREAD

CLUSTERS = ("auto", "slurm", "local", "debug")


class Submitit(Elsewhere):
    """Shares as a job array.

    Jobs live on when the launching process ends, by Ctrl-C too; the same command waits
    for those that are running and collects. A job that is preempted or runs out of time
    saves its runs and is queued again.

    Args:
        n_jobs: shares the sweep is cut into, the size of the array.
        cluster: one of `CLUSTERS`; auto is slurm where there is one, else local.
        folder: where submitit keeps its files and the logs of the jobs.
        timeout_min: a job's time; behind it it is queued again.
        cpus_per_task, gpus_per_node, mem_gb: of a job; None leaves it to the cluster.
        partition, account: of Slurm.
        max_timeouts: how often a job may be queued again for want of time.
        parameters: further ones of `submitit.AutoExecutor.update_parameters`, as
            `slurm_qos`, `slurm_constraint`, `slurm_array_parallelism`.
    """

    traced = ()
    package = "submitit"
    stops_with_launcher = False

    @staticmethod
    def check(
        *,
        n_jobs: int = 8,
        cluster: str = "auto",
        folder: str = ".submitit",
        timeout_min: int = 240,
        cpus_per_task: int | None = None,
        gpus_per_node: int | None = None,
        mem_gb: float | None = None,
        partition: str | None = None,
        account: str | None = None,
        max_timeouts: int = 100,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        """Refuses what cannot be."""
        del folder, mem_gb, partition, account, parameters
        if cluster not in CLUSTERS:
            raise ValueError(
                f"cluster: must be one of {', '.join(CLUSTERS)}, got {cluster!r}"
            )
        for name, value in (
            ("n_jobs", n_jobs),
            ("timeout_min", timeout_min),
            ("cpus_per_task", cpus_per_task),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name}: must be at least 1, got {value}")
        for name, value in (
            ("gpus_per_node", gpus_per_node), ("max_timeouts", max_timeouts)
        ):  # fmt: skip
            if value is not None and value < 0:
                raise ValueError(f"{name}: must not be negative, got {value}")

    def __init__(
        self,
        *,
        n_jobs: int = 8,
        cluster: str = "auto",
        folder: str = ".submitit",
        timeout_min: int = 240,
        cpus_per_task: int | None = None,
        gpus_per_node: int | None = None,
        mem_gb: float | None = None,
        partition: str | None = None,
        account: str | None = None,
        max_timeouts: int = 100,
        parameters: dict[str, Any] | None = None,
    ):
        self.n_jobs = n_jobs
        self.cluster = None if cluster == "auto" else cluster
        self.folder = folder
        self.max_timeouts = max_timeouts
        self.cpus_per_task = cpus_per_task
        given = {
            "timeout_min": timeout_min,
            "cpus_per_task": cpus_per_task,
            "gpus_per_node": gpus_per_node,
            "mem_gb": mem_gb,
            "slurm_partition": partition,
            "slurm_account": account,
            "name": "blocklab",
            **(parameters or {}),
        }
        self.parameters = {k: v for k, v in given.items() if v is not None}

    def n_workers(self) -> int:
        return self.n_jobs

    def threads(self) -> int:
        return self.cpus_per_task or super().threads()

    @contextlib.contextmanager
    def workers(self):
        import submitit

        folder = pathlib.Path(self.folder).expanduser() / "%j"
        executor = submitit.AutoExecutor(
            str(folder), cluster=self.cluster, slurm_max_num_timeout=self.max_timeouts
        )
        try:
            executor.update_parameters(**self.parameters)
        except (NameError, TypeError, ValueError) as error:
            raise ValueError(f"runtime.dispatch.parameters: {error}") from None
        yield _Jobs(executor)


class Requeued:
    """`work` for a job that may be preempted: saves its runs, then asks to be continued."""

    def __call__(self, share: Share) -> list[Outcome]:
        self._stop, self._done = threading.Event(), threading.Event()
        try:
            return work(share, self._stop)
        finally:
            self._done.set()

    def checkpoint(self, share: Share):
        """Called by submitit, in the main thread, when the job has to go."""
        from submitit.helpers import DelayedSubmission

        # The threads that train see the event at the end of their chunk, and save.
        self._stop.set()
        self._saved()
        return DelayedSubmission(Requeued(), share)

    def _saved(self) -> None:
        """Waits for the threads: the main one stands in this very call."""
        for thread in threading.enumerate():
            if thread.name.startswith(THREAD):
                thread.join()


class _Jobs(Workers):
    def __init__(self, executor):
        self._executor = executor

    def submit(self, share: Share):
        return self._executor.submit(Requeued(), share)

    def is_done(self, handle) -> bool:
        return handle.done()

    def result(self, handle) -> list[Outcome]:
        import submitit

        try:
            return handle.result()
        except submitit.core.utils.UncompletedJobError as error:
            line = str(error).strip().splitlines()[0]
            raise WorkerDied(f"{line[:200]} ({handle.paths.stderr})") from None
