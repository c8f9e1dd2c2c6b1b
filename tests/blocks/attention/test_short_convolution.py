"""A convolution over the last few tokens."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.short_convolution import ShortConvolution


def test_equals_numpys_convolution_of_every_feature():
    conv = ShortConvolution(3, kernel_size=4, rngs=nnx.Rngs(0))
    x = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32)
    y = conv(jnp.asarray(x.reshape(12, 3)), (2, 6)).reshape(2, 6, 3)
    taps = np.asarray(conv.taps[...])
    for sequence in range(2):
        for feature in range(3):
            # The last tap is the token's own.
            whole = np.convolve(x[sequence, :, feature], taps[::-1, feature])
            np.testing.assert_allclose(y[sequence, :, feature], whole[:6], atol=1e-6)


def test_a_size_of_one_is_a_factor():
    conv = ShortConvolution(2, kernel_size=1, rngs=nnx.Rngs(0))
    x = jnp.ones((3, 2))
    np.testing.assert_array_equal(conv(x, (1, 3)), x * conv.taps[...])


def test_tokens_that_do_not_add_up_are_refused():
    conv = ShortConvolution(2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"batch \* seq = 2 \* 2 tokens, got shape"):
        conv(jnp.ones((3, 2)), (2, 2))
