"""Layers that differ from the others: which they are, and what parts they have.

Every part not given here stays the model's. A model with a pattern holds one stack of
parameters per position of the pattern (see `blocks.stack`).
"""

import abc
import math
from collections.abc import Callable

from blocks.checks import check_sizes
from blocks.keywords import with_keywords_of

PARTS = ("attention", "ffn", "placement", "attn_norm", "ffn_norm")


class Pattern(abc.ABC):
    """Replaces parts in the layers that `chosen` names.

    attention, ffn, attn_norm, ffn_norm: factories, as the model takes them.
    placement: a `blocks.placement.Placement`.
    beside: another pattern, for a third kind of layers: its parts are in the layers
        that it chooses, unless this one has the same part there.
    """

    def __init__(
        self,
        *,
        attention: Callable | None = None,
        ffn: Callable | None = None,
        placement: Callable | None = None,
        attn_norm: Callable | None = None,
        ffn_norm: Callable | None = None,
        beside: Callable | None = None,
    ):
        self.beside = beside
        given = dict(
            attention=attention,
            ffn=ffn,
            placement=placement,
            attn_norm=attn_norm,
            ffn_norm=ffn_norm,
        )
        self.parts = {name: part for name, part in given.items() if part is not None}

    @abc.abstractmethod
    def chosen(self, layer: int, n_layers: int) -> bool:
        """Whether block `layer` has the parts of the pattern."""

    def own_at(self, layer: int, n_layers: int) -> dict:
        """The parts of this pattern that block `layer` has."""
        return self.parts if self.chosen(layer, n_layers) else {}

    def at(self, layer: int, n_layers: int) -> dict:
        """The parts that block `layer` has in place of the model's."""
        own = self.own_at(layer, n_layers)
        return own if self.beside is None else self.beside.at(layer, n_layers) | own


class EveryNth(Pattern):
    """Layers every - 1, 2 * every - 1, ...: the last of each `every` layers.

    Gemma 3: every=6, the others local. Llama 4: every=4 without rotary positions.
    """

    traced = ()

    @staticmethod
    def check(*, every: int) -> None:
        check_sizes(every=every)

    @with_keywords_of(Pattern.__init__)
    def __init__(self, *, every: int, **parts):
        super().__init__(**parts)
        self.every = every

    def chosen(self, layer: int, n_layers: int) -> bool:
        return layer % self.every == self.every - 1


class First(Pattern):
    """The first floor(fraction * n_layers) layers, and at least `at_least` of them.

    DeepSeek-V3: at_least=3 dense feed-forwards before the mixtures. Mix-LN: Post-LN in
    the first quarter.
    """

    traced = ()

    @staticmethod
    def check(*, fraction: float = 0.0, at_least: int = 1) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be from 0 to 1, got {fraction}")
        if at_least < 0:
            raise ValueError(f"at_least must not be negative, got {at_least}")

    @with_keywords_of(Pattern.__init__)
    def __init__(self, *, fraction: float = 0.0, at_least: int = 1, **parts):
        super().__init__(**parts)
        self.fraction = fraction
        self.at_least = at_least

    def chosen(self, layer: int, n_layers: int) -> bool:
        return layer < max(math.floor(self.fraction * n_layers), self.at_least)


class Listed(Pattern):
    """Each part in the layers that are listed for it, numbered from 0.

    attention_in: of attention and attn_norm. ffn_in: of ffn and ffn_norm. placement_in:
    of the placement. None is every second layer: 1, 3, ...; numbers that the model has
    no layer for wait for a deeper one. For what no rule of one number says: Qwen3-Next
    and Llama 4 Maverick, whose attentions and mixtures alternate at paces of their own.
    """

    traced = ()

    @staticmethod
    def check(
        *,
        attention_in: tuple[int, ...] | None = None,
        ffn_in: tuple[int, ...] | None = None,
        placement_in: tuple[int, ...] | None = None,
    ) -> None:
        given = dict(
            attention_in=attention_in, ffn_in=ffn_in, placement_in=placement_in
        )
        for name, layers in given.items():
            wrong = [n for n in layers or () if not isinstance(n, int) or n < 0]
            if wrong:
                raise ValueError(
                    f"{name} must be numbers of layers, from 0, got {wrong[0]}"
                )

    @with_keywords_of(Pattern.__init__)
    def __init__(
        self,
        *,
        attention_in: tuple[int, ...] | None = None,
        ffn_in: tuple[int, ...] | None = None,
        placement_in: tuple[int, ...] | None = None,
        **parts,
    ):
        super().__init__(**parts)
        self._layers = {
            "attention": attention_in,
            "attn_norm": attention_in,
            "ffn": ffn_in,
            "ffn_norm": ffn_in,
            "placement": placement_in,
        }

    def chosen(self, layer: int, n_layers: int) -> bool:
        return bool(self.own_at(layer, n_layers))

    def own_at(self, layer: int, n_layers: int) -> dict:
        return {
            name: part
            for name, part in self.parts.items()
            if self._has(layer, self._layers[name])
        }

    @staticmethod
    def _has(layer: int, layers: tuple[int, ...] | None) -> bool:
        return layer % 2 == 1 if layers is None else layer in layers
