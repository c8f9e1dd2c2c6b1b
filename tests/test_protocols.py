"""The protocols of docs/protocols.md: classic numbers repeated digit for digit from
torch's and NumPy's own random numbers, and experiments that ask what is published."""

import csv
import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from omegaconf import OmegaConf

from analysis.expectations import parse
from blocks.ffn.dense import Dense
from blocks.ffn.mlp import MLP
from blocks.inits.normal import Normal
from blocks.norms.layernorm import LayerNorm
from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import layout_of
from blocks.placement import Placement
from blocks.residual.add import Add
from blocks.residual_mlp import ResidualMLP
from experiments.tasks.propagate import Recorded, statistics
from tests.torch_draws import TorchDraws

EXPERIMENTS = Path(__file__).parents[1] / "conf" / "experiment"
PROTOCOLS = (
    "xiong",
    "xiong_transformer",
    "depth_placements",
    "depth_norms",
    "depth_init",
    "deep_mlp",
    "residual_chain",
    "update_size",
)
PLACEMENTS = {
    "none": Placement(in_norm=False, final_norm=False),
    "pre": Placement(),
    "post": Placement(in_norm=False, post_norm=True, final_norm=False),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def network(kernels: dict, *, ffn, norm, placement, dtype="float64", skip=1.0):
    """(layout, params, state) of a ResidualMLP that holds these stacked arrays."""
    up = next(v for k, v in kernels.items() if k == "ffn/branch/up/kernel")
    make = functools.partial(
        ResidualMLP,
        up.shape[1],
        n_layers=up.shape[0],
        d_ff=up.shape[2],
        norm=norm,
        ffn=ffn,
        residual=Add(skip=skip),
        placement=placement,
        init=Normal(),
        dtype=dtype,
    )
    layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
    params, state = layout.split(make(rngs=nnx.Rngs(0)))
    given = {f"blocks/layers/{k}": v for k, v in kernels.items()}
    assert {k: v.shape for k, v in given.items()} == {k: params[k].shape for k in given}
    params = {k: jnp.asarray(given.get(k, v), dtype) for k, v in params.items()}
    return layout, params, state


def gradient_norms(net, x, weights):
    """Frobenius norm of dLoss/dW1 of every layer."""
    layout, params, state = net
    name = "blocks/layers/ffn/branch/up/kernel"

    @jax.jit
    @jax.grad
    def gradient(params, batch):
        return layout.merge(params, state).loss(batch)[0]

    found = gradient(params, {"x": jnp.asarray(x), "weights": jnp.asarray(weights)})
    return np.linalg.norm(found[name], axis=(1, 2))


# -- the gradient of the last block, 6 to 96 blocks ------------------------------

# torch 2.13.0 on a CPU, float32, seed 0; one FFN sub-layer per block, W1 of the last.
LAST_BLOCK = {
    "post": {6: 0.030538956, 24: 0.031969283, 96: 0.028800927},
    "pre": {6: 0.017763767, 24: 0.0096181119, 96: 0.0040058899},
}
# Geometric mean times exp(+-3 SD of the logarithm) over 32 seeds in torch.
LIMITS = {
    "post": {6: (0.0258, 0.0361), 24: (0.0208, 0.0456), 96: (0.0195, 0.0485)},
    "pre": {6: (0.0148, 0.0191), 24: (0.00679, 0.0117), 96: (0.00368, 0.00549)},
}


@functools.cache
def last_block_recipe(depth: int, d: int = 64):
    """The recipe's random numbers in the order in which torch draws them."""
    draws = TorchDraws(0)
    layers = []
    for _ in range(depth):
        _, up_bias = draws.linear(d, 4 * d)
        _, down_bias = draws.linear(4 * d, d)
        up = draws.normal((4 * d, d), math.sqrt(2 / d))  # kaiming_normal_, relu
        down = draws.normal((d, 4 * d), math.sqrt(1 / (4 * d)))
        layers.append((up.T, up_bias, down.T, down_bias))
    names = ("up/kernel", "up/bias", "down/kernel", "down/bias")
    stacked = [np.stack(x) for x in zip(*layers, strict=True)]
    kernels = {f"ffn/branch/{k}": v for k, v in zip(names, stacked, strict=True)}
    return kernels, draws.normal((256, d)), draws.normal((256, d))


@pytest.mark.parametrize("depth", [6, 24, 96])
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_last_block_gradient_equals_that_of_torch(placement, depth):
    kernels, x, weights = last_block_recipe(depth)
    net = network(
        kernels,
        ffn=functools.partial(MLP, activation="relu", bias=True),
        norm=functools.partial(LayerNorm, eps=1e-5),
        placement=PLACEMENTS[placement],
    )
    found = gradient_norms(net, x, weights)[-1]
    np.testing.assert_allclose(found, LAST_BLOCK[placement][depth], rtol=1e-6)


def test_last_block_gradient_in_float32_is_within_rounding_of_torch():
    kernels, x, weights = last_block_recipe(24)
    net = network(
        kernels,
        ffn=functools.partial(MLP, activation="relu", bias=True),
        norm=functools.partial(LayerNorm, eps=1e-5),
        placement=PLACEMENTS["pre"],
        dtype="float32",
    )
    x, weights = x.astype(np.float32), weights.astype(np.float32)
    found = gradient_norms(net, x, weights)[-1]
    np.testing.assert_allclose(found, LAST_BLOCK["pre"][24], rtol=1e-4)


# -- thirty plain layers ---------------------------------------------------------

# NumPy, seed 0: std of the activations after layers 1, 10 and 30.
ACTIVATIONS = {
    "small": (0.01, [0.093747, 2.8223e-10, 2.8539e-29]),
    "xavier": (math.sqrt(2 / 512), [0.58328, 0.022872, 1.7333e-05]),
    "kaiming": (math.sqrt(2 / 256), [0.8248, 0.75041, 0.66332]),
}


def streams(net, x):
    """Measurements of the forward pass, streams before and after each layer too."""
    layout, params, state = net
    model = layout.merge(params, state)
    taps = jnp.zeros(model.blocks.tap_shape)
    model.blocks = Recorded(model.blocks)
    _, measured = model(jnp.asarray(x), taps)
    return measured


def plain(kernel, bias=None, activation="relu", **more):
    kernels = {"ffn/branch/up/kernel": kernel}
    kernels |= {} if bias is None else {"ffn/branch/up/bias": bias}
    ffn = functools.partial(Dense, activation=activation, bias=bias is not None)
    return network(
        kernels, ffn=ffn, **{"norm": LayerNorm, "placement": PLACEMENTS["none"], **more}
    )


def test_activations_of_thirty_layers():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 256))
    for std, expected in ACTIVATIONS.values():
        kernel = np.stack([rng.standard_normal((256, 256)) * std for _ in range(30)])
        measured = streams(plain(kernel, skip=0.0), x)
        found = statistics(measured["stream_before"], measured["stream_after"], 1)
        stds = found["activation/std"][np.array([0, 9, 29])]
        np.testing.assert_allclose(stds, expected, rtol=5e-5)


@pytest.mark.parametrize(
    "init, expected",
    [
        ("torch", [1.693e-13, 1.0691e-09, 0.00089888]),
        ("kaiming", [0.031389, 0.026901, 0.025294]),
    ],
)
def test_gradients_of_thirty_layers(init, expected):
    """torch 2.13.0 on a CPU, float32 (hence 1e-4): layers 1, 15 and 30."""
    draws = TorchDraws(0)
    draws.linear(512, 512)  # the recipe prints its std, 0.0255, and throws it away
    x, weights = draws.normal((512, 256)), draws.normal((512, 256))
    draws = TorchDraws(1)
    layers = []
    for _ in range(30):
        kernel, bias = draws.linear(256, 256)
        if init == "kaiming":
            kernel, bias = draws.normal((256, 256), math.sqrt(2 / 256)), 0 * bias
        layers.append((kernel.T, bias))
    kernel, bias = (np.stack(a) for a in zip(*layers, strict=True))
    found = gradient_norms(plain(kernel, bias, skip=0.0), x, weights)
    np.testing.assert_allclose(found[[0, 14, 29]], expected, rtol=1e-4)


# -- thirty-six linear steps -----------------------------------------------------


@pytest.mark.parametrize(
    "placement, expected",
    [
        ("none", 412442.09),
        ("pre", 6.4234829),
        ("post", 1.0),
    ],
)
def test_chain_of_residual_steps(placement, expected):
    """float64 NumPy, seed 5, the vector drawn before the 36 matrices."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(256)[None]
    kernel = rng.standard_normal((36, 256, 256)).swapaxes(1, 2) / 16  # W h, not h W
    norm = functools.partial(RMSNorm, eps=1e-20)
    place = PLACEMENTS[placement]
    net = plain(kernel, activation="identity", norm=norm, placement=place)
    measured = streams(net, x)
    rms = math.sqrt(measured["stream_mean_square"][-1, 0])
    np.testing.assert_allclose(rms, expected, rtol=2e-8)


# -- what the experiments ask ----------------------------------------------------


def entries(name):
    node = OmegaConf.to_container(OmegaConf.load(EXPERIMENTS / f"{name}.yaml"))
    return node["tags"]["expected"]


def published():
    path = Path(__file__).parent / "golden" / "depth_laws_checks.csv"
    lines = [x for x in path.read_text().splitlines() if not x.startswith("#")]
    return {row["id"]: row for row in csv.DictReader(lines)}


ASKED = {entry["id"]: entry for name in PROTOCOLS for entry in entries(name)}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_expectation_can_be_read_and_names_its_source(name):
    for entry in entries(name):
        assert parse(entry).source, entry["id"]


@pytest.mark.parametrize("check", published().values(), ids=lambda c: c["id"])
def test_every_published_check_is_asked_as_published(check):
    entry = next(e for k, e in ASKED.items() if k.split()[0] == check["id"])
    quantity = check["quantity"].replace("total", "grad_norm/total")
    assert entry["quantity"] == quantity
    assert entry["fit"] == check["fit"]
    assert entry["expected"] == float(check["expected"])
    assert entry["tolerance"] == float(check["tolerance"])


def test_the_checks_without_a_table_are_asked():
    words = {word for name in ASKED for word in name.split()}
    assert {"A21", "T14", "U1a", "U1b", "U1c", "B1", "B2", "X1", "X3"} <= words
    assert {"B", "C", "D"} <= words


@pytest.mark.parametrize("name", PROTOCOLS)
def test_an_experiment_says_how_long_it_takes_and_is_explained(name):
    head = (EXPERIMENTS / f"{name}.yaml").read_text().split("defaults:")[0]
    assert "on two cores" in head
    assert "Expected" in head
    docs = (EXPERIMENTS.parents[1] / "docs" / "protocols.md").read_text()
    assert f"experiment={name}`" in docs


# -- one network of our own random numbers ---------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_networks_of_our_own_draws_lie_within_three_sigma(placement, tmp_path):
    from experiments import api
    from tests.experiments.test_any_depth import probes

    overrides = [
        "model=residual_mlp", "norm=layernorm", "init=kaiming", "task=depth",
        "model.ffn.activation=relu", "model.ffn.bias=true", f"placement={placement}",
        "model.n_layers=6,24,96", "seed=0,1,2,3", f"runtime.output_dir={tmp_path}",
    ]  # fmt: skip
    with jax.enable_x64(False):
        found = probes(api.compose(overrides))
    for (depth, seed), measured in found.items():
        low, high = LIMITS[placement][depth]
        value = measured["grad_norm/ffn/up/kernel"][-1]
        assert low < value < high, (depth, seed, value)
