"""Which tensor of a checkpoint a parameter is, and what is done to it.

Everything here moves numbers and computes none, so that a checkpoint that is read and
written again is the same to the last bit.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

Shape = tuple[int, ...]


def _same(x):
    return x


@dataclasses.dataclass(frozen=True)
class From:
    """One parameter of one layer, out of one tensor.

    name: of the tensor; {i} is the layer, {e} the expert.
    take: tensor -> parameter; rearranges entries and leaves out some.
    shape: shape of the parameter -> shape of the tensor.
    dtype: of the tensor where it is written, if it is another than the parameter's.
    """

    name: str
    take: Callable[[np.ndarray], np.ndarray] = _same
    shape: Callable[[Shape], Shape] = _same
    dtype: type[np.generic] | None = None

    def without(self, prefix: str) -> "From":
        """The same under a name that lacks `prefix`."""
        return dataclasses.replace(self, name=self.name.removeprefix(prefix))

    def at(self, layer: int | None) -> "From":
        """The same in every layer."""
        del layer
        return self


@dataclasses.dataclass(frozen=True)
class PerLayer:
    """One parameter whose tensor is another one in layers of another kind.

    kinds: of each layer. entries: by kind.
    """

    kinds: tuple[str, ...]
    entries: dict[str, From]

    def at(self, layer: int) -> From:
        """Where that layer's is."""
        return self.entries[self.kinds[layer]]


@dataclasses.dataclass(frozen=True)
class Names:
    """Tensors by parameter.

    A key is a path outside the blocks ("table") or inside one ("attn/branch/q/kernel");
    state counts as parameters do. Entries that a model has no use for do no harm.

    transformers: as `save_pretrained` of transformers 5 names them in memory.
    hub: as published checkpoints name them, where that differs.
    ignored: patterns of tensors that hold nothing learned, or nothing of this model.
    copies: name -> name of the tensor it may repeat (a tied head).
    """

    transformers: dict[str, From | PerLayer]
    hub: dict[str, From | PerLayer] | None = None
    ignored: tuple[str, ...] = ()
    copies: dict[str, str] = dataclasses.field(default_factory=dict)


def swapped(x: np.ndarray) -> np.ndarray:
    """The last two axes exchanged: torch's Linear is [out, in]."""
    return np.swapaxes(x, -1, -2)


def _swapped_shape(s: Shape) -> Shape:
    return (*s[:-2], s[-1], s[-2])


def linear(name: str) -> From:
    """A kernel from a matrix [..., out, in]."""
    return From(name, swapped, _swapped_shape)


def share(name: str, number: int, of: int) -> From:
    """Number `number` of `of` equal shares of the last axis, one beside the other."""
    return From(
        name,
        lambda w: np.split(w, of, axis=-1)[number],
        lambda s: (*s[:-1], of * s[-1]),
    )


def linear_share(name: str, number: int, of: int) -> From:
    """A kernel from its share of the rows of [..., of * out, in]."""
    return From(
        name,
        lambda w: swapped(np.split(w, of, axis=-2)[number]),
        lambda s: (*s[:-2], of * s[-1], s[-2]),
    )


def every(name: str, number: int, of: int) -> From:
    """Columns number, number + of, ...: shares of the last axis that are interleaved."""
    return From(
        name,
        lambda w: w[..., number::of],
        lambda s: (*s[:-1], of * s[-1]),
    )


def rows(name: str, start: int, stop: int, of: int) -> From:
    """A kernel from rows start .. stop - 1 of a matrix [of, in]."""
    return From(name, lambda w: w[start:stop].T, lambda s: (of, s[0]))


def head_rows(name: str, start: int, stop: int, of: int) -> From:
    """A kernel from rows start .. stop - 1 of each head of [heads * of, in]."""

    def take(w):
        each = w.reshape(-1, of, w.shape[-1])[:, start:stop]
        return each.reshape(-1, w.shape[-1]).T

    return From(name, take, lambda s: (s[1] // (stop - start) * of, s[0]))


def taps(name: str, start: int, stop: int, of: int) -> From:
    """Taps [size, features] from some of a depthwise convolution [of, 1, size]."""
    return From(name, lambda w: w[start:stop, 0].T, lambda s: (of, 1, s[0]))


def group_rows(name: str, of: int) -> From:
    """`of` kernels from a matrix [of * out, in], one below the other."""

    def take(w):
        return swapped(w.reshape(of, -1, w.shape[-1]))

    return From(name, take, lambda s: (of * s[-1], s[-2]))


def stream_map(name: str, n_streams: int) -> From:
    """phi [n_streams, features, coefficients] of hyper-connections.

    From [coefficients, n_streams * features], rows pre, post and comb; comb[j, k] is
    what stream k takes from stream j, mixing[k, j] here. A head has pre alone.
    """

    def take(w):
        columns = _mixing_last(w, n_streams).T
        return columns.reshape(n_streams, -1, len(w))

    return From(name, take, lambda s: (s[-1], s[-3] * s[-2]))


def stream_bias(name: str, n_streams: int) -> From:
    """The biases of those coefficients."""
    return From(name, lambda w: _mixing_last(w, n_streams))


def _mixing_last(w: np.ndarray, n: int) -> np.ndarray:
    comb = w[2 * n :]
    if len(comb):
        comb = comb.reshape(n, n, *w.shape[1:]).swapaxes(0, 1).reshape(comb.shape)
    return np.concatenate([w[: 2 * n], comb])


# Tables that families share --------------------------------------------------------

LAYER = "model.layers.{i}"
GATED = ("gate", "up", "down")
NAMED = {part: f"{part}_proj" for part in GATED}
NUMBERED = {"gate": "w1", "up": "w3", "down": "w2"}


def decoder(norms: dict[str, str], *, ffn: str = "mlp") -> dict[str, From]:
    """Of a decoder as most families name it.

    norms: site -> the name of its norm in a layer.
    ffn: name of the feed-forward in a layer.
    """
    table = {
        "table": From("model.embed_tokens.weight"),
        "final_norm/gain": From("model.norm.weight"),
        "head/kernel": linear("lm_head.weight"),
    }
    for site, name in norms.items():
        table[f"{site}/gain"] = From(f"{LAYER}.{name}.weight")
    for part in "qkvo":
        at = f"{LAYER}.self_attn.{part}_proj"
        table[f"attn/branch/{part}/kernel"] = linear(f"{at}.weight")
        table[f"attn/branch/{part}/bias"] = From(f"{at}.bias")
    for part in "qk":
        norm = f"{LAYER}.self_attn.{part}_norm.weight"
        table[f"attn/branch/{part}_norm/gain"] = From(norm)
    return table | gated("ffn/branch", f"{LAYER}.{ffn}")


def gated(ours: str, theirs: str, maps: dict[str, str] = NAMED) -> dict[str, From]:
    """gate, up and down as three linear maps, under the names that `maps` has."""
    table = {}
    for part, name in maps.items():
        table[f"{ours}/{part}/kernel"] = linear(f"{theirs}.{name}.weight")
        table[f"{ours}/{part}/bias"] = From(f"{theirs}.{name}.bias")
    return table


def fused_experts(theirs: str) -> dict[str, From]:
    """Experts as transformers holds them: [experts, 2 out, in] and [experts, out, in]."""
    ours = "ffn/branch/experts"
    return {
        f"{ours}/gate/kernel": linear_share(f"{theirs}.gate_up_proj", 0, 2),
        f"{ours}/up/kernel": linear_share(f"{theirs}.gate_up_proj", 1, 2),
        f"{ours}/down/kernel": linear(f"{theirs}.down_proj"),
    }


def single_experts(theirs: str, maps: dict[str, str] = NAMED) -> dict[str, From]:
    """Experts as most published files hold them: one matrix each."""
    return {
        f"ffn/branch/experts/{part}/kernel": linear(f"{theirs}.{{e}}.{name}.weight")
        for part, name in maps.items()
    }


PRE = {
    "attn/in_norm": "input_layernorm",
    "ffn/in_norm": "post_attention_layernorm",
}
TIED = {"lm_head.weight": "model.embed_tokens.weight"}
