"""Normal initialization without its tails, as in BERT, ViT and OLMo 2."""

import dataclasses

import jax
import jax.numpy as jnp

from blocks.checks import check_positive
from blocks.inits.normal import Normal


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruncatedNormal(Normal):
    """`Normal` with every draw beyond `cutoff` standard deviations taken again.

        kernel     N(0, std^2) within +-cutoff std
        output     the same with std * n_sublayers**-depth_power    use = "output"
        embedding  N(0, embedding_std^2) within +-cutoff embedding_std
        bias       0

    std is that of the whole bell, as in torch and TensorFlow: what is drawn has
    0.987 std at cutoff 3 and 0.880 std at cutoff 2. All draws are float32.

    Attributes: as in `Normal` (but without the factor of depth by default), and
        cutoff: where the tails are cut, in standard deviations; a number or a traced
            scalar.

    Source: allenai/OLMo configs/official-1124/OLMo2-7B-stage1.yaml (0.02, cutoff 3);
    google-research/bert modeling.py, create_initializer (0.02,
    tf.truncated_normal_initializer cuts at 2).
    Departure: torch.nn.init.trunc_normal_ left at its defaults cuts at +-2, not at two
    standard deviations, and so cuts nothing of std = 0.02 (pytorch/torchtitan).
    """

    depth_power: float = 0.0
    cutoff: float = 3.0

    traced = (*Normal.traced, "cutoff")

    @staticmethod
    def check(
        *,
        std: float = 0.02,
        embedding_std: float = 0.02,
        depth_power: float = 0.0,
        cutoff: float = 3.0,
    ) -> None:
        """Raises ValueError for values that make no network."""
        Normal.check(std=std, embedding_std=embedding_std, depth_power=depth_power)
        check_positive(cutoff=cutoff)

    def kernel(
        self, key: jax.Array, shape: tuple[int, int], use: str, *, layer, n_sublayers
    ) -> jax.Array:
        """Draws a kernel [d_in, d_out]; `layer` plays no part here."""
        del layer
        std = jnp.asarray(self.std, jnp.float32)
        if use == "output":
            depth = jnp.asarray(n_sublayers, jnp.float32)
            std *= depth ** -jnp.asarray(self.depth_power, jnp.float32)
        return std * self._unit(key, shape)

    def embedding(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Draws a token table [vocab_size, d_model]."""
        return jnp.asarray(self.embedding_std, jnp.float32) * self._unit(key, shape)

    def _unit(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        cutoff = jnp.asarray(self.cutoff, jnp.float32)
        return jax.random.truncated_normal(key, -cutoff, cutoff, shape, jnp.float32)
