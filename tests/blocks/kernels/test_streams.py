"""An mHC joint with its kernel computes what the plain one does, gradients included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.kernels.streams import BlendedStreams
from blocks.kernels.tiles import TILES
from blocks.residual.mhc import MHC
from blocks.residual.streams import weighted, written
from blocks.site import Site

N, TOKENS, D_MODEL = 3, 10, 20


def arrays(dtype="float32"):
    rng = np.random.default_rng(0)
    return [
        jnp.asarray(rng.normal(size=shape), dtype)
        for shape in ((N, TOKENS, D_MODEL), (TOKENS, D_MODEL), (N, N, TOKENS))
    ]


@functools.cache
def run(kernel):
    """State after a sub-layer, and gradients in state and parameters."""
    scheme = MHC(n_streams=N, phi_std=0.5, alpha_init=0.5, kernel=kernel)
    joint = scheme.make_joint(D_MODEL, site=Site("ffn", 1, 4), rngs=nnx.Rngs(0))
    graphdef, params = nnx.split(joint)
    state, upstream, _ = arrays()

    def after(params, state):
        joint = nnx.merge(graphdef, params)
        u, kept = joint.read(state, jnp.int32(0))
        return joint.write(state, jnp.tanh(u), kept, jnp.int32(0))

    y, pull = jax.vjp(after, params, state)
    return jax.tree.leaves((y, pull(jnp.stack([upstream] * N))))


@pytest.mark.parametrize("platform", TILES)
def test_a_joint_with_its_kernel_is_the_same_joint(platform):
    for got, want in zip(run(BlendedStreams(platform)), run(None), strict=True):
        scale = np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * scale)


def test_without_a_device_it_is_the_plain_joint():
    for got, want in zip(run(BlendedStreams()), run(None), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_weights_that_all_tokens_share_are_taken_too():
    x, branch, mixing = arrays()
    mixing, post = mixing[..., :1], mixing[0, :, :1]
    blended = BlendedStreams()
    np.testing.assert_allclose(
        blended.weighted(x, post), weighted(x, post), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        blended.written(x, mixing, post, branch),
        written(x, mixing, post, [branch] * N),
        rtol=1e-5,
        atol=1e-5,
    )


def test_the_platform_to_interpret_is_checked():
    with pytest.raises(ValueError, match="one of cuda, tpu, got 'gpu'"):
        BlendedStreams.check(interpreted="gpu")
