"""Every choice of `conf/` as a checked part."""

import contextlib
import dataclasses
import pathlib
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments import api
from experiments.catalogue.text import package_of
from experiments.compose import CONF
from experiments.config import Config
from experiments.errors import UserError
from experiments.parts import Part

LEFT_OUT = ("hydra",)  # how the command line looks: no part of an experiment


@dataclasses.dataclass(frozen=True)
class Choice:
    """One file of a config group."""

    group: str  # the folder below conf/, as on the command line
    name: str
    file: pathlib.Path

    @property
    def text(self) -> str:
        return self.file.read_text(encoding="utf-8")

    def part(self) -> Part | None:
        """The part, on its own where it can be; None if the choice names no code.

        Raises:
            UserError: the part needs what the default config does not have.
        """
        node = OmegaConf.load(self.file)
        place = self._place(node)
        if place is None:
            return None
        alone = None
        if "_target_" in node and "defaults" not in node and "${" not in self.text:
            try:
                return Part.parse(OmegaConf.to_container(node), place)
            except UserError as error:  # it may need parts of other groups
                alone = error
        try:
            config = self._composed()
        except UserError as error:
            raise alone or error from None
        first, *rest = place.split(".")
        part = getattr(config, first)
        for key in rest:
            part = part[key]
        return part

    def _composed(self) -> Config:
        """The default config with this choice in it."""
        try:
            return api.compose([f"{self.group}={self.name}"])[0]
        except UserError as error:
            with contextlib.suppress(UserError):  # a group the defaults do not list
                return api.compose([f"+{self.group}={self.name}"])[0]
            raise error

    def _place(self, node: DictConfig) -> str | None:
        """Path of the part in the config; None if the file names no class."""
        place = package_of(self.text) or self.group
        if place != "_global_":
            return place if "_target_" in node else None
        # It sets several things: its own is the one that is called like the group.
        places = _places_in(OmegaConf.to_container(node), "")
        last = self.group.rsplit("/", 1)[-1]
        own = [p for p in places if p.rsplit(".", 1)[-1] == last]
        return (own or places or [None])[0]


def _places_in(node: dict[str, Any], prefix: str) -> list[str]:
    """Dotted paths of the nodes below that name a class, the outermost ones."""
    found = []
    for key, value in node.items():
        if isinstance(value, dict):
            at = f"{prefix}{key}"
            found += [at] if "_target_" in value else _places_in(value, f"{at}.")
    return found


def groups() -> dict[str, list[Choice]]:
    """Group -> its choices, both in alphabetical order; groups may nest."""
    found: dict[str, list[Choice]] = {}
    for file in sorted(CONF.rglob("*.yaml")):
        group = file.parent.relative_to(CONF).as_posix()
        if group != "." and group.split("/")[0] not in LEFT_OUT:
            choice = Choice(group, file.stem, file)
            found.setdefault(group, []).append(choice)
    return dict(sorted(found.items()))
