"""Shapes of the points, and that the two models written here are the same model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.points import POINTS, Point
from benchmarks.text import Windows, write_text
from benchmarks.workers import bare
from benchmarks.workers.ours_config import overrides, state_bytes
from experiments import api
from experiments.group import plan

TINY = POINTS["tiny"]


def test_flops_and_parameters_are_those_of_the_shapes_multiplied_out():
    # tiny by hand: a layer has q, k, v, o of 32 x 32 and 32 x 128, 128 x 32; the table
    # is 256 x 32; 256 tokens. Scores and their product with v: 2 * 2 * T * D per token
    # and layer forward, twice that backward.
    matmul = 2 * (4 * 32 * 32 + 2 * 32 * 128) + 256 * 32
    assert TINY.matmul_params == matmul
    attention = 3 * 2 * 2 * 32 * 32 * 2
    assert TINY.flops() == 256 * (6 * matmul + attention)


@pytest.mark.parametrize(
    "name, gigaflops", [("tiny", 0.057), ("small", 1.11), ("base", 11.7), ("big", 84.6)]
)
def test_points_cost_what_was_published_for_them(name, gigaflops):
    assert POINTS[name].flops() / 1e9 == pytest.approx(gigaflops, rel=0.01)


def test_a_point_survives_the_command_line():
    assert Point.from_json(TINY.to_json()) == TINY


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.bin", 50_000)


def test_text_has_the_size_asked_for_and_windows_are_cut_from_its_start(text):
    content = np.fromfile(text, np.uint8)
    assert content.size == 50_000
    windows = Windows(str(text), 64, 8)
    batch = windows.next()
    assert batch.shape == (64, 9)
    joined = content[: int(0.95 * 50_000)].tobytes()
    assert all(row.astype(np.uint8).tobytes() in joined for row in batch)
    assert not np.array_equal(batch, windows.next())


def test_bare_prototype_computes_the_framework_s_loss_and_gradient(text):
    (group,) = plan(api.compose([*overrides(TINY, str(text)), "steps=1"]))
    program = group.programs.program
    values = group.members[0].config.traced_values()
    state = jax.jit(program.init)(jnp.uint32(0), values, jnp.int32(1))
    names = {
        "table": "table",
        "final_norm/gain": "final_gain",
        "final_norm/bias": "final_bias",
    }
    for site, maps in (("attn", ("q", "k", "v", "o")), ("ffn", ("up", "down"))):
        at = f"blocks/layers/{site}"
        names |= {f"{at}/branch/{m}/kernel": m for m in maps}
        names |= {f"{at}/in_norm/{x}": f"{site}_{x}" for x in ("gain", "bias")}
    assert names.keys() == state.params.keys()
    # Ones and zeros would hide a gain or a bias at the wrong place.
    keys = jax.random.split(jax.random.key(1), len(names))
    params = {
        path: state.params[path] + 0.1 * jax.random.normal(k, state.params[path].shape)
        for path, k in zip(names, keys, strict=True)
    }
    batch = jnp.asarray(Windows(str(text), 8, 32).next(), jnp.int32)

    def loss_and_grads(loss, params):
        return jax.jit(jax.value_and_grad(loss))(params)

    ours, our_grads = loss_and_grads(
        lambda p: program.layout.merge(p, state.rest).loss(batch)[0], params
    )
    theirs, their_grads = loss_and_grads(
        lambda p: bare.loss(TINY, p, batch),
        {names[path]: x for path, x in params.items()},
    )

    assert ours == pytest.approx(float(theirs), rel=1e-5)
    for path, name in names.items():
        scale = jnp.max(jnp.abs(our_grads[path]))
        np.testing.assert_allclose(
            our_grads[path] / scale, their_grads[name] / scale, atol=1e-5, err_msg=path
        )
    shapes = jax.eval_shape(lambda: bare.init(TINY))
    assert {k: v.shape for k, v in shapes.items()} == {
        names[path]: x.shape for path, x in params.items()
    }
    sizes = jax.tree.leaves((state.params, state.opt))
    assert state_bytes(TINY) == pytest.approx(sum(x.nbytes for x in sizes), abs=100)


def test_one_step_of_the_prototype_is_one_step_of_the_framework_s_adamw(text):
    """First update of AdamW by hand: -rate (g / (|g| + eps) + decay p)."""
    data = jnp.asarray(np.fromfile(text, np.uint8))
    params = jax.jit(lambda: bare.init(TINY))()
    zeros = jax.tree.map(jnp.zeros_like, params)
    key = jax.random.key(0)
    step = jax.jit(lambda carry: bare.step(TINY, data, key, carry, None))
    (new, *_, count), _ = step((params, zeros, zeros, jnp.int32(0)))
    assert count == 1
    for name, p in params.items():
        moved = np.asarray(new[name] - p, np.float64)
        if name == "table":  # the tied head gives every row a gradient, none decays
            np.testing.assert_allclose(np.abs(moved).max(), 1e-3, rtol=1e-2)
        decay = 1e-3 * 0.1 * np.asarray(p) if name in bare.DECAYED else 0.0
        sign = np.abs(moved + decay)
        assert np.quantile(sign, 0.9) == pytest.approx(1e-3, rel=2e-2), name
