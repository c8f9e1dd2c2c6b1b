"""Placements: every conf/placement/*.yaml against the oracle, and what each promises."""

import functools
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from omegaconf import OmegaConf

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.attention.qkv_norm import QKVNormAttention
from blocks.ffn.mlp import MLP
from blocks.inits.xavier import XavierGaussian
from blocks.language_model import LanguageModel
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import attention as attention_oracle
from blocks.oracle import ffn as ffn_oracle
from blocks.oracle import language_model as oracle
from blocks.oracle import norms as norm_oracle
from blocks.oracle import residual as residual_oracle
from blocks.parameters import layout_of
from blocks.placement import Placement
from blocks.placements.by_sublayer import BySublayer
from blocks.placements.hybrid import Hybrid
from blocks.placements.mix import Mix
from blocks.residual.add import Add

CONF = Path(__file__).parents[2] / "conf"
CHOICES = sorted(path.stem for path in (CONF / "placement").glob("*.yaml"))
N_HEADS, D_HEAD, D_MODEL, VOCAB = 2, 4, 6, 11
rmsnorm = functools.partial(norm_oracle.rmsnorm, eps=1e-6)


def node(group, choice):
    return OmegaConf.to_container(OmegaConf.load(CONF / group / f"{choice}.yaml"))


def chosen(choice):
    """(placement, residual choice, whether the attention normalizes q, k and v)."""
    found = node("placement", choice)
    overrides = [o.popitem() for o in found.get("defaults", [])]
    overrides = {k.removeprefix("override /"): v for k, v in overrides}
    placed = found["model"]["placement"] if "model" in found else found
    placement = hydra.utils.instantiate(placed)
    assert overrides.get("attention", "qkv_norm") == "qkv_norm"
    return placement, overrides.get("residual", "add"), "attention" in overrides


def factory(choice, **keywords):
    placement, residual, has_qkv_norm = chosen(choice)
    attention = functools.partial(
        QKVNormAttention if has_qkv_norm else GroupedQueryAttention,
        qk_norm=RMSNorm if has_qkv_norm else None,
    )
    settings = dict(
        n_layers=2,
        n_heads=N_HEADS,
        d_head=D_HEAD,
        d_ff=10,
        norm=RMSNorm,
        attention=attention,
        ffn=MLP,
        placement=placement,
        residual=hydra.utils.instantiate(node("residual", residual)),
        init=XavierGaussian(),
    )
    return functools.partial(LanguageModel, VOCAB, D_MODEL, **settings | keywords)


def specs_of(make):
    return layout_of(lambda: make(rngs=nnx.Rngs(0))).specs


def random_params(specs):
    rng = np.random.default_rng(0)
    params = {}
    for path, spec in specs.items():
        x = rng.normal(size=spec.shape)
        is_map = spec.role in ("matrix", "head")
        params[path] = x / np.sqrt(spec.shape[-2]) if is_map else x
        if spec.role in ("gain", "scale"):
            params[path] = rng.uniform(0.5, 1.5, spec.shape)
    return params


@pytest.mark.parametrize("choice", [c for c in CHOICES if "hybrid" not in c])
def test_every_choice_equals_the_oracle(float64, choice):
    # Mix-LN needs four layers for one that is Post-LN.
    n_layers = 4 if choice == "mix" else 2
    make = factory(choice, n_layers=n_layers, dtype="float64")
    layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
    params = random_params(layout.specs)
    tokens = np.random.default_rng(1).integers(0, VOCAB, 4)

    logits = jax.jit(lambda p: layout.merge(p, {})(tokens[None])[0])(params)
    placement, residual, _ = chosen(choice)
    keywords = {k: v for k, v in node("residual", residual).items() if k[0] != "_"}
    keywords |= dict(n_layers=n_layers, per_block=2, n_sublayers=2 * n_layers)
    name = {"sub": "sub_ln"}.get(residual, residual)
    _, expected = oracle.language_model(
        tokens,
        params,
        placement=placement,
        norm=rmsnorm,
        attention=functools.partial(attention_oracle.attention, n_heads=N_HEADS),
        ffn=ffn_oracle.mlp,
        scheme=None if residual == "add" else residual_oracle.scheme(name, **keywords),
    )
    scale = np.abs(expected).max()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize("choice", ["hybrid", "hybrid_star"])
def test_hybrid_norm_is_written_out(float64, choice):
    """h = N(x + attention(x)), y = h + ffn(h); q, k and v of a head normalized."""
    make = factory(choice, n_layers=3, dtype="float64")
    layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
    params = random_params(layout.specs)
    tokens = np.random.default_rng(1).integers(0, VOCAB, 4)
    logits = jax.jit(lambda p: layout.merge(p, {})(tokens[None])[0])(params)

    x = params["table"][tokens]
    for number, layer in enumerate(oracle.layers(params)):
        is_pre = choice == "hybrid_star" and number == 0

        def at(path, x, layer=layer):
            return rmsnorm(x, gain=layer[f"{path}/gain"])

        def attention(u, layer=layer, at=at):
            q, k, v, o = (layer[f"attn/branch/{m}/kernel"] for m in "qkvo")
            heads = []
            for h in range(N_HEADS):
                own = slice(h * D_HEAD, (h + 1) * D_HEAD)
                heads.append(
                    attention_oracle.one_head(
                        at("attn/branch/q_norm", u @ q[:, own]),
                        at("attn/branch/k_norm", u @ k[:, own]),
                        at("attn/branch/v_norm", u @ v[:, own]),
                        scale=D_HEAD**-0.5,
                    )
                )
            return np.concatenate(heads, axis=-1) @ o

        up, down = (layer[f"ffn/branch/{m}/kernel"] for m in ("up", "down"))
        if is_pre:
            x = x + attention(at("attn/in_norm", x))
            x = x + ffn_oracle.gelu(at("ffn/in_norm", x) @ up) @ down
        else:
            h = at("attn_joint/post_norm", x + attention(x))
            x = h + ffn_oracle.gelu(h @ up) @ down
    expected = rmsnorm(x, gain=params["final_norm/gain"]) @ params["head/kernel"]
    scale = np.abs(expected).max()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-12 * scale)


# -- which norms there are -------------------------------------------------------------

# choice -> (norms of attention, norms of the feed-forward, those of the ends)
NORMS = {
    "none": ("", "", "final"),
    "pre": ("in", "in", "final"),
    "post": ("post", "post", ""),
    "sandwich": ("in out", "in out", "final"),
    "peri": ("in out", "in out", "final"),
    "peri_embedding": ("in out", "in out", "embedding final"),
    "out": ("out", "out", "final"),
    "sub": ("in inner", "in inner", "final"),
    "normformer": ("in out", "in inner", "final"),
    "deepnorm": ("post", "post", ""),
    "residual_dual": ("post", "post", "ends"),
    "hybrid": ("post q k v", "", "final"),
    "layernorm_scaling": ("post", "post", "final"),
    "b2t": ("post", "post", ""),
    "keel": ("in post", "in post", ""),
    "admin": ("post", "post", ""),
    "rezero": ("", "", ""),
    "fixup": ("", "", ""),
}


def test_every_choice_is_listed():
    # mix, hybrid_star and parallel have tests of their own below.
    assert set(CHOICES) - {"mix", "hybrid_star", "parallel"} == NORMS.keys()


@pytest.mark.parametrize("choice", NORMS)
def test_norms_sit_where_the_paper_has_them(choice):
    """The Post-LN family has no final norm; everything else has one."""
    gains = {p.rpartition("/")[0] for p, s in specs_of(factory(choice)).items()
             if s.role == "gain"}  # fmt: skip
    places = {
        "in": "blocks/layers/{0}/in_norm",
        "inner": "blocks/layers/{0}/branch/inner_norm",
        "out": "blocks/layers/{0}/out_norm",
        "post": "blocks/layers/{0}_joint/post_norm",
        "embedding": "embedding_norm",
        "final": "final_norm",
        "ends": "ends/norm",
    }
    places |= {name: f"blocks/layers/{{0}}/branch/{name}_norm" for name in "qkv"}
    expected = {
        places[name].format(sublayer)
        for sublayer, names in zip(("attn", "ffn", ""), NORMS[choice], strict=True)
        for name in names.split()
    }
    assert gains == expected


def norms_of_blocks(choice, n_layers):
    """Per block the sites that have a norm, in the order of the layers."""
    specs = specs_of(factory(choice, n_layers=n_layers))
    arrays = {p: np.zeros(s.shape) for p, s in specs.items() if s.role == "gain"}
    return [
        {path.rpartition("/")[0] for path in layer if "branch" not in path}
        for layer in oracle.layers(arrays)
    ]


PRE = {"attn/in_norm", "ffn/in_norm"}
POST = {"attn_joint/post_norm", "ffn_joint/post_norm"}


@pytest.mark.parametrize("n_layers, n_post", [(3, 0), (4, 1), (7, 1), (12, 3)])
def test_mix_is_post_in_the_first_quarter(n_layers, n_post):
    # Published: 3 of 12 blocks.
    assert norms_of_blocks("mix", n_layers) == n_post * [POST] + (n_layers - n_post) * [
        PRE
    ]
    assert "final_norm/gain" in specs_of(factory("mix", n_layers=n_layers))


def test_hybrid_star_is_pre_in_block_0():
    hybrid = {"attn_joint/post_norm"}
    assert norms_of_blocks("hybrid_star", 3) == [PRE, hybrid, hybrid]
    assert norms_of_blocks("hybrid", 3) == 3 * [hybrid]


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_mix_of_one_kind_is_one_stack(fraction):
    specs = specs_of(factory("mix", placement=Mix(fraction=fraction)))
    kind = "attn_joint/post_norm" if fraction else "attn/in_norm"
    assert f"blocks/layers/{kind}/gain" in specs


def test_placements_are_values():
    # Layers of equal placement share a stack: they are compared and hashed.
    for placement in (Placement(), BySublayer(), Mix(), Hybrid(first_pre=True)):
        assert placement == type(placement)(
            **{f: getattr(placement, f) for f in placement.__dataclass_fields__}
        )
        assert len({placement, placement}) == 1
        at = placement.at("attn", 0, 4)
        assert isinstance(at, Placement)
        assert (Mix().varies, Hybrid(first_pre=True).varies) == (True, True)
        assert (BySublayer().varies, Hybrid().varies) == (False, False)


@pytest.mark.parametrize("fraction", [-0.1, 1.5])
def test_a_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(ValueError, match=f"fraction.*{fraction}"):
        Mix.check(fraction=fraction)


# -- what follows from them ------------------------------------------------------------


def test_sandwich_is_peri():
    assert chosen("sandwich")[0] == chosen("peri")[0]
    assert chosen("peri_embedding")[0] == Placement(out_norm=True, embedding_norm=True)


@pytest.mark.parametrize("choice", ["out", "peri"])
def test_normalized_branches_add_one_each_to_the_mean_square(choice):
    # The stream's mean square after l sub-layers is that of the embedding + l, whatever
    # the scale of the weights (arXiv 2502.02732).
    keywords = {**factory(choice).keywords, "d_ff": 64}
    make = functools.partial(LanguageModel, 256, 64, **keywords)

    @jax.jit
    def measured():
        model = make(rngs=nnx.Rngs(0))
        return model.hidden(jnp.arange(256)[None], jnp.zeros((2, 2)))[1]

    found = measured()
    np.testing.assert_allclose(found["branch_mean_square"], 1.0, atol=2e-3)
    growth = found["stream_mean_square"].reshape(-1) - found["input_mean_square"]
    # Cross terms of 256 * 64 entries: 2 / sqrt(16384) = 0.016 of the product, if tokens
    # were independent; attention averages over tokens and makes them less so.
    np.testing.assert_allclose(growth, np.arange(1, 5), rtol=0.2)


def test_parallel_gives_the_sum_of_both_branches_to_one_norm():
    specs = specs_of(factory("parallel"))
    gains = {p for p, s in specs.items() if s.role == "gain"}
    assert gains == {"blocks/layers/both/in_norm/gain", "final_norm/gain"}
    assert "blocks/layers/both/branch/attn/q/kernel" in specs
    assert "blocks/layers/both/branch/ffn/up/kernel" in specs


def test_add_is_what_the_placements_of_one_stream_use():
    for choice in ("none", "pre", "post", "sandwich", "peri", "out", "hybrid", "mix"):
        assert chosen(choice)[1] == "add"
        assert isinstance(factory(choice).keywords["residual"], Add)
