"""What can be chosen and set where a command looks: to suggest what was meant."""

import argparse
import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments.compose import CONF, is_for_hydra


@dataclasses.dataclass(frozen=True)
class Place:
    """Where Hydra looks: a primary config, and folders besides `conf/`."""

    config_name: str = "config"
    folders: tuple[str, ...] = ()

    @classmethod
    def of_arguments(cls, arguments: argparse.Namespace) -> "Place":
        """That of a command line: --config-name and --config-dir."""
        folder = arguments.config_dir
        return cls(
            arguments.config_name or "config",
            (str(pathlib.Path(folder).absolute()),) if folder else (),
        )

    @classmethod
    def current(cls) -> "Place":
        """That of the Hydra of whoever called, if there is one."""
        if not GlobalHydra.instance().is_initialized():
            return cls()
        path = GlobalHydra.instance().config_loader().get_search_path().get_path()
        folders = [
            entry.path.removeprefix("file://")
            for entry in path
            if entry.provider not in ("hydra", "schema")
        ]
        return cls(folders=tuple(f for f in folders if f != str(CONF)))


class Known:
    """Keys, groups and choices of the config that some overrides give.

    overrides: those that are in order count, so that a chosen part's own keys are known.
    """

    def __init__(self, overrides: Sequence[str], place: Place):
        self._place = place
        path = create_config_search_path(str(CONF))
        for folder in place.folders:  # where Hydra itself puts --config-dir
            path.prepend("command-line", folder, SearchPathQuery(provider="schema"))
        # Not by Hydra's `compose`: of that there can only be one at a time, the caller's.
        self._loader = ConfigLoaderImpl(path)
        cfg = self._composed(overrides)
        choices = list(cfg.hydra.runtime.choices)
        self.choices = [c for c in choices if not c.startswith("hydra/")]
        self._hydra = _dotted(cfg.hydra, "hydra.")
        OmegaConf.set_struct(cfg, False)
        del cfg["hydra"]
        self.config: DictConfig = cfg

    def _composed(self, overrides: Sequence[str]) -> DictConfig:
        """With as much of what was asked for as composes."""
        choosing = self._choosing(overrides)
        for name in (self._place.config_name, "config"):
            for attempt in (choosing, []):
                with contextlib.suppress(
                    HydraException, OmegaConfBaseException, YAMLError
                ):
                    return self._load(name, attempt)
        raise AssertionError("conf/config.yaml does not compose")

    def _load(self, name: str, overrides: Sequence[str]) -> DictConfig:
        return self._loader.load_configuration(
            name, list(overrides), run_mode=RunMode.RUN, from_shell=False
        )

    def _choosing(self, overrides: Sequence[str]) -> list[str]:
        """Overrides that pick from a group."""
        roots = [CONF, *map(pathlib.Path, self._place.folders)]
        groups = {o: o.split("=")[0].split("@")[0] for o in overrides if "=" in o}
        return [
            o
            for o, group in groups.items()
            if not is_for_hydra(o) and any((root / group).is_dir() for root in roots)
        ]

    @functools.cached_property
    def keys(self) -> list[str]:
        """Every key of the config, dotted."""
        return _dotted(self.config)

    @property
    def hydra_keys(self) -> list[str]:
        return self._hydra

    @functools.cached_property
    def groups(self) -> list[str]:
        return [g for g in self._loader.list_groups("") if g != "hydra"]

    def options(self, group: str) -> list[str]:
        return self._loader.get_group_options(group)

    def owners(self, key: str) -> list[str]:
        """Choices such as `norm=derf` that bring a key."""
        parent, _, last = key.rpartition(".")
        return [
            f"{choice}={option}"
            for choice in self.choices
            for option in self._options_at(choice, parent)
            if last in self._file(choice, option).config
        ]

    def at(self, package: str) -> list[str]:
        """Groups as they are written to choose what stands at a dotted path."""
        return [c for c in self.choices if any(self._options_at(c, package))]

    def _options_at(self, choice: str, package: str) -> Iterator[str]:
        """Options of a choice that go to a dotted path of the config."""
        group, _, wanted = choice.partition("@")
        for option in self.options(group):
            header = wanted or self._file(choice, option).header.get("package")
            if (header or group.replace("/", ".")) != package:
                return  # those of one group go to one place
            yield option

    def _file(self, choice: str, option: str):
        return self._loader.repository.load_config(f"{choice.split('@')[0]}/{option}")


def _dotted(node: DictConfig, prefix: str = "") -> list[str]:
    """Every key below a node, dotted."""
    keys = []
    for key in node:
        if key.startswith("_"):
            continue
        keys.append(f"{prefix}{key}")
        if isinstance(node._get_node(key), DictConfig) and node[key] is not None:
            keys += _dotted(node[key], f"{prefix}{key}.")
    return keys
