"""What a model has and needs, from its abstract form: nothing is allocated."""

import dataclasses
import math

from flax import nnx

from blocks.attention.mla import LatentAttention
from blocks.ffn.moe.moe import MoE
from blocks.parameters import Layout, ParamSpec, path_name

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
    d_kept: numbers per token that later tokens need. sees: most keys of a token, or None.
    """

    n_layers: int
    n_heads: int
    d_key: int
    d_value: int
    d_kept: int
    sees: int | None


def attentions(model: nnx.Module) -> list[Attention]:
    """Every attention of a model, those of alike layers in one."""
    found = []
    for place, layers in model.blocks.places.items():
        for _, node in nnx.iter_graph(getattr(model.blocks, place)):
            if isinstance(node, LatentAttention):
                kept = node.kv_norm.d_model + node.d_rope
                widths = node.d_head + node.d_rope, node.d_value, kept
            elif hasattr(node, "n_kv_heads") and hasattr(node, "d_head"):
                widths = node.d_head, node.d_head, 2 * node.n_kv_heads * node.d_head
            else:
                continue
            limits = [node.window, getattr(node, "chunk", None)]
            sees = min((n for n in limits if n is not None), default=None)
            found.append(Attention(len(layers), node.n_heads, *widths, sees))
    return found


def flops_per_token(layout: Layout, seq_len: int) -> dict[str, int]:
    """Forward FLOPs of matrix products, a mean over the tokens of one sequence.

    weights: 2 for each number that a token is multiplied by.
    attention: 2 n_heads (d_key + d_value) for each key, and all `seq_len` keys, or those
        of the window: masked ones are computed too (arXiv 2204.02311 appendix B).
    """
    model = model_of(layout)
    shares = expert_shares(model)
    products = 0
    for path, spec in layout.specs.items():
        # Offsets of a router have its role's name in the path, not the role.
        if spec.role not in MULTIPLIED:
            continue
        share = next((s for p, s in shares.items() if path.startswith(p)), (1, 1))
        products += spec.size * share[0] // share[1]
    if getattr(model, "head", None) is None and "table" in layout.specs:
        products += layout.specs["table"].size  # a tied head
    keys = sum(
        a.n_layers * a.n_heads * (a.d_key + a.d_value) * min(a.sees or seq_len, seq_len)
        for a in attentions(model)
    )
    return {"weights": 2 * products, "attention": 2 * keys}


def kept_per_token(layout: Layout, seq_len: int) -> dict[str, int]:
    """Numbers that generating text keeps.

    per_token: that one more token adds while every layer keeps it.
    per_sequence: of `seq_len` tokens, layers with a window dropping what left it.
    """
    found = attentions(model_of(layout))
    return {
        "per_token": sum(a.n_layers * a.d_kept for a in found),
        "per_sequence": sum(
            a.n_layers * a.d_kept * min(a.sees or seq_len, seq_len) for a in found
        ),
    }


def state_size(layout: Layout) -> int:
    """Numbers that a model carries beside its parameters."""
    return sum(math.prod(v.shape) for _, v in nnx.to_flat_state(layout.state))
