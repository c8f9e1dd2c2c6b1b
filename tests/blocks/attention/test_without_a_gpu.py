"""cuDNN's kernel is a choice of the config, and an error where there is no GPU."""

import jax
import jax.numpy as jnp
import pytest

from blocks.attention.attend import attend


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="here is one")
def test_the_kernel_is_refused_by_name():
    x = jnp.zeros((1, 2, 8, 16), jnp.bfloat16)
    with pytest.raises(
        ValueError, match="implementation cudnn: .* NVIDIA GPU, and the"
    ):
        attend(x, x, x, causal=True, implementation="cudnn")
