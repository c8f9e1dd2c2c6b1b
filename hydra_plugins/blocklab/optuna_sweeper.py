"""hydra/sweeper=optuna: Optuna chooses what is run next, our launcher runs it."""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.sweeper import Sweeper
from omegaconf import MISSING


@dataclass
class OptunaSweeperConf:
    defaults: list[Any] = field(default_factory=lambda: [{"sampler": "tpe"}])
    _target_: str = "hydra_plugins.blocklab.optuna_sweeper.OptunaSweeper"
    _recursive_: bool = False  # every trial makes a sampler of its own
    sampler: Any = MISSING
    n_trials: int = 20
    n_jobs: int = 4
    seed: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    sweeps: dict[str, Any] = field(default_factory=dict)
    phases: dict[str, Any] = field(default_factory=dict)


# Others by hydra.sweeper.sampler._target_=optuna.samplers.GPSampler.
SAMPLERS = {
    "tpe": {"_target_": "optuna.samplers.TPESampler", "n_startup_trials": 10},
    "random": {"_target_": "optuna.samplers.RandomSampler"},
}

_store = ConfigStore.instance().store
_store(
    group="hydra/sweeper", name="optuna", node=OptunaSweeperConf, provider="blocklab"
)
for _name, _node in SAMPLERS.items():
    _store(group="hydra/sweeper/sampler", name=_name, node=_node, provider="blocklab")


class OptunaSweeper(Sweeper):
    """A search by Optuna's ask and tell, with the keys of Hydra's plugin for it.

    Args:
        sampler: config of an Optuna sampler.
        n_trials: of the whole study, those of earlier launches included.
        n_jobs: trials that are asked at a time and train together.
        seed: of the sampler.
        params: override -> values, as on the command line, which wins.
        sweeps, phases: of an experiment that is a sweep; refused.
    """

    def __init__(
        self,
        sampler: Any,
        n_trials: int,
        n_jobs: int,
        seed: int,
        params: Any,
        sweeps: Any,
        phases: Any,
    ):
        self.sampler = sampler
        self.n_trials, self.n_jobs, self.seed = n_trials, n_jobs, seed
        self.params = params
        self.is_sweep = bool(sweeps or phases)

    def setup(self, *, hydra_context, task_function, config) -> None:
        from hydra.core.plugins import Plugins

        self.config = config
        self.loader = hydra_context.config_loader
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from omegaconf import OmegaConf

        from experiments import job
        from experiments.errors import ConfigError
        from experiments.search import Search, check_installed, first_values
        from experiments.search_space import Space

        check_installed()
        if self.is_sweep:
            raise ConfigError(
                "hydra/sweeper=optuna: the experiment has sets of runs of its own; a "
                "search needs one space (hydra.sweeper.params or the command line)"
            )
        parser = OverridesParser.create(config_loader=self.loader)
        space = Space.of(self.params, arguments, parser)

        def check(jobs):
            job.check_all(self.loader, self.config, jobs)

        first, *_ = first_values(space, check)
        launched = 0

        def launch(jobs):
            nonlocal launched
            returns = self.launcher.launch(jobs, initial_job_idx=launched)
            launched += len(jobs)
            return returns

        search = Search(
            space=space,
            sampler=OmegaConf.to_container(OmegaConf.create(self.sampler)),
            n_trials=self.n_trials,
            n_jobs=self.n_jobs,
            seed=self.seed,
            config=job.composed(self.loader, self.config, first),
            launch=launch,
            check=check,
            say=lambda line: print(line, flush=True),
        )
        returns = search.run()
        job.finish_sweep(returns)
        return returns
