"""Hydra configs, composed once per distinct set of choices.

Hydra composes a config in about 90 ms. A sweep of 1,000 runs has a handful of distinct
sets of group choices and differs otherwise in values, so each set is composed once and
values are applied to copies, by Hydra's own function. Copying and resolving a node of
OmegaConf is most of that, so what no value can reach is kept as plain data.
"""

import copy
import pathlib
import re
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
        self._halves: dict[tuple, tuple[DictConfig, dict[str, Any]]] = {}

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
        open_part, settled = self._split(key, values)
        open_part = copy.deepcopy(open_part)
        ConfigLoaderImpl._apply_overrides_to_config(values, open_part)
        return {**copy.deepcopy(settled), **plain(open_part)}, choices

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

    def _split(
        self, groups: tuple[str, ...], values: Sequence
    ) -> tuple[DictConfig, dict[str, Any]]:
        """The base without what these values leave alone, and that as plain data."""
        touched = {o.key_or_group.split(".")[0] for o in values}
        references = tuple(o.input_line for o in values if "${" in o.input_line)
        key = groups, frozenset(touched), references
        if key not in self._halves:
            base, _ = self._base(groups)
            node = OmegaConf.to_container(base)
            settled = _settled(node, references) - touched
            part = copy.deepcopy(base)
            with open_dict(part):
                for name in settled:
                    del part[name]
            # A value that is missing is an error of the whole: `plain` names it.
            rest = plain(OmegaConf.masked_copy(base, sorted(settled)))
            self._halves[key] = part, rest
        return self._halves[key]


def _settled(node: dict[str, Any], references: Sequence[str]) -> set[str]:
    """The keys of a config that hold no reference, and that none can mean.

    Args:
        node: the config, unresolved.
        references: other texts with references.
    """
    texts = [*references, *(str(v) for v in node.values() if "${" in str(v))]
    if any(re.search(r"\$\{[^}]*\$\{", text) for text in texts):
        return set()  # the name is itself a reference
    named = " ".join(part for text in texts for part in re.findall(r"\$\{[^}]*", text))
    return {k for k, v in node.items() if "${" not in str(v) and k not in named}


def is_for_hydra(override: str) -> bool:
    """Whether an override is for the `hydra` node (as Hydra decides it)."""
    return override.lstrip("+~").startswith(("hydra.", "hydra/"))


def plain(cfg: DictConfig) -> dict[str, Any]:
    """A composed config as resolved plain data.

    Raises:
        OmegaConfBaseException: an interpolation without a target, or a value still `???`.
    """
    return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
