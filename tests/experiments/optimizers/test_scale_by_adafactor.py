import jax
import jax.numpy as jnp
import numpy as np
import optax

from blocks.parameters import ParamSpec
from experiments.optimizers.scale_by_adafactor import scale_by_adafactor

SPECS = {
    "kernel": ParamSpec("matrix", (4, 6)),
    "wide": ParamSpec("matrix", (2, 9)),
    "gain": ParamSpec("gain", (5,)),
}


def draws(seed, specs, scale=1.0):
    rng = np.random.default_rng(seed)
    return {
        path: jnp.asarray(scale * rng.standard_normal(spec.shape))
        for path, spec in specs.items()
    }


def train(tx, params, grads, rate=0.1):
    state = tx.init(params)
    update = jax.jit(tx.update)
    for g in grads:
        updates, state = update(g, state, params)
        params = jax.tree.map(lambda p, u: p - rate * u, params, updates)
    return params, updates, state


def ours(specs=SPECS, **keywords):
    return scale_by_adafactor(specs, **{"min_dim_size_to_factor": 3, **keywords})


def test_single_parameters_train_as_under_optax(x64):
    params, grads = draws(0, SPECS), [draws(t, SPECS) for t in range(1, 6)]
    theirs = optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=3),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )
    got, _, state = train(ours(), params, grads)
    expected, _, _ = train(theirs, params, grads)
    for path in SPECS:
        # optax takes t^-0.8 in float32, here it is float64.
        np.testing.assert_allclose(got[path], expected[path], rtol=1e-6, atol=1e-8)
    shapes = jax.tree.map(jnp.shape, state.moments)
    assert tuple(shapes["kernel"]) == ((4, 1), (1, 6))
    assert tuple(shapes["wide"]) == ((2, 9),)


def test_two_steps_equal_the_formula_in_numpy(x64):
    # arXiv 1804.04235 algorithm 4, with the algorithm 5 for the vector.
    params, grads = draws(0, SPECS, 1e-4), [draws(1, SPECS), draws(2, SPECS, 7.0)]
    for path in ("kernel", "gain"):
        p = np.asarray(params[path])
        row = col = v = 0
        for t, g in enumerate((np.asarray(g[path]) for g in grads), 1):
            b2 = 1 - t**-0.8
            square = g**2 + 1e-30
            row = b2 * row + (1 - b2) * square.mean(-1, keepdims=True)
            col = b2 * col + (1 - b2) * square.mean(0, keepdims=True)
            v = b2 * v + (1 - b2) * square
            u = g / np.sqrt(row * col / row.mean() if path == "kernel" else v)
            u = u / max(1, np.sqrt((u**2).mean()) / 0.9)
            u = u * max(1e-3, np.sqrt((p**2).mean()))
            p = p - 0.1 * u
        got, updates, _ = train(ours(clipping_threshold=0.9), params, grads)
        np.testing.assert_allclose(updates[path], u, rtol=1e-12)
        np.testing.assert_allclose(got[path], p, rtol=1e-12)


def test_layers_and_experts_are_clipped_and_scaled_one_by_one(x64):
    shape = (2, 3, 4, 5)
    together = {"k": ParamSpec("matrix", shape, 2), "g": ParamSpec("gain", (2, 5), 1)}
    size = np.exp(np.arange(6.0)).reshape(2, 3, 1, 1)
    params = draws(0, together)
    params["k"] = params["k"] * size
    # Growing gradients: the clip acts, and differently in every copy.
    grads = [draws(t, together, 3.0**t) for t in range(1, 5)]
    got, _, _ = train(ours(together), params, grads)
    for at in np.ndindex(2, 3):
        alone = {"k": ParamSpec("matrix", (4, 5))}
        single, _, _ = train(
            ours(alone), {"k": params["k"][at]}, [{"k": g["k"][at]} for g in grads]
        )
        np.testing.assert_allclose(got["k"][at], single["k"], rtol=1e-12)
    alone = {"g": ParamSpec("gain", (5,))}
    single, _, _ = train(
        ours(alone), {"g": params["g"][1]}, [{"g": g["g"][1]} for g in grads]
    )
    np.testing.assert_allclose(got["g"][1], single["g"], rtol=1e-12)


def test_float32_survives_zero_and_tiny_gradients():
    params = jax.tree.map(lambda p: p.astype(jnp.float32), draws(0, SPECS))
    for scale in (0.0, 1e-25, 1e-12):
        grads = jax.tree.map(lambda p, s=scale: s * jnp.ones_like(p), params)
        _, updates, _ = train(ours(), params, [grads, grads])
        for u in updates.values():
            assert np.all(np.isfinite(u))
            assert scale or not np.any(u)
