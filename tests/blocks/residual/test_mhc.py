"""mHC: vectors, released code, initial values, what doubly stochastic mixing promises."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from blocks.norms.rmsnorm import RMSNorm
from blocks.residual.mhc import MHC
from blocks.residual.stream_ends import StreamEnds
from blocks.site import Site

GOLDEN = Path(__file__).parents[2] / "golden" / "mhc.safetensors"


@functools.cache
def golden():
    return load_file(GOLDEN)


def make_joint(d_model, number=0, **keywords):
    site = Site("ffn", number, 8)
    return MHC(**keywords).make_joint(d_model, site=site, rngs=nnx.Rngs(0))


# -- a vector: float64 NumPy, written from the paper's equations, apart from this code ---

X = np.array([[1, -2, 0.5], [0.25, 1.5, -1]])
W = np.array([[0.5, -1, 0], [0, 2, 1], [1, 0, -0.5]])
PHI = (((3 * np.arange(6)[:, None] + 5 * np.arange(8)) % 7) - 3) / 10
BIAS = [0, -1, 0.25, -0.25, 0, -2, -1, 0.5]


@pytest.fixture
def filled(fill):
    joint = make_joint(3, n_streams=2, eps=1e-24)
    return fill(joint, phi=PHI.reshape(2, 3, 8), bias=BIAS, alpha=[0.5, 0.5, 0.5])


def test_vector_of_one_layer(float64, filled, step):
    state = jnp.asarray(X)[:, None]
    u, kept, _ = step(filled, state, np.zeros((1, 3)))
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-11)
    close(kept["pre"][:, 0], [0.533954689188, 0.292163556935])
    close(kept["post"][:, 0], [0.915924910813, 0.875646998228])
    mixing = [[0.895938183539, 0.104061816461], [0.104068118421, 0.895931881579]]
    close(kept["mixing"][..., 0], mixing)
    close(u[0], [0.606995578422, -0.629664042974, -0.025186212341])
    branch = u / np.sqrt(np.mean(u**2)) @ W
    _, _, new = step(filled, state, branch)
    first = [1.426572677220, -5.019697691615, -0.774931355035]
    second = [0.810479442962, -2.099344419877, -1.913535383915]
    close(new[:, 0], [first, second])


def test_vector_with_the_epsilons_of_deepseek(float64, filled, step):
    filled.coefficient_eps = 1e-6
    _, kept, _ = step(filled, X[:, None], np.zeros((1, 3)))
    expected = [[0.895936458345, 0.104062541647], [0.104068843220, 0.895930156788]]
    np.testing.assert_allclose(kept["mixing"][..., 0], expected, rtol=0, atol=1e-11)


# -- released code, see tests/golden/README.md -----------------------------------------


def ours(fn, n):
    """Rows pre, post, comb [j, k] of `fn` or `base` as our columns; H_res[k, j]."""
    comb = fn[2 * n :].reshape(n, n, *fn.shape[1:]).swapaxes(0, 1)
    fn = np.concatenate([fn[: 2 * n], comb.reshape(n * n, *fn.shape[1:])])
    return fn if fn.ndim == 1 else fn.T.reshape(n, -1, len(fn))


def joint_of(fill, arrays, prefix, n, eps):
    fn = arrays[f"{prefix}fn"]
    joint = make_joint(
        fn.shape[1] // n, n_streams=n, eps=eps, coefficient_eps=eps, iterations=20
    )
    base, scale = arrays[f"{prefix}base"], arrays[f"{prefix}scale"]
    return fill(joint, phi=ours(fn, n), bias=ours(base, n), alpha=scale)


def streams_first(x):
    """[batch, seq, n, d] -> [n, tokens, d]."""
    return jnp.asarray(x.reshape(-1, *x.shape[2:]).swapaxes(0, 1))


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("part", ["post", "comb", "collapsed"])
def test_coefficients_and_gradients_of_deepseek(fill, assert_within, n, part):
    arrays, case = golden(), f"mhc_n{n}_{part}"
    joint = joint_of(fill, arrays, f"mhc_n{n}/in.", n, 1e-6)
    graphdef, params = nnx.split(joint)
    state = streams_first(arrays[f"mhc_n{n}/in.x"])

    def outputs(params, state):
        u, kept = nnx.merge(graphdef, params).read(state, 0)
        comb = kept["mixing"].transpose(2, 1, 0)
        return {"collapsed": u, "post": kept["post"].T, "comb": comb}[part]

    got, pull = jax.vjp(jax.jit(outputs), params, state)
    out, dy = (arrays[f"{case}/{k}"].reshape(got.shape) for k in ("out", "dy"))
    assert_within(got, out, 1e-5)
    d_params, d_state = pull(jnp.asarray(dy))
    wanted = {
        "phi": ours(arrays[f"{case}/grad.fn"], n),
        "bias": ours(arrays[f"{case}/grad.base"], n),
        "alpha": arrays[f"{case}/grad.scale"],
    }
    for name, want in wanted.items():
        atol = 1e-4 * np.abs(want).max() + 1e-6
        np.testing.assert_allclose(d_params[name][...], want, rtol=0, atol=atol)
    want = streams_first(arrays[f"{case}/grad.x"])
    assert_within(d_state, want, 1e-4)


def v4(name):
    return golden()[f"deepseek_v4/{name}"]


def v4_joint(fill, layer, name):
    arrays = {k.removeprefix("deepseek_v4/"): v for k, v in golden().items()}
    return joint_of(fill, arrays, f"layers.{layer}.{name}_hc.", 3, 1e-3)


@pytest.mark.parametrize("layer", range(3))
def test_the_streams_of_a_model_of_deepseek(fill, step, assert_within, layer):
    state = streams_first(v4(f"hidden_states.{layer}"))
    for name, out in (("attn", "attn_out"), ("ffn", "mlp_out")):
        joint, at = v4_joint(fill, layer, name), f"mhc.layers.{layer}.{name}_hc"
        branch = v4(f"layers.{layer}.{out}").reshape(-1, 32)
        u, kept, state = step(joint, state, branch)
        assert_within(u, v4(f"{at}.collapsed").reshape(u.shape), 1e-5)
        assert_within(kept["post"].T, v4(f"{at}.post").reshape(-1, 3), 1e-5)
        comb = kept["mixing"].transpose(2, 1, 0)
        assert_within(comb, v4(f"{at}.comb").reshape(-1, 3, 3), 1e-5)
    assert_within(state, streams_first(v4(f"hidden_states.{layer + 1}")), 1e-5)


def test_the_loss_and_last_gradients_of_a_model_of_deepseek(fill, step, assert_within):
    # In the last joint nothing comes after the branch but the head, so that gradients
    # in what only `write` uses (post and comb) need no feed-forward network.
    last, head = v4_joint(fill, 2, "ffn"), v4_head(fill)
    models = {"joint": nnx.split(last), "head": nnx.split(head)}
    before = after_attention(fill, step)
    branch = jnp.asarray(v4("layers.2.mlp_out").reshape(before.shape[1:]))
    labels = v4("input_ids")[:, 1:]

    def loss(params):
        joint, head = (nnx.merge(models[k][0], params[k]) for k in ("joint", "head"))
        _, kept = joint.read(before, 0)
        x = head.close(joint.write(before, branch, kept, 0))
        norm = RMSNorm(32, eps=1e-3, rngs=nnx.Rngs(0))
        x = fill(norm, gain=v4("norm.weight"))(x)
        logits = (x @ v4("lm_head.weight").T).reshape(2, 12, 64)[:, :-1]
        log_p = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(log_p, labels[..., None], -1).mean(), x

    params = {k: v[1] for k, v in models.items()}
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, x), gradient = step(params)
    np.testing.assert_allclose(value, v4("loss"), rtol=0, atol=5e-6)
    assert_within(x, v4("final_norm_out").reshape(x.shape), 1e-5)
    wanted = {
        "phi": v4("grad.hc_head.hc_fn").T.reshape(3, 32, 3),
        "bias": v4("grad.hc_head.hc_base"),
        "alpha": v4("grad.hc_head.hc_scale"),
    }
    for name, want in wanted.items():
        atol = 1e-4 * np.abs(want).max() + 1e-6
        got = gradient["head"][name][...]
        np.testing.assert_allclose(got, want, rtol=0, atol=atol)
    wanted = {k: v4(f"grad.layers.2.ffn_hc.{k}") for k in ("fn", "base", "scale")}
    wanted = {
        "phi": ours(wanted["fn"], 3)[..., 3:],
        "bias": ours(wanted["base"], 3)[3:],
        "alpha": wanted["scale"][1:],
    }
    got = {k: v[...] for k, v in gradient["joint"].items()}
    got = {
        "phi": got["phi"][..., 3:],
        "bias": got["bias"][3:],
        "alpha": got["alpha"][1:],
    }
    for name, want in wanted.items():
        atol = 1e-4 * np.abs(want).max() + 1e-6
        np.testing.assert_allclose(got[name], want, rtol=0, atol=atol)


def v4_head(fill):
    head = StreamEnds(
        32, n_streams=3, reduce="head", eps=1e-3, coefficient_eps=1e-3, rngs=nnx.Rngs(0)
    )
    return fill(
        head,
        phi=v4("hc_head.hc_fn").T.reshape(3, 32, 3),
        bias=v4("hc_head.hc_base"),
        alpha=v4("hc_head.hc_scale"),
    )


def after_attention(fill, step):
    state = streams_first(v4("hidden_states.2"))
    branch = v4("layers.2.attn_out").reshape(-1, 32)
    return step(v4_joint(fill, 2, "attn"), state, branch)[2]


# -- properties ------------------------------------------------------------------------


@pytest.fixture
def moved_joint(fill):
    """Coefficients that depend on the token clearly."""

    def make(n, d_model=5, **keywords):
        joint = make_joint(d_model, n_streams=n, **keywords)
        keys = jax.random.split(jax.random.key(0), 3)
        return fill(
            joint,
            phi=0.3 * jax.random.normal(keys[0], joint.phi.shape),
            bias=jax.random.normal(keys[1], joint.bias.shape),
            alpha=1 + 0.2 * jax.random.normal(keys[2], (3,)),
        )

    return make


def states(n):
    rng = np.random.default_rng(3)
    return rng.normal(size=(n, 7, 5)), rng.normal(size=(7, 5))


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_mixing_keeps_the_mean_and_raises_no_maximum(float64, moved_joint, step, n):
    state, _ = states(n)
    _, kept, new = step(moved_joint(n, iterations=50), state, np.zeros((7, 5)))
    mixing = np.asarray(kept["mixing"])
    np.testing.assert_allclose(mixing.sum(axis=1), np.ones((n, 7)), rtol=1e-12)
    np.testing.assert_allclose(mixing.sum(axis=0), np.ones((n, 7)), rtol=1e-3)
    column = np.abs(mixing.sum(axis=0) - 1).max()
    drift = np.abs(new.mean(axis=0) - state.mean(axis=0)).max()
    assert drift <= column * np.abs(state).max() + 1e-15
    assert np.abs(new).max() <= np.abs(state).max()
    largest = np.linalg.norm(mixing.transpose(2, 0, 1), 2, axis=(1, 2))
    np.testing.assert_allclose(largest, np.ones(7), atol=1e-3)


def test_streams_in_another_order_give_the_same_in_that_order(
    float64, moved_joint, fill, step
):
    n, order = 3, np.array([2, 0, 1])
    joint, other = moved_joint(n), moved_joint(n)
    columns = [*order, *(n + order)]
    columns += [2 * n + i * n + j for i in order for j in order]
    columns = np.array(columns)
    phi = joint.phi[...][order][..., columns]
    other = fill(other, phi=phi, bias=joint.bias[...][columns])
    state, branch = states(n)
    u, _, new = step(joint, state, branch)
    u_other, _, new_other = step(other, state[order], branch)
    np.testing.assert_allclose(u, u_other, rtol=1e-12)
    np.testing.assert_allclose(new[order], new_other, rtol=1e-12, atol=1e-13)
    assert np.abs(new - new_other).max() > 0.1


def test_coefficients_do_not_depend_on_the_size_of_the_streams(
    float64, moved_joint, step
):
    joint, (state, branch) = moved_joint(3, eps=1e-24), states(3)
    _, small, _ = step(joint, state, branch)
    _, large, _ = step(joint, 1e3 * state, branch)
    for name in ("pre", "post", "mixing"):
        np.testing.assert_allclose(small[name], large[name], rtol=1e-12)


def test_initial_values(step):
    joint = make_joint(64, n_streams=4)
    np.testing.assert_allclose(joint.alpha[...], [0.01] * 3)
    np.testing.assert_allclose(joint.phi[...].std(), 0.02, rtol=0.03)
    bias = np.asarray(joint.bias[...])
    np.testing.assert_allclose(bias[:4], -np.log(3), rtol=1e-6)
    np.testing.assert_array_equal(bias[4:8], np.zeros(4))
    np.testing.assert_array_equal(bias[8:].reshape(4, 4), 8 * (np.eye(4) - 1))
    _, kept, _ = step(joint, jnp.zeros((4, 1, 64)), jnp.zeros((1, 64)))
    np.testing.assert_allclose(kept["pre"], np.full((4, 1), 0.25), rtol=1e-6)
    np.testing.assert_allclose(kept["post"], np.ones((4, 1)), rtol=1e-6)
    wanted = np.where(np.eye(4), 0.9989946239146, 3.351253617989e-04)
    np.testing.assert_allclose(kept["mixing"][..., 0], wanted, rtol=1e-5)


@pytest.mark.parametrize("number", [0, 5])
def test_onehot_biases_follow_the_number_of_the_sublayer(number):
    bias = np.asarray(make_joint(4, number, n_streams=4, start="onehot").bias[...])
    wanted = np.full(4, -1.0)
    wanted[number % 4] = 1
    np.testing.assert_array_equal(bias[:8], [*wanted, *wanted])


# Table of parameters in a module: n C (n^2 + 2 n) + n^2 + 2 n + 3.
@pytest.mark.parametrize(
    "width, expected", [(512, 49179), (768, 73755), (2560, 245787), (4096, 393243)]
)
def test_number_of_parameters(width, expected):
    joint = nnx.eval_shape(lambda: make_joint(width, n_streams=4))
    sizes = [leaf.size for leaf in jax.tree.leaves(nnx.state(joint))]
    assert sum(sizes) == expected


def test_what_a_probe_sees(moved_joint, step):
    joint, state = moved_joint(3), np.float32(states(3)[0])
    _, kept, _ = step(joint, state, np.zeros((7, 5), np.float32))
    shown = jax.jit(joint.look)(kept)
    mixing = np.asarray(kept["mixing"])
    np.testing.assert_allclose(shown["mixing"], mixing.mean(axis=-1), rtol=1e-5)
    np.testing.assert_allclose(shown["pre"], kept["pre"].mean(axis=-1), rtol=1e-5)
    np.testing.assert_allclose(shown["post"], kept["post"].mean(axis=-1), rtol=1e-5)
    column = np.abs(mixing.sum(axis=0) - 1).max()
    np.testing.assert_allclose(shown["sinkhorn_residual_column"], column, atol=1e-6)
    assert shown["sinkhorn_residual_row"] < 1e-6 < column
    x = np.asarray(state, np.float64)
    cosines = [
        (x[i, t] @ x[j, t]) / np.sqrt((x[i, t] @ x[i, t]) * (x[j, t] @ x[j, t]))
        for t in range(7)
        for i, j in ((0, 1), (0, 2), (1, 2))
    ]
    np.testing.assert_allclose(shown["stream_similarity"], np.mean(cosines), rtol=1e-5)
    rms = np.sqrt((x**2).mean(axis=(1, 2)))
    np.testing.assert_allclose(shown["stream_rms"], rms, rtol=1e-6)


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"n_streams": 0}, "n_streams must be 1 to 8, got 0"),
        ({"n_streams": 9}, "n_streams must be 1 to 8, got 9"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"start": "zero"}, "start must be one of uniform, onehot, got 'zero'"),
        ({"reduce": "max"}, "reduce must be one of .* got 'max'"),
        ({"expand": "tile"}, "expand must be one of .* got 'tile'"),
        ({"eps": 0.0}, "eps must be"),
        ({"coefficient_eps": -1.0}, "coefficient_eps must be .* got -1.0"),
        ({"phi_std": 0.0}, "phi_std must be above 0 .*n_streams=4.* got 0.0"),
        ({"off_diagonal_init": -np.inf}, "off_diagonal_init must be finite"),
    ],
)
def test_what_has_no_meaning_is_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        MHC.check(**keywords)


def test_what_breaks_the_symmetry_is_accepted():
    MHC.check(phi_std=0.0, start="onehot")
    MHC.check(phi_std=0.0, expand="first")
    MHC.check(phi_std=0.0, n_streams=1)
