"""hydra/sweeper=batched: every job of a sweep is handed to the launcher at once."""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.sweeper import Sweeper


@dataclass
class BatchedSweeperConf:
    _target_: str = "hydra_plugins.blocklab.sweeper.BatchedSweeper"
    params: dict[str, Any] = field(default_factory=dict)
    sweeps: dict[str, Any] = field(default_factory=dict)
    phases: dict[str, Any] = field(default_factory=dict)


ConfigStore.instance().store(
    group="hydra/sweeper", name="batched", node=BatchedSweeperConf, provider="blocklab"
)


class BatchedSweeper(Sweeper):
    """Hydra's basic sweep without composing every job twice or writing multirun.yaml.

    Args:
        params: override -> values, as in the basic sweeper.
        sweeps: several such sets under names of one's own; the jobs of all of them run
            in one launch. `params` and the command line apply to each.
        phases: sets of such sets, run one after the other; a phase may use what earlier
            ones found to be best (`experiments.phases`). Instead of `sweeps`.
    """

    def __init__(self, params: Any = None, sweeps: Any = None, phases: Any = None):
        self.params = params
        self.sweeps = sweeps
        self.phases = phases

    def setup(self, *, hydra_context, task_function, config) -> None:
        from hydra.core.plugins import Plugins

        self.config = config
        self.loader = hydra_context.config_loader
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from experiments import job
        from experiments.sweep import combinations

        parser = OverridesParser.create(config_loader=self.loader)
        if self.phases:
            return self._sweep_phases(arguments, parser)
        jobs = combinations(self.params, self.sweeps, arguments, parser)
        job.check_all(self.loader, self.config, jobs)
        returns = self.launcher.launch(jobs, initial_job_idx=0)
        job.finish_sweep(returns)
        return returns

    def _sweep_phases(self, arguments: list[str], parser: OverridesParser) -> Any:
        from experiments import job
        from experiments.phases import Finished, phase_jobs, planned_jobs

        # Everything is checked before anything runs; which value will turn out best
        # does not matter to that.
        planned = planned_jobs(self.phases, arguments, parser, self.params)
        job.check_all(self.loader, self.config, planned)

        returns, finished = [], []
        for i, phase in enumerate(self.phases.values()):
            jobs = phase_jobs(phase, finished, arguments, parser, self.params)
            done = self.launcher.launch(jobs, initial_job_idx=len(returns))
            finished += [
                Finished(tuple(overrides), job.objective_of(one), phase=i)
                for overrides, one in zip(jobs, done, strict=True)
            ]
            returns += done
        job.finish_sweep(returns)
        return returns
