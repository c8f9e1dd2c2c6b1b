"""A text that goes on token by token is the text as a whole."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from omegaconf import OmegaConf

from blocks import generation
from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.attention.short_convolution import ShortConvolution
from blocks.cache import takes_cache
from blocks.generation import check, generate, likeliest
from blocks.modes import set_training
from blocks.parameters import layout_of, path_name
from blocks.positions.learned import LearnedPositions
from blocks.positions.place import Place
from blocks.positions.rope import Rope
from experiments import api
from tests.blocks.token_by_token import whole_and_token_by_token

CONF = Path(__file__).parents[2] / "conf"
ATTENTIONS = sorted(path.stem for path in (CONF / "attention").glob("*.yaml"))
VOCAB = 13
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, 10))
# So that ten tokens feel them. Three is no divisor of the prompt, nor one more.
SMALL = {"window": 3, "chunk": 3, "softcap": 1.5}
MODEL = (
    "model=tiny",
    "model.d_model=16",
    "model.n_heads=4",
    "model.d_head=8",
    "model.d_ff=16",
    f"model.vocab_size={VOCAB}",
)


@functools.cache
def layout(*overrides):
    (config,) = api.compose([*MODEL, *overrides])
    make = config.model.build(config.traced_values(), "model")
    return layout_of(lambda: make(rngs=nnx.Rngs(0)))


def drawn(*overrides, dtype=jnp.float32):
    """The model with random parameters, and state of ones."""
    found = layout(*overrides, f"model.dtype={jnp.dtype(dtype).name}")
    rng = np.random.default_rng(1)
    params = {
        path: jnp.asarray(0.5 * rng.normal(size=spec.shape), dtype)
        for path, spec in found.specs.items()
    }
    state = {
        path_name(path): jnp.ones(v.shape, v.dtype)
        for path, v in nnx.to_flat_state(found.state)
    }
    return found.merge(params, state)


def of_attention(choice):
    """Overrides that choose an attention, small where it has limits."""
    node = OmegaConf.load(CONF / "attention" / f"{choice}.yaml")
    small = [k for k in SMALL if node.get(k) is not None]
    return f"attention={choice}", *(f"model.attention.{k}={SMALL[k]}" for k in small)


def assert_goes_on(*overrides, dtype, of_largest):
    model = drawn(*overrides, dtype=dtype)
    whole, one_by_one = whole_and_token_by_token(model, jnp.asarray(TOKENS))
    assert whole.dtype == dtype
    atol = of_largest * np.abs(whole).max()
    np.testing.assert_allclose(one_by_one, whole, rtol=0, atol=atol)


def choices(*slow):
    """All attentions; those that others have the code of are for few to run."""
    return [
        pytest.param(choice, marks=pytest.mark.slow if choice in slow else ())
        for choice in ATTENTIONS
    ]


# The released models have theirs too: tests/blocks/released/test_generation.py.
SIBLINGS = ("cosine", "gated", "gemma2", "gpt_oss", "llama4", "olmo2", "qkv_norm")
SIBLINGS = (*SIBLINGS, "qwen2", "qwen3", "sliding", "uniform")


@pytest.mark.parametrize("choice", choices(*SIBLINGS))
def test_logits_are_those_of_the_whole_text(choice, float64):
    """Every conf/attention/*.yaml is found; one that cannot says so."""
    overrides = of_attention(choice)
    ((_, branch),) = generation.attentions(drawn(*overrides))
    if takes_cache(branch):
        assert_goes_on(*overrides, dtype=np.float64, of_largest=1e-12)
    else:
        with pytest.raises(ValueError, match=type(branch).__name__):
            check(drawn(*overrides))


@pytest.mark.parametrize("choice", choices(*(set(ATTENTIONS) - {"mla"})))
def test_logits_in_float32(choice):
    overrides = of_attention(choice)
    ((_, branch),) = generation.attentions(drawn(*overrides))
    if takes_cache(branch):
        assert_goes_on(*overrides, dtype=np.float32, of_largest=1e-5)


def slow(*overrides):
    return pytest.param(overrides, marks=pytest.mark.slow)


ROPE = "model.attention.positions"
NO_ROPE = "positions=none"
DELTA = "+attention@model.pattern.attention=gated_deltanet"


@pytest.mark.parametrize(
    "overrides",
    [
        ("positions=query_temperature", f"{ROPE}.period=3", "model.n_kv_heads=2"),
        (
            NO_ROPE,
            "embedding_positions=learned",
            "model.embedding_positions.max_len=13",
        ),
        ("pattern=every_nth", "model.pattern.every=2", "model.n_layers=5", DELTA),
        ("attention=value_residual", "placement=parallel"),
        slow("positions=rope_partial", f"{ROPE}.fraction=0.5"),
        slow("positions=rope_yarn", f"{ROPE}.scaling.original_len=4"),
        slow(NO_ROPE, "embedding_positions=sinusoidal"),
        slow("attention=mla", "model.attention.window=3", "model.attention.q_rank=6"),
        slow("attention=gated_deltanet", "model.attention.kernel_size=1"),
        slow("model.n_kv_heads=2", "placement=parallel"),
        slow("residual=mhc"),
        slow("residual=denseformer", "placement=peri"),
        slow("ffn=moe_deepseek"),
    ],
    ids=" ".join,
)
def test_so_do_positions_patterns_and_residual_schemes(overrides, float64):
    assert_goes_on(*overrides, dtype=np.float64, of_largest=1e-12)


def test_the_cache_of_a_layer_is_what_its_attention_says(float64):
    """Latent attention keeps its latent and one rope key; delta rules keep no token."""
    place = Place(0, 9)

    def shapes(*overrides):
        model = drawn(*overrides, dtype=np.float64)
        run = functools.partial(generation.continued, model, place=place)
        _, kept = jax.eval_shape(run, jnp.asarray(TOKENS[:, :4]))
        return jax.tree.map(jnp.shape, kept["layers"]["attn"])

    assert shapes("model.n_kv_heads=2") == {"k": (2, 2, 2, 9, 8), "v": (2, 2, 2, 9, 8)}
    mla = shapes("attention=mla", "model.attention.kv_rank=6")
    assert mla == {"latent": (2, 2, 1, 9, 6), "k_rope": (2, 2, 1, 9, 8)}
    convs = {name: {"last": (2, 2, 3, 32)} for name in "qkv"}
    delta = shapes("attention=gated_deltanet")
    assert delta == {**convs, "state": (2, 2, 4, 8, 8)}


# -- greedy generation -------------------------------------------------------------


PROMPT, N_TOKENS = [3, 1, 4], 9


def speaking():
    """A model that no other test file has."""
    return drawn("attention=gemma2", "model.attention.window=3", "model.d_ff=24")


def test_greedy_tokens_are_those_of_full_forward_passes_and_a_step_is_one_program():
    """One program for the prompt, one for each token behind it."""
    model = speaking()
    before = likeliest._cache_size()
    found = list(generate(model, PROMPT, N_TOKENS))
    assert likeliest._cache_size() == before + 2
    graphdef, arrays = nnx.split(model)
    run = jax.jit(lambda arrays, tokens: nnx.merge(graphdef, arrays)(tokens))
    text = list(PROMPT)
    for n in range(len(PROMPT), len(PROMPT) + N_TOKENS):
        padded = jnp.asarray([text + [0] * (len(PROMPT) + N_TOKENS - n)])
        text.append(int(jnp.argmax(run(arrays, padded)[0, n - 1])))
    assert found == text[len(PROMPT) :]
    assert len(set(found)) > 2, "a text that says nothing compares nothing"


def test_a_text_ends_with_the_token_that_stops_it():
    free = list(generate(speaking(), PROMPT, N_TOKENS))
    last = free.index(free[4])
    stopped = generate(speaking(), PROMPT, N_TOKENS, stop=[free[4]])
    assert list(stopped) == free[: last + 1]


def test_the_model_is_left_as_it_is():
    model = drawn("norm=ema_blend_input")
    set_training(model, True)
    graphdef, _ = nnx.split(model)
    generate(model, PROMPT, 3)
    assert nnx.split(model)[0] == graphdef


@pytest.mark.parametrize(
    ("prompt", "n_tokens", "message"),
    [
        ([], 3, "at least one token to go on from, got none"),
        ([1, VOCAB], 3, r"tokens in 0 .. 12, the model's vocabulary, got 13"),
        ([-1], 3, "got -1"),
        ([1], 0, "n_tokens must be at least 1, got 0"),
    ],
)
def test_a_prompt_that_means_nothing_is_refused(prompt, n_tokens, message):
    with pytest.raises(ValueError, match=message):
        generate(drawn(), prompt, n_tokens)


def test_a_text_longer_than_learned_positions_is_refused():
    model = drawn(
        NO_ROPE, "embedding_positions=learned", "model.embedding_positions.max_len=8"
    )
    with pytest.raises(ValueError, match="expected at most 8 tokens, got 9"):
        list(generate(model, [1, 2, 3], 6))


# -- what cannot go on with a text -------------------------------------------------


class NoCache(GroupedQueryAttention):
    """Of a newcomer, who has not thought of this."""

    def __call__(self, x, shape):
        return super().__call__(x, shape)


class NoPlace(Rope):
    """Likewise."""

    def __call__(self, q, k):
        return super().__call__(q, k)


class NoPlaceEmbedded(LearnedPositions):
    """Likewise."""

    def __call__(self, x, shape):
        return super().__call__(x, shape)


def with_part(attribute, part, *overrides):
    """The model in which every such part is another class of the same arrays."""
    model = drawn(*overrides)
    for _, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Module) and hasattr(node, attribute):
            getattr(node, attribute).__class__ = part
    return model


LEARNED = (
    NO_ROPE,
    "embedding_positions=learned",
    "model.embedding_positions.max_len=8",
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: drawn("model.attention.causal=false"),
            "blocks/layers/attn/branch: GroupedQueryAttention sees later tokens",
        ),
        (
            lambda: drawn("placement=parallel", "model.attention.causal=false"),
            "blocks/layers/both/branch/attn: GroupedQueryAttention sees later tokens",
        ),
        (
            lambda: drawn("norm=batchnorm"),
            "blocks/layers/.*_norm: BatchNorm looks over all tokens at once",
        ),
        (
            lambda: with_part("positions", NoPlace),
            r"blocks/layers/attn/branch/positions: NoPlace starts at the first token",
        ),
        (
            lambda: with_part("embedding_positions", NoPlaceEmbedded, *LEARNED),
            "embedding_positions: NoPlaceEmbedded starts at the first token",
        ),
        (lambda: ShortConvolution(3, rngs=nnx.Rngs(0)), "not ShortConvolution"),
    ],
    ids=["both ways", "parallel", "mixes", "positions", "embedded", "no model"],
)
def test_parts_that_cannot_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        generate(make(), [1, 2], 3)


def test_an_attention_without_a_cache_is_named():
    model = drawn()
    model.blocks.layers.attn.branch.__class__ = NoCache
    with pytest.raises(
        ValueError, match="attn/branch: NoCache keeps nothing of earlier"
    ):
        generate(model, [1, 2], 3)
