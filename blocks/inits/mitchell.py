"""Fan-in initialization whose branches shrink with the layer, as in OLMo 1."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from blocks.checks import check_finite, check_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mitchell:
    """One over the fan-in, and smaller branches the deeper they sit.

        kernel     T(1 / fan_in)
        output     T(1 / (2 (layer + 1) fan_in))    use = "output", layer from 0
        embedding  T(1 / d_model)
        bias       0

    T(v) is N(0, v) within +-cutoff sqrt(v). What layer l adds has variance about
    1 / (l + 1), so the stream grows with the logarithm of depth, and a layer starts
    the same in a deep model as in a shallow one; GPT-2's rule (`Normal`) shrinks all
    layers alike by the depth of the whole. All draws are float32.

    Attributes:
        depth_power: exponent of 2 (layer + 1); 0.5 is OLMo's, 0 shrinks nothing; a
            number or a traced scalar.
        cutoff: where the tails are cut, in standard deviations; likewise.

    Source: allenai/OLMo, init_fn "mitchell" (after Mitchell Wortsman), trained with in
    configs/official/OLMo-7B.yaml. The same factor on 0.02 is the depth_init of
    pytorch/torchtitan llama3.
    """

    depth_power: float = 0.5
    cutoff: float = 3.0

    traced = ("depth_power", "cutoff")

    @staticmethod
    def check(*, depth_power: float = 0.5, cutoff: float = 3.0) -> None:
        """Raises ValueError for values that make no network."""
        check_finite(depth_power=depth_power)
        check_positive(cutoff=cutoff)

    def kernel(
        self, key: jax.Array, shape: tuple[int, int], use: str, *, layer, n_sublayers
    ) -> jax.Array:
        """Draws a kernel [d_in, d_out] of block `layer`, which may be traced."""
        del n_sublayers
        std = jnp.asarray(1 / math.sqrt(shape[0]), jnp.float32)
        if use == "output":
            depth = 2 * (jnp.asarray(layer, jnp.float32) + 1)
            std *= depth ** -jnp.asarray(self.depth_power, jnp.float32)
        return std * self._unit(key, shape)

    def bias(self, key: jax.Array, shape: tuple[int], fan_in: int) -> jax.Array:
        """Zeros."""
        del key, fan_in
        return jnp.zeros(shape, jnp.float32)

    def embedding(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draws a token table [vocab_size, d_model]."""
        std = jnp.asarray(1 / math.sqrt(shape[1]), jnp.float32)
        return std * self._unit(key, shape)

    def _unit(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        cutoff = jnp.asarray(self.cutoff, jnp.float32)
        return jax.random.truncated_normal(key, -cutoff, cutoff, shape, jnp.float32)
