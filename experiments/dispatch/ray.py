"""Groups as tasks of a Ray cluster, of this machine or of many."""

import contextlib
import os

from experiments.dispatch.elsewhere import Elsewhere, WorkerDied, Workers
from experiments.dispatch.share import Outcome, Share, work
from experiments.environment import available_cores


class Ray(Elsewhere):
    """Shares as Ray tasks.

    Args:
        address: of a running cluster ("auto" finds the one of this machine); None starts
            one here and stops it at the end.
        n_jobs: shares the sweep is cut into; None is as many as the resources of a
            fresh cluster run at a time.
        num_cpus, num_gpus: of a share. With GPUs a task sees its own alone.
    """

    traced = ()
    package = "ray"

    @staticmethod
    def check(
        *,
        address: str | None = None,
        n_jobs: int | None = None,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
    ) -> None:
        """Refuses what cannot be."""
        del address
        if n_jobs is not None and n_jobs < 1:
            raise ValueError(f"n_jobs: must be at least 1 or null, got {n_jobs}")
        if not num_cpus > 0:
            raise ValueError(f"num_cpus: must be positive, got {num_cpus}")
        if num_gpus < 0:
            raise ValueError(f"num_gpus: must not be negative, got {num_gpus}")

    def __init__(
        self,
        *,
        address: str | None = None,
        n_jobs: int | None = None,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
    ):
        self.address = address
        self.n_jobs = n_jobs
        self.num_cpus, self.num_gpus = num_cpus, num_gpus

    def n_workers(self) -> int:
        return self.n_jobs or max(1, int(available_cores() / self.num_cpus))

    def threads(self) -> int:
        return max(1, int(self.num_cpus))

    @contextlib.contextmanager
    def workers(self):
        # Ray would report its use to its makers.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        ray.init(
            address=self.address,
            include_dashboard=False if self.address is None else None,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
        )
        try:
            remote = ray.remote(
                num_cpus=self.num_cpus, num_gpus=self.num_gpus, max_retries=0
            )(work)
            yield _Tasks(remote)
        finally:
            ray.shutdown()


class _Tasks(Workers):
    def __init__(self, remote):
        self._remote = remote

    def submit(self, share: Share):
        return self._remote.remote(share)

    def is_done(self, handle) -> bool:
        import ray

        return bool(ray.wait([handle], timeout=0)[0])

    def result(self, handle) -> list[Outcome]:
        import ray

        try:
            return ray.get(handle)
        except (
            ray.exceptions.WorkerCrashedError,
            ray.exceptions.OutOfMemoryError,
        ) as e:
            raise WorkerDied(str(e).strip().splitlines()[0][:200]) from None
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
