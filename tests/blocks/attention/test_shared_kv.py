"""Shared keys and values beyond the contract: groups, positions, entries, choices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.compression import Compressor, OverlappingCompressor
from blocks.attention.grouped_output import GroupedOutput
from blocks.attention.indexer import Indexer
from blocks.attention.shared_kv import SharedKeyValueAttention, closed_windows
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import norms, shared_kv
from blocks.positions.rope import Rope

D_MODEL, N_HEADS, SEQ = 12, 4, 11
SMALL = dict(
    d_head=6,
    q_rank=5,
    d_rope=4,
    window=3,
    n_groups=2,
    o_rank=3,
    latent_norm=RMSNorm,
    head_norm=functools.partial(RMSNorm, gain="none"),
    positions=functools.partial(Rope, layout="interleaved", base=50.0),
)
sparse = functools.partial(OverlappingCompressor, rate=2)
few = functools.partial(Indexer, n_heads=3, d_head=8, top_k=2)
X = np.random.default_rng(0).normal(size=(SEQ, D_MODEL))


def make(**keywords):
    keywords = {**SMALL, **keywords}
    return SharedKeyValueAttention(D_MODEL, N_HEADS, **keywords, rngs=nnx.Rngs(0))


def run(attention, x=X, seq=SEQ):
    return jax.jit(lambda x: attention(x, (len(x) // seq, seq)))(jnp.asarray(x))


def turned(x, at):
    """Pairs (2 i, 2 i + 1) of rows as complex numbers, base 50."""
    pairs = x[:, 0::2] + 1j * x[:, 1::2]
    n = pairs.shape[1]
    angle = np.outer(list(at), 50.0 ** (-np.arange(n) / n))
    pairs = pairs * np.exp(1j * angle)
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)


@pytest.mark.parametrize("past", ["none", "heavy", "sparse"])
def test_equals_the_oracle(float64, in_float64, weights, past):
    parts = {
        "none": {},
        "heavy": {"compressor": functools.partial(Compressor, rate=4)},
        "sparse": {"compressor": sparse, "indexer": few},
    }[past]
    attention = in_float64(
        nnx.eval_shape(lambda: make(**parts, inner_norm=RMSNorm, scale=0.3))
    )

    def norm(module):
        gain = np.asarray(module.gain[...])
        return functools.partial(norms.rmsnorm, gain=gain, eps=1e-6)

    def entries(module):
        return dict(
            kv=weights(module.kv),
            gate=weights(module.gate),
            slots=np.asarray(module.slots[...]),
            norm=norm(module.norm),
            rate=module.rate,
            overlapping=isinstance(module, OverlappingCompressor),
        )

    settings = {}
    if past != "none":
        settings["compressor"] = entries(attention.compressor)
    if past == "sparse":
        settings["indexer"] = dict(
            q=weights(attention.indexer.q),
            weigh=weights(attention.indexer.weigh),
            compressor=entries(attention.indexer.compressor),
            n_heads=3,
            top_k=2,
        )
    expected = shared_kv.shared_kv_attention(
        X,
        **{
            name: weights(getattr(attention, name)) for name in ("q_down", "q_up", "kv")
        },
        **{n: norm(getattr(attention, n)) for n in ("q_norm", "kv_norm", "inner_norm")},
        head_norm=functools.partial(norms.rmsnorm, eps=1e-6),
        groups=np.asarray(attention.output.groups.kernel[...]),
        o=weights(attention.output.o),
        sinks=np.asarray(attention.sinks[...]),
        n_heads=N_HEADS,
        d_rope=4,
        window=3,
        scale=0.3,
        positions=turned,
        **settings,
    )
    np.testing.assert_allclose(run(attention), expected, rtol=1e-10, atol=1e-11)


def test_only_distances_are_known(float64, in_float64):
    """Tokens that come later in a longer text, behind others out of sight."""
    attention = in_float64(nnx.eval_shape(make))
    later = np.concatenate([np.ones((5, D_MODEL)), X])
    # Of the last tokens the window of three holds the same.
    expected = run(attention)[2:]
    np.testing.assert_allclose(run(attention, later, 16)[7:], expected, rtol=1e-9)
    still = make(positions=None)
    assert still.positions is None
    assert run(still).shape == X.shape


def test_an_entry_is_seen_when_its_window_is_over():
    expected = [[0, 0], [0, 0], [1, 0], [1, 0], [1, 0], [1, 1], [1, 1]]
    np.testing.assert_array_equal(closed_windows(7, 3), expected)


def test_which_tokens_are_in_an_entry(float64, in_float64):
    for made, first in ((Compressor, 4), (OverlappingCompressor, 2)):
        compressor = in_float64(
            nnx.eval_shape(
                lambda made=made: made(D_MODEL, 6, RMSNorm, rate=2, rngs=nnx.Rngs(0))
            )
        )
        gradient = jax.jit(
            jax.grad(lambda x, c=compressor: jnp.sum(c(x, (1, SEQ))[0, 2] ** 2))
        )(jnp.asarray(X))
        met = np.flatnonzero(np.abs(gradient).max(axis=1) > 1e-12)
        np.testing.assert_array_equal(met, range(first, 6))


def test_the_first_entry_of_two_windows_is_of_one(float64, in_float64):
    """With gates alike the entry is the mean of what is there, and of nothing else."""
    compressor = in_float64(
        nnx.eval_shape(
            lambda: OverlappingCompressor(
                D_MODEL,
                6,
                functools.partial(RMSNorm, gain="none"),
                rate=2,
                rngs=nnx.Rngs(0),
            )
        )
    )
    compressor.gate.kernel.set_value(jnp.zeros((D_MODEL, 12)))
    compressor.slots.set_value(jnp.zeros((2, 12)))
    entries = compressor(jnp.asarray(X), (1, SEQ))[0]
    assert entries.shape == (5, 6)  # the eleventh token is in none
    values = X @ np.asarray(compressor.kv.kernel[...])
    means = [values[0:2, 6:].mean(0), (values[0:2, :6] + values[2:4, 6:]).mean(0) / 2]
    np.testing.assert_allclose(entries[:2], norms.rmsnorm(np.array(means), eps=1e-6))


def test_fewer_tokens_than_an_entry_has_are_a_window_alone():
    parts = {"compressor": functools.partial(Compressor, rate=16)}
    plain, other = make(), make(**parts)
    x = np.float32(X)
    np.testing.assert_array_equal(run(plain, x), run(other, x))


def test_an_indexer_of_all_entries_chooses_none_away():
    every = functools.partial(few, top_k=99)
    x = np.float32(X)
    plain, all_of_them, some = (
        run(make(compressor=sparse, indexer=i), x) for i in (None, every, few)
    )
    np.testing.assert_allclose(plain, all_of_them, rtol=1e-5, atol=1e-7)
    assert np.abs(plain - some).max() > 1e-4 * np.abs(plain).max()


def test_no_gradient_reaches_the_indexer(float64, in_float64):
    attention = in_float64(nnx.eval_shape(lambda: make(compressor=sparse, indexer=few)))
    graphdef, params = nnx.split(attention)

    @jax.jit
    @jax.grad
    def gradient(params):
        y = nnx.merge(graphdef, params)(jnp.asarray(X), (1, SEQ))
        return jnp.sum(y**2)

    for path, variable in nnx.to_flat_state(gradient(params)):
        assert bool(np.any(variable[...])) == (path[0] != "indexer"), path


def test_each_group_of_heads_has_a_map_of_its_own(weights):
    output = GroupedOutput(6, 4, n_groups=3, rank=2, rngs=nnx.Rngs(0))
    kernels = np.asarray(output.groups.kernel[...], np.float64)
    assert kernels.shape == (3, 2, 2)
    assert output.groups.kernel.get_metadata()["n_stacked"] == 1
    assert len({k.tobytes() for k in kernels}) == 3
    y = np.random.default_rng(0).normal(size=(5, 6))
    narrow = [y[:, 2 * g : 2 * g + 2] @ kernels[g] for g in range(3)]
    expected = np.concatenate(narrow, axis=1) @ weights(output.o)[0]
    np.testing.assert_allclose(output(jnp.float32(y)), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "keywords, message",
    [
        (dict(n_kv_heads=2), "n_kv_heads: all heads share one .* got 2"),
        (dict(n_groups=3), "n_heads=4 and n_groups=3"),
        (dict(d_rope=8), "d_rope=8 and d_head=6"),
        (dict(window=0), "window must be at least 1, got 0"),
        (dict(o_rank=0), "o_rank must be at least 1, got 0"),
        (dict(scale=-1.0), "scale must be positive and finite, got -1.0"),
        (dict(indexer=few), "indexer chooses entries of a compressor, got none"),
    ],
)
def test_what_has_no_meaning_is_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        make(**keywords)


@pytest.mark.parametrize(
    "made, keywords, message",
    [
        (Compressor, dict(rate=0), "rate must be at least 1, got 0"),
        (Indexer, dict(top_k=0), "top_k must be at least 1, got 0"),
    ],
)
def test_sizes_below_one_are_refused(made, keywords, message):
    with pytest.raises(ValueError, match=message):
        made.check(**keywords)
