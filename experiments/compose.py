"""Hydra configs, composed once per distinct set of choices.

Hydra composes a config in about 90 ms. A sweep of 1,000 runs has a handful of distinct
sets of group choices and differs otherwise in values, so each set is composed once and
values are applied to copies, by Hydra's own function.
"""

import copy
import pathlib
from collections.abc import Sequence
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from experiments.config import Config
from experiments.released import expanded

CONF = pathlib.Path(__file__).resolve().parent.parent / "conf"


class Composer:
    """Turns lists of overrides into checked configs.

    Args:
        loader: Hydra's config loader (search path included).
        config_name: the primary config.
        hydra_overrides: overrides of the `hydra` node, applied to all.
    """

    def __init__(self, loader, config_name: str, hydra_overrides: Sequence[str] = ()):
        self._loader = loader
        self._config_name = config_name
        self._hydra_overrides = list(hydra_overrides)
        self.parser = OverridesParser.create(config_loader=loader)
        self._configs: dict[tuple[str, ...], Config] = {}
        self._parsed: dict[str, Any] = {}
        self._is_group: dict[str, bool] = {}
        self._bases: dict[tuple[str, ...], tuple[DictConfig, dict]] = {}
        self._stripped: dict[tuple[str, ...], tuple[DictConfig, dict | None]] = {}

    def compose(self, overrides: Sequence[str]) -> Config:
        """The config of one run.

        Raises:
            ConfigError: the config cannot be run.
            HydraException: it cannot be composed.
        """
        key = tuple(overrides)
        if key not in self._configs:  # a sweep is checked before it is launched
            node, choices = self.resolve(expanded(overrides, self.parser))
            self._configs[key] = Config.parse(
                node, choices=choices, overrides=overrides
            )
        return self._configs[key]

    def resolve(self, overrides: Sequence[str]) -> tuple[dict[str, Any], dict]:
        """Plain resolved data of one run, and the choices that made it."""
        parsed = [self._parse(text) for text in overrides]
        groups = [o for o in parsed if self._chooses(o)]
        values = [o for o in parsed if not self._chooses(o)]
        key = tuple(o.input_line for o in groups)
        base, choices = self._base(key)
        if not values:
            return plain(base), choices
        # Copying a config is most of the work, and its tags are most of a config.
        tags = None
        if not any(o.key_or_group.split(".")[0] == "tags" for o in values):
            base, tags = self._without_tags(key)
        base = copy.deepcopy(base)
        ConfigLoaderImpl._apply_overrides_to_config(values, base)
        node = plain(base)
        if tags is not None:
            node["tags"] = copy.deepcopy(tags)
        return node, choices

    def sweeper(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The `hydra.sweeper` node that these overrides give, sweeps left out."""
        overrides = expanded(overrides, self.parser)
        fixed = [o for o in overrides if not self._parse(o).is_sweep_override()]
        cfg = self._loader.load_configuration(
            config_name=self._config_name,
            overrides=[*self._hydra_overrides, *fixed],
            run_mode=RunMode.MULTIRUN,
        )
        return OmegaConf.to_container(cfg.hydra.sweeper)

    def _parse(self, text: str):
        if text not in self._parsed:
            (self._parsed[text],) = self.parser.parse_overrides([text])
        return self._parsed[text]

    def _chooses(self, override) -> bool:
        """Whether an override picks from a config group (as Hydra decides it)."""
        if isinstance(override.value(), dict):
            return False
        group = override.key_or_group
        if group not in self._is_group:
            self._is_group[group] = bool(self._loader.get_group_options(group))
        return self._is_group[group]

    def _base(self, groups: tuple[str, ...]) -> tuple[DictConfig, dict]:
        if groups not in self._bases:
            cfg = self._loader.load_configuration(
                config_name=self._config_name,
                overrides=[*self._hydra_overrides, *groups],
                run_mode=RunMode.RUN,
            )
            choices = {
                key: value
                for key, value in cfg.hydra.runtime.choices.items()
                if not key.startswith("hydra/")
            }
            with open_dict(cfg):
                del cfg["hydra"]
            self._bases[groups] = (cfg, choices)
        return self._bases[groups]

    def _without_tags(self, groups: tuple[str, ...]) -> tuple[DictConfig, dict | None]:
        """The base, and its tags as plain data where no value of a run is in them."""
        if groups not in self._stripped:
            base, _ = self._base(groups)
            node = OmegaConf.to_container(base)
            tags = node.get("tags")
            if tags is not None and "${" not in str(tags) and "${tags" not in str(node):
                base = copy.deepcopy(base)
                with open_dict(base):
                    del base["tags"]
            else:
                tags = None
            self._stripped[groups] = (base, tags)
        return self._stripped[groups]


def is_for_hydra(override: str) -> bool:
    """Whether an override is for the `hydra` node (as Hydra decides it)."""
    return override.lstrip("+~").startswith(("hydra.", "hydra/"))


def plain(cfg: DictConfig) -> dict[str, Any]:
    """A composed config as resolved plain data.

    Raises:
        OmegaConfBaseException: an interpolation without a target, or a value still `???`.
    """
    return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
