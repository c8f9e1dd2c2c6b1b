"""DeepSeek-V4: several streams, one key and value for all heads, a compressed past.

transformers 5.24.0 modeling_deepseek_v4.py. All norms have the eps of the config. Layers
see a window, and but for the first few an entry for every few earlier tokens as well,
the best of them or all; the first layers choose experts by the token. Published files
hold numbers of 8 and 4 bits in a way that is not read here, and layers that predict
further tokens, which are no part of this model.
"""

import numpy as np

from blocks.families.family import Family
from blocks.families.fields import Fields
from blocks.families.parts import layers, part, rope, sizes, values
from blocks.families.tensors import (
    LAYER,
    NUMBERED,
    PRE,
    From,
    Names,
    decoder,
    fused_experts,
    gated,
    group_rows,
    linear,
    single_experts,
    stream_bias,
    stream_map,
)

SLIDING = "sliding_attention"
SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"
RATES = {SPARSE: 4, HEAVY: 128}
HASH, ROUTED = "hash_moe", "moe"


def overrides(fields: Fields) -> list[str]:
    fields.expect("hidden_act", "silu", default="silu")
    fields.expect("attention_bias", False, default=False)
    fields.expect("mlp_bias", False, default=False)
    fields.expect("num_key_value_heads", 1, default=1)
    fields.skip("router_aux_loss_coef", "router_jitter_noise")  # of training
    fields.skip("num_nextn_predict_layers")
    eps = fields.get("rms_norm_eps", 1e-6)
    attentions, ffns = attention_kinds(fields), ffn_kinds(fields)

    def make(kind):
        attention, ffn = kind
        return {
            "attention": attention_of(fields, attention, eps),
            "ffn": mixture(fields, is_hashed=ffn == HASH),
        }

    return [
        *sizes(
            fields,
            d_head=fields.size("head_dim", 512),
            d_ff=fields.size("moe_intermediate_size", 2048),
            tied_head=fields.get("tie_word_embeddings", False),
        ),
        *part("placement", "pre"),
        *part("norm", "rmsnorm", eps=eps),
        *part(
            "residual",
            "mhc_deepseek",
            n_streams=fields.size("hc_mult", 4),
            iterations=fields.size("hc_sinkhorn_iters", 20),
            eps=eps,
            coefficient_eps=fields.get("hc_eps", 1e-6),
        ),
        *layers(list(zip(attentions, ffns, strict=True)), make),
    ]


def attention_kinds(fields: Fields) -> list[str]:
    """Of each layer: by name, or as published by the tokens in an entry."""
    n = fields.size("num_hidden_layers")
    by_rate = {0: SLIDING, **{rate: kind for kind, rate in RATES.items()}}
    published = fields.several("compress_ratios")
    if published is None:
        # Two layers with the whole past compressed, then both kinds in turn.
        usual = [SPARSE if i % 2 and i > 1 else HEAVY for i in range(n)]
    else:
        if not set(published) <= set(by_rate) or len(published) < n:
            fields.refuse("compress_ratios", f"{n} of {list(by_rate)}", published)
        usual = [by_rate[rate] for rate in published[:n]]
    return listed(fields, "layer_types", usual, (SLIDING, SPARSE, HEAVY))


def ffn_kinds(fields: Fields) -> list[str]:
    """Of each layer: by name, or as published by how many choose by the token."""
    n, hashed = fields.size("num_hidden_layers"), fields.get("num_hash_layers", 3)
    usual = [HASH if i < hashed else ROUTED for i in range(n)]
    return listed(fields, "mlp_layer_types", usual, (HASH, ROUTED))


def listed(
    fields: Fields, name: str, usual: list[str], known: tuple[str, ...]
) -> list[str]:
    found = fields.several(name) or usual
    if len(found) != len(usual) or not set(found) <= set(known):
        fields.refuse(name, f"{len(usual)} of {', '.join(known)}", found)
    return found


def rates(fields: Fields) -> dict[str, int]:
    """Tokens in an entry, by kind of attention."""
    found = fields.get("compress_rates", None) or RATES
    good = isinstance(found, dict) and found.keys() == RATES.keys()
    if not good or any(type(m) is not int or m < 1 for m in found.values()):
        fields.refuse("compress_rates", "a whole number for each kind", found)
    return found


def attention_of(fields: Fields, kind: str, eps: float) -> list[str]:
    keywords = dict(
        q_rank=fields.size("q_lora_rank", 1024),
        d_rope=turning_features(fields),
        window=fields.size("sliding_window", 128),
        n_groups=fields.size("o_groups", 8),
        o_rank=fields.size("o_lora_rank", 1024),
        latent_norm__eps=eps,
        head_norm__eps=eps,
    )
    index = dict(
        n_heads=fields.size("index_n_heads", 64),
        d_head=fields.size("index_head_dim", 128),
        top_k=fields.size("index_topk", 512),
    )
    rate = rates(fields).get(kind)
    if kind == SLIDING:
        made = part("attention", "deepseek_v4", **keywords)
        return [*made, *positions(fields, "main")]
    choice = "deepseek_v4_heavy" if kind == HEAVY else "deepseek_v4_sparse"
    made = part("attention", choice, compressor__rate=rate, **keywords)
    if kind == SPARSE:
        made += values("model.attention.indexer", **index)
    return [*made, *positions(fields, "compress")]


def turning_features(fields: Fields) -> int:
    """How many features of a head, its last, turn."""
    head = fields.size("head_dim", 512)
    given = fields.get("partial_rotary_factor", None)
    if given is None:
        return fields.size("qk_rope_head_dim", 64)
    count = int(head * given)
    if fields.get("qk_rope_head_dim", count) != count:
        fields.refuse(
            "qk_rope_head_dim", f"{count}, as partial_rotary_factor says",
            fields.get("qk_rope_head_dim"),
        )  # fmt: skip
    return count


def positions(fields: Fields, kind: str) -> list[str]:
    """Rotations of layers with a window alone ("main"), or with a past ("compress")."""
    fields.skip("rope_scaling")
    base = fields.number("rope_theta", 10000.0)
    slow = fields.number("compress_rope_theta", 160000.0)
    given = (
        fields.get("rope_parameters", None) or fields.get("rope_scaling", None) or {}
    )
    if not isinstance(given, dict):
        fields.refuse("rope_parameters", "numbers by name", given)
    if "main" in given or "compress" in given:
        own = given.get(kind)
        if not isinstance(own, dict):
            fields.refuse("rope_parameters", f"one entry for {kind}", given)
    elif kind == "main":
        own = {"rope_theta": base}
    else:
        own = {**given, "rope_theta": slow}
    own = {k: v for k, v in own.items() if k != "partial_rotary_factor"}
    if own.get("rope_type", own.get("type")) == "yarn":
        own.setdefault("attention_factor", 1.0)  # and not the one of its factor
    node = {"rope_parameters": own}
    if "max_position_embeddings" in own:
        node["max_position_embeddings"] = own.pop("max_position_embeddings")
    return rope(Fields(node, fields.source), base=base, layout="interleaved")


def mixture(fields: Fields, *, is_hashed: bool) -> list[str]:
    rows = {"router__n_rows": fields.size("vocab_size")} if is_hashed else {}
    return part(
        "ffn",
        "moe_hash" if is_hashed else "moe_deepseek_v4",
        n_experts=fields.size("n_routed_experts", 256),
        n_shared=fields.get("n_shared_experts", 1) or 0,
        router__score=fields.expect(
            "scoring_func", "sqrtsoftplus", "sigmoid", default="sqrtsoftplus"
        ),
        router__top_k=fields.size("num_experts_per_tok", 6),
        router__renormalize=fields.get("norm_topk_prob", True),
        router__scale=float(fields.number("routed_scaling_factor", 1.5)),
        expert__limit=float(fields.number("swiglu_limit", 10.0)),
        **rows,
    )


def names(fields: Fields) -> Names:
    n, groups = fields.size("hc_mult", 4), fields.size("o_groups", 8)
    table = decoder(PRE) | attention(
        f"{LAYER}.self_attn", IN_MEMORY, "compressor.indexer", groups
    )
    table |= streams(f"{LAYER}.{{}}_hc.{{}}", n)
    mlp = f"{LAYER}.mlp"
    table |= gated("ffn/branch/shared", f"{mlp}.shared_experts")
    table |= router(f"{mlp}.gate", "e_score_correction_bias")

    hub = decoder({site: f"{site[: site.index('/')]}_norm" for site in PRE})
    hub |= attention(f"{LAYER}.attn", PUBLISHED, "indexer.compressor", groups)
    hub |= streams(f"{LAYER}.hc_{{}}_{{}}", n)
    ffn = f"{LAYER}.ffn"
    hub |= gated("ffn/branch/shared", f"{ffn}.shared_experts", NUMBERED)
    hub |= router(f"{ffn}.gate", "bias")
    hub["head/kernel"] = linear("head.weight")
    return Names(
        table | fused_experts(f"{mlp}.experts"),
        hub=hub | single_experts(f"{ffn}.experts", NUMBERED),
    )


# Our name -> theirs: in an attention, and in a compressor.
IN_MEMORY = {
    "q_down": "q_a_proj",
    "q_norm": "q_a_norm",
    "q_up": "q_b_proj",
    "kv": "kv_proj",
    "kv_norm": "kv_norm",
    "groups": "o_a_proj",
    "o": "o_b_proj",
    "sinks": "sinks",
    "compressor/kv": "kv_proj",
    "compressor/gate": "gate_proj",
    "compressor/norm": "kv_norm",
    "compressor/slots": "position_bias",
    "indexer/q": "compressor.indexer.q_b_proj",
    "indexer/weigh": "compressor.indexer.scorer.weights_proj",
}
PUBLISHED = {
    "q_down": "wq_a",
    "q_norm": "q_norm",
    "q_up": "wq_b",
    "kv": "wkv",
    "kv_norm": "norm",
    "groups": "wo_a",
    "o": "wo_b",
    "sinks": "attn_sink",
    "compressor/kv": "wkv",
    "compressor/gate": "wgate",
    "compressor/norm": "norm",
    "compressor/slots": "ape",
    "indexer/q": "indexer.wq_b",
    "indexer/weigh": "indexer.weights_proj",
}


def attention(
    theirs: str, called: dict[str, str], inner: str, n_groups: int
) -> dict[str, From]:
    """inner: where the compressor of the indexer is."""
    ours = "attn/branch"
    table = {
        f"{ours}/sinks": From(f"{theirs}.{called['sinks']}"),
        f"{ours}/output/groups/kernel": group_rows(
            f"{theirs}.{called['groups']}.weight", n_groups
        ),
        f"{ours}/output/o/kernel": linear(f"{theirs}.{called['o']}.weight"),
    }
    for name in ("q_down", "q_up", "kv", "indexer/q", "indexer/weigh"):
        table[f"{ours}/{name}/kernel"] = linear(f"{theirs}.{called[name]}.weight")
    for name in ("q_norm", "kv_norm"):
        table[f"{ours}/{name}/gain"] = From(f"{theirs}.{called[name]}.weight")
    for place, at in (("compressor", "compressor"), ("indexer/compressor", inner)):
        for name in ("kv", "gate"):
            of = called[f"compressor/{name}"]
            table[f"{ours}/{place}/{name}/kernel"] = linear(
                f"{theirs}.{at}.{of}.weight"
            )
        norm, slots = called["compressor/norm"], called["compressor/slots"]
        table[f"{ours}/{place}/norm/gain"] = From(f"{theirs}.{at}.{norm}.weight")
        table[f"{ours}/{place}/slots"] = From(f"{theirs}.{at}.{slots}")
    return table


def streams(theirs: str, n: int) -> dict[str, From]:
    """theirs: name with two gaps, for the sub-layer and for what it is."""
    table = {
        "ends/phi": stream_map("model.hc_head.hc_fn", n),
        "ends/bias": stream_bias("model.hc_head.hc_base", n),
        "ends/alpha": From("model.hc_head.hc_scale"),
    }
    for site in ("attn", "ffn"):
        fn, base, scale = (
            theirs.replace("{}", site, 1).replace("{}", what, 1)
            for what in ("fn", "base", "scale")
        )
        table[f"{site}_joint/phi"] = stream_map(fn, n)
        table[f"{site}_joint/bias"] = stream_bias(base, n)
        table[f"{site}_joint/alpha"] = From(scale)
    return table


def router(theirs: str, bias: str) -> dict[str, From]:
    ours = "ffn/branch/router"
    return {
        f"{ours}/kernel": linear(f"{theirs}.weight"),
        f"{ours}/balance_bias": From(f"{theirs}.{bias}"),
        f"{ours}/table": From(f"{theirs}.tid2eid", dtype=np.int64),
    }


FAMILY = Family(("deepseek_v4",), overrides, names)
