"""What a model has and needs, from its abstract form: nothing is allocated."""

import dataclasses
import math
from collections.abc import Iterator

from flax import nnx

from blocks.attention.gated_deltanet import GatedDeltaNet
from blocks.attention.mla import LatentAttention
from blocks.attention.shared_kv import SharedKeyValueAttention
from blocks.ffn.moe.moe import MoE
from blocks.language_model import LanguageModel
from blocks.parameters import Layout, ParamSpec, path_name
from blocks.token_encoder import TokenEncoder
from blocks.vision_model import VisionModel

# Parts in the order of the forward pass.
PARTS = (
    "embedding",
    "positions",
    "attention",
    "feed-forward",
    "router",
    "experts",
    "shared experts",
    "norms",
    "residual",
    "head",
)
MULTIPLIED = ("matrix", "router", "head")  # roles that meet every token in a product
PATCHES = "patches/kernel"  # an embedding that does, too


@dataclasses.dataclass(frozen=True)
class Count:
    """Of one part, or of all.

    n_params: numbers it learns. n_active: of those, what one token meets: of routed
        experts the share it is sent to, of everything else all (tables count whole).
    """

    n_params: int = 0
    n_active: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.n_params + other.n_params, self.n_active + other.n_active)


def part_of(path: str, spec: ParamSpec) -> str:
    """The part of `PARTS` that a parameter belongs to."""
    inside = path.split("/")
    by_role = {"embedding": "embedding", "position": "positions", "head": "head"}
    if spec.role in by_role:
        return by_role[spec.role]
    if any(name.endswith("norm") for name in inside):
        return "norms"
    if spec.role == "router" or "router" in inside:
        return "router"
    for name, part in (
        ("experts", "experts"),
        ("shared", "shared experts"),
        ("patches", "embedding"),
        ("head", "head"),
        ("attn", "attention"),
        ("ffn", "feed-forward"),
    ):
        if name in inside:
            return part
    return "residual"


def count(layout: Layout) -> dict[str, Count]:
    """Part -> its count, for the parts that the model has."""
    shares = expert_shares(model_of(layout))
    found: dict[str, Count] = {}
    for path, spec in layout.specs.items():
        active = spec.size
        for prefix, (top_k, n_experts) in shares.items():
            if path.startswith(prefix):
                active = spec.size * top_k // n_experts
        part = part_of(path, spec)
        found[part] = found.get(part, Count()) + Count(spec.size, active)
    return {part: found[part] for part in PARTS if part in found}


def model_of(layout: Layout) -> nnx.Module:
    """The model with shapes in the place of arrays."""
    return nnx.merge(layout.graphdef, layout.params, layout.state)


def expert_shares(model: nnx.Module) -> dict[str, tuple[int, int]]:
    """Start of the paths of routed experts -> (experts of a token, all experts)."""
    return {
        f"{path_name(path)}/experts/": (node.router.top_k, node.router.n_experts)
        for path, node in nnx.iter_graph(model)
        if isinstance(node, MoE)
    }


@dataclasses.dataclass(frozen=True)
class Attention:
    """One attention of a model, with what its cost depends on.

    n_layers: layers that have it. n_heads: of queries. d_key, d_value: widths of a head.
    d_kept: numbers per key that later tokens need; 0 where all are seen at once.
    sees: most keys of a token, or None. rate: tokens that a key stands for.
    """

    n_layers: int
    n_heads: int
    d_key: int
    d_value: int
    d_kept: int
    sees: int | None
    rate: int = 1

    def keys(self, seq_len: int) -> int:
        """Keys of a token in a sequence of that length."""
        n = seq_len // self.rate
        return n if self.sees is None else min(self.sees, n)


def attentions(model: nnx.Module) -> list[Attention]:
    """Every attention of a model, those of alike layers in one."""
    found = []
    for place, layers in model.blocks.places.items():
        for _, node in nnx.iter_graph(getattr(model.blocks, place)):
            if isinstance(node, SharedKeyValueAttention):
                found += _shared(node, len(layers))
                continue
            if isinstance(node, LatentAttention):
                kept = node.kv_norm.d_model + node.d_rope
                widths = node.d_head + node.d_rope, node.d_value, kept
            elif hasattr(node, "n_kv_heads") and hasattr(node, "d_head"):
                kept = 2 * node.n_kv_heads * node.d_head if node.causal else 0
                widths = node.d_head, node.d_head, kept
            else:
                continue
            limits = [node.window, getattr(node, "chunk", None)]
            sees = min((n for n in limits if n is not None), default=None)
            found.append(Attention(len(layers), node.n_heads, *widths, sees))
    return found


def _shared(node: SharedKeyValueAttention, n_layers: int) -> Iterator[Attention]:
    """Over a window, over what it compresses, and the scores of an indexer."""
    of_head = node.n_heads, node.d_head, node.d_head, node.d_head
    yield Attention(n_layers, *of_head, node.window)
    if node.compressor is None:
        return
    rate, indexer = node.compressor.rate, node.indexer
    top_k = None if indexer is None else indexer.top_k
    yield Attention(n_layers, *of_head, top_k, rate)
    if indexer is not None:
        scores = indexer.n_heads, indexer.d_head, 0, indexer.d_head
        yield Attention(n_layers, *scores, None, rate)


@dataclasses.dataclass(frozen=True)
class Memory:
    """One linear attention of a model, whose cost does not depend on earlier tokens.

    n_layers: layers that have it. n_state: numbers in the states of its heads. n_before:
    numbers of earlier tokens that its convolutions need.
    """

    n_layers: int
    n_state: int
    n_before: int


def memories(model: nnx.Module) -> list[Memory]:
    """Every linear attention of a model, those of alike layers in one."""
    found = []
    for place, layers in model.blocks.places.items():
        for _, node in nnx.iter_graph(getattr(model.blocks, place)):
            if isinstance(node, GatedDeltaNet):
                taps = [c.taps.shape for c in (node.q_conv, node.k_conv, node.v_conv)]
                before = sum((size - 1) * width for *_, size, width in taps)
                state = node.n_heads * node.d_key * node.d_value
                found.append(Memory(len(layers), state, before))
    return found


def flops_per_token(layout: Layout, seq_len: int) -> dict[str, int]:
    """Forward FLOPs of matrix products, a mean over the tokens of one sequence.

    weights: 2 for each number that a token is multiplied by; of the classifier of images
        and the map of their patches the share of the tokens that meet it.
    attention: 2 n_heads (d_key + d_value) for each key, and all `seq_len` keys, or those
        of the window: masked ones are computed too (arXiv 2204.02311 appendix B). A
        linear attention multiplies its state three times: what is stored under a key,
        what is written there, what is read.
    """
    model = model_of(layout)
    shares = expert_shares(model) | image_shares(model)
    products = 0
    for path, spec in layout.specs.items():
        # Offsets of a router have its role's name in the path, not the role.
        if spec.role not in MULTIPLIED and path != PATCHES:
            continue
        share = next((s for p, s in shares.items() if path.startswith(p)), (1, 1))
        products += spec.size * share[0] // share[1]
    if multiplies_its_table(model):
        products += layout.specs["table"].size
    keys = sum(
        a.n_layers * a.n_heads * (a.d_key + a.d_value) * a.keys(seq_len)
        for a in attentions(model)
    )
    states = sum(3 * m.n_layers * m.n_state for m in memories(model))
    return {"weights": 2 * products, "attention": 2 * (keys + states)}


def image_shares(model: nnx.Module) -> dict[str, tuple[int, int]]:
    """Start of paths that not all tokens of an image meet -> (those that do, all)."""
    if not isinstance(model, VisionModel):
        return {}
    n_tokens = model.positions.shape[0]
    n_patches = n_tokens - (model.summary is not None)
    return {"patches/": (n_patches, n_tokens), "head/": (1, n_tokens)}


def n_tokens(layout: Layout, seq_len: int) -> int:
    """Tokens of a sequence: `seq_len`, or as many as an image has."""
    model = model_of(layout)
    return model.positions.shape[0] if isinstance(model, VisionModel) else seq_len


def multiplies_its_table(model: nnx.Module) -> bool:
    """Whether the logits are products with the embedding of the tokens."""
    if isinstance(model, TokenEncoder):
        return model.head is not None
    return isinstance(model, LanguageModel) and model.head is None


def kept_per_token(layout: Layout, seq_len: int) -> dict[str, int]:
    """Numbers that generating text keeps.

    per_token: that one more token adds while every layer keeps it.
    per_sequence: of `seq_len` tokens, layers with a window dropping what left it, and
        the states of linear attention, which do not grow.
    """
    model = model_of(layout)
    found = attentions(model)
    fixed = sum(m.n_layers * (m.n_state + m.n_before) for m in memories(model))
    return {
        "per_token": sum(a.n_layers * a.d_kept // a.rate for a in found),
        "per_sequence": fixed
        + sum(a.n_layers * a.d_kept * _kept_keys(a, seq_len) for a in found),
    }


def _kept_keys(a: Attention, seq_len: int) -> int:
    """Keys that a sequence keeps: an indexer chooses anew, so what it leaves stays."""
    return seq_len // a.rate if a.rate > 1 else a.keys(seq_len)


def state_size(layout: Layout) -> int:
    """Numbers that a model carries beside its parameters."""
    return sum(math.prod(v.shape) for _, v in nnx.to_flat_state(layout.state))
