"""hydra/launcher=batched: jobs that share a program run together."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher


@dataclass
class BatchedLauncherConf:
    _target_: str = "hydra_plugins.blocklab.launcher.BatchedLauncher"


ConfigStore.instance().store(
    group="hydra/launcher",
    name="batched",
    node=BatchedLauncherConf,
    provider="blocklab",
)


class BatchedLauncher(Launcher):
    """Hands all jobs to `experiments` in one piece."""

    def setup(self, *, hydra_context, task_function, config) -> None:
        self.loader = hydra_context.config_loader
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from experiments import job

        return job.run_all(self.loader, self.config, job_overrides)

    def __repr__(self) -> str:
        return "BatchedLauncher()"
