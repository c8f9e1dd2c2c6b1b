"""The residual MLP: the oracle, its linear loss, and the depth law as in torch."""

import csv
import functools
import inspect
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from omegaconf import OmegaConf

from blocks.oracle import ffn as ffn_oracle
from blocks.oracle import norms as norm_oracle
from blocks.oracle.residual_mlp import linear_loss, residual_mlp
from blocks.parameters import layout_of
from blocks.placement import Placement
from blocks.residual_mlp import ResidualMLP

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
EVERYWHERE = Placement(
    in_norm=True,
    inner_norm=True,
    out_norm=True,
    post_norm=True,
    embedding_norm=True,
    final_norm=True,
)
ROWS, D_MODEL = 4, 6


def node(group, choice):
    return OmegaConf.to_container(OmegaConf.load(CONF / group / f"{choice}.yaml"))


def part(group, choice, **keywords):
    return hydra.utils.instantiate({**node(group, choice), **keywords})


def factory(
    d_model=D_MODEL,
    *,
    norm="layernorm",
    placement="pre",
    init="kaiming",
    residual="add",
    ffn=None,
    **keywords,
):
    """ResidualMLP with parts by the names of conf/, or given as they are."""

    def made(group, choice):
        return part(group, choice) if isinstance(choice, str) else choice

    return functools.partial(
        ResidualMLP,
        d_model,
        norm=made("norm", norm),
        placement=made("placement", placement),
        init=made("init", init),
        residual=made("residual", residual),
        ffn=ffn or part("ffn", "mlp", activation="relu"),
        **{"n_layers": 3, "d_ff": 10, **keywords},
    )


def layout_and_params(make, dtype="float32"):
    """The layout, and random parameters in which every site shows."""
    layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(0)
    draw = {
        "matrix": lambda shape: rng.normal(size=shape) / np.sqrt(shape[-2]),
        "gain": lambda shape: rng.uniform(0.7, 1.3, shape),
        "bias": lambda shape: rng.uniform(-0.3, 0.3, shape),
        "shift": lambda shape: rng.uniform(-0.3, 0.3, shape),
        "alpha": lambda shape: rng.uniform(0.4, 1.0, shape),
    }
    return layout, {
        path: jnp.asarray(draw[spec.role](spec.shape), dtype)
        for path, spec in layout.specs.items()
    }


def batch_of(dtype="float32", rows=ROWS, d_model=D_MODEL, seed=1):
    x, weights = np.random.default_rng(seed).normal(size=(2, rows, d_model))
    return {"x": jnp.asarray(x, dtype), "weights": jnp.asarray(weights, dtype)}


# -- the oracle ----------------------------------------------------------------------


def oracle_norm(choice):
    """The function of blocks.oracle.norms with the static keywords of the YAML."""
    function = getattr(norm_oracle, choice, None)
    assert function, f"blocks/oracle/norms.py has no function {choice}"
    accepted = inspect.signature(function).parameters
    learned = {"gain", "bias"}  # in a YAML these say whether there is one
    static = {k: v for k, v in node("norm", choice).items() if k in accepted}
    return functools.partial(
        function, **{k: v for k, v in static.items() if k not in learned}
    )


def assert_equals_the_oracle(make, **settings):
    """Output and loss in float64, to 1e-12 of the largest entry."""
    layout, params = layout_and_params(
        functools.partial(make, dtype="float64"), "float64"
    )
    batch = batch_of("float64")

    @jax.jit
    def run(params):
        model = layout.merge(params, {})
        return model(batch["x"])[0], model.loss(batch)[0]

    out, loss = run(params)
    assert (out.dtype, loss.dtype) == (jnp.float64, jnp.float64)
    expected = residual_mlp(
        np.asarray(batch["x"]),
        {path: np.asarray(x) for path, x in params.items()},
        **settings,
    )
    atol = 1e-12 * np.abs(expected).max()
    np.testing.assert_allclose(out, expected, rtol=0, atol=atol)
    wanted = linear_loss(expected, np.asarray(batch["weights"]))
    np.testing.assert_allclose(loss, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("norm", ("layernorm", "rmsnorm", "dyt", "derf"))
@pytest.mark.parametrize("placement", ("pre", "post", "peri"))
def test_every_placement_and_norm_equals_the_oracle(float64, placement, norm):
    assert_equals_the_oracle(
        factory(norm=norm, placement=placement),
        placement=part("placement", placement),
        norm=oracle_norm(norm),
        ffn=functools.partial(ffn_oracle.mlp, activation=ffn_oracle.relu),
    )


def test_another_norm_at_each_site_of_every_kind_equals_the_oracle(float64):
    assert_equals_the_oracle(
        factory(
            norm="derf",
            ffn_norm=part("norm", "rmsnorm"),
            final_norm=part("norm", "dyt"),
            placement=EVERYWHERE,
            residual=part("residual", "add", skip=1.7, branch_scale=0.6),
            ffn=part("ffn", "swiglu", bias=True),
        ),
        placement=EVERYWHERE,
        norm=oracle_norm("derf"),
        ffn_norm=oracle_norm("rmsnorm"),
        final_norm=oracle_norm("dyt"),
        ffn=ffn_oracle.swiglu,
        skip=1.7,
        branch_scale=0.6,
    )


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_gradients_equal_central_differences_of_the_oracle(float64, placement):
    # gelu, because a difference that steps over the corner of ReLU is no derivative.
    make = factory(placement=placement, ffn=part("ffn", "mlp"), dtype="float64")
    layout, params = layout_and_params(make, "float64")
    batch = batch_of("float64")
    gradients = jax.jit(jax.grad(lambda p: layout.merge(p, {}).loss(batch)[0]))(params)
    arrays = {path: np.asarray(x) for path, x in params.items()}
    x, weights = np.asarray(batch["x"]), np.asarray(batch["weights"])

    def loss(params):
        out = residual_mlp(
            x,
            params,
            placement=part("placement", placement),
            norm=oracle_norm("layernorm"),
            ffn=functools.partial(ffn_oracle.mlp, activation=ffn_oracle.gelu),
        )
        return linear_loss(out, weights)

    rng = np.random.default_rng(2)
    for path, gradient in gradients.items():
        direction = rng.normal(size=gradient.shape)
        up = loss({**arrays, path: arrays[path] + 1e-5 * direction})
        down = loss({**arrays, path: arrays[path] - 1e-5 * direction})
        found = np.sum(np.asarray(gradient) * direction)
        # Rounding of the loss divided by the step is 1e-11.
        np.testing.assert_allclose(
            found, (up - down) / 2e-5, rtol=1e-7, atol=1e-10, err_msg=path
        )


# -- loss and measurements -----------------------------------------------------------


def test_loss_is_linear_in_the_weights(float64):
    make = factory(dtype="float64")
    layout, params = layout_and_params(make, "float64")
    model = layout.merge(params, {})
    batch, other = batch_of("float64"), batch_of("float64", seed=2)["weights"]

    def loss(weights):
        return model.loss({"x": batch["x"], "weights": weights})[0]

    w = batch["weights"]
    np.testing.assert_allclose(
        loss(2 * w - 3 * other), 2 * loss(w) - 3 * loss(other), rtol=1e-12
    )
    # Its gradient in the weights is the output over the number of entries.
    np.testing.assert_allclose(
        jax.grad(loss)(w), model(batch["x"])[0] / (ROWS * D_MODEL), rtol=1e-12
    )


def test_rows_do_not_meet():
    layout, params = layout_and_params(factory(placement=EVERYWHERE))
    model = layout.merge(params, {})
    gradient = jax.grad(lambda x: jnp.sum(model(x)[0][1] ** 2))(batch_of()["x"])
    assert (gradient[jnp.array([0, 2, 3])] == 0).all()
    assert (gradient[1] != 0).any()


def test_stream_is_measured_per_layer():
    layout, params = layout_and_params(factory(placement="post"))
    params = {
        k: jnp.ones_like(v) if "gain" in k else 0 * v if "bias" in k else v
        for k, v in params.items()
    }
    model, batch = layout.merge(params, {}), batch_of()
    assert model.blocks.tap_shape == (3, 1)
    loss, measured = model.loss(batch, jnp.zeros((3, 1)))
    assert loss == model.loss(batch)[0]
    # After each post_norm the stream has mean square 1 (less eps).
    np.testing.assert_allclose(
        measured["stream_mean_square"], np.ones((3, 1)), rtol=1e-3
    )
    assert measured["branch_mean_square"].shape == (3, 1)
    np.testing.assert_allclose(
        measured["input_mean_square"], np.mean(np.square(batch["x"])), rtol=1e-6
    )


@pytest.mark.parametrize("dtype, error", [("bfloat16", 0.03), ("float16", 0.004)])
def test_half_precision_stays_close_to_float32(dtype, error):
    layout, params = layout_and_params(factory())
    half = layout_of(lambda: factory(dtype=dtype)(rngs=nnx.Rngs(0)))
    batch = batch_of(rows=64)
    expected, _ = layout.merge(params, {})(batch["x"])
    model = half.merge(params, {})
    out, _ = model(batch["x"])
    assert out.dtype == dtype
    off = out.astype(jnp.float32) - expected
    assert 0 < jnp.sqrt(jnp.mean(off**2) / jnp.mean(expected**2)) < error
    assert model.loss(batch)[0].dtype == jnp.float32


def test_what_the_ends_draw_shifts_no_layer():
    def drawing(d_model, *, rngs):
        rngs.params()
        return part("norm", "layernorm")(d_model, rngs=rngs)

    def kernels(**keywords):
        model = factory(n_layers=2, **keywords)(rngs=nnx.Rngs(0))
        return model.blocks.layers.ffn.branch.up.kernel[...]

    placement = Placement(embedding_norm=True)
    np.testing.assert_array_equal(
        kernels(placement=placement),
        kernels(placement=placement, norm=drawing, ffn_norm=part("norm", "layernorm")),
    )


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(d_model=0), "d_model must be at least 1, got 0"),
        (dict(n_layers=-1), "n_layers must be at least 1, got -1"),
        (dict(d_ff=0), "d_ff must be at least 1, got 0"),
        (dict(dtype="int8"), "dtype must be one of.*'int8'"),
        (dict(remat="some"), "remat must be one of.*'some'"),
    ],
)
def test_wrong_values_are_refused_by_name(wrong, message):
    right = dict(d_model=8, n_layers=2, d_ff=8)
    ResidualMLP.check(**right)
    with pytest.raises(ValueError, match=message):
        ResidualMLP.check(**{**right, **wrong})


# -- the depth law -------------------------------------------------------------------

N_SEEDS = 16


def in_torch(placement, n_layers, column):
    """ln of the gradient norms of 24 networks (torch 2.13.0, tests/golden)."""
    with open(ROOT / "tests" / "golden" / "depth_laws_runs.csv") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    values = [
        float(row[column])
        for row in rows
        if (row["variant"], row["L"]) == (placement, str(n_layers))
    ]
    assert len(values) == 24
    return np.log(values)


# Means over 24 networks of |dLoss/dW1| of the last block.
PUBLISHED = {
    ("pre", 6): 0.01652,
    ("pre", 24): 0.008758,
    ("post", 6): 0.03045,
    ("post", 24): 0.03167,
}


@pytest.mark.parametrize("placement, n_layers", PUBLISHED)
def test_last_gradient_falls_with_depth_as_in_torch(placement, n_layers):
    # d 64, d_ff 256, ReLU, no biases, LayerNorm eps 1e-5, Kaiming; 256 rows of N(0, 1);
    # loss mean(out * weights), weights N(0, 1). Everything is drawn again per seed.
    make = factory(64, d_ff=256, n_layers=n_layers, placement=placement)
    layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))

    def norms_of(seed):
        init, x, weights = jax.random.split(jax.random.key(seed), 3)
        params, _ = layout.split(make(rngs=nnx.Rngs(params=init)))
        batch = {
            "x": jax.random.normal(x, (256, 64)),
            "weights": jax.random.normal(weights, (256, 64)),
        }
        gradient = jax.grad(lambda p: layout.merge(p, {}).loss(batch)[0])(params)
        up, down = (
            gradient[f"blocks/layers/ffn/branch/{name}/kernel"][-1]
            for name in ("up", "down")
        )
        return jnp.linalg.norm(up), jnp.linalg.norm(down)

    found = jax.jit(lambda seeds: jax.lax.map(norms_of, seeds))(jnp.arange(N_SEEDS))
    for values, column in zip(found, ("gW1_last", "gW2_last"), strict=True):
        ours, theirs = np.log(values), in_torch(placement, n_layers, column)
        # The spread of single networks (0.05 to 0.13) is theirs, so that a spread of
        # ours that is wrong does not widen the bound.
        spread = theirs.std(ddof=1)
        assert 0.03 < spread < 0.15
        four_sigma = 4 * spread * np.sqrt(1 / N_SEEDS + 1 / len(theirs))
        np.testing.assert_allclose(ours.mean(), theirs.mean(), rtol=0, atol=four_sigma)
        # Ratio of two sample deviations: within a factor 2.5 (4 sigma of 16 and 24).
        assert 0.4 < ours.std(ddof=1) / spread < 2.5
    ratio = np.mean(found[0]) / PUBLISHED[placement, n_layers]
    assert abs(np.log(ratio)) < 4 * 0.13 * np.sqrt(1 / N_SEEDS + 1 / 24)
