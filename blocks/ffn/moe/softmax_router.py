"""Router with softmax scores: Mixtral, Qwen3-MoE, gpt-oss, DeepSeek-V2."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.ffn.moe.router import Router, best_groups, check_groups, check_router
from blocks.linear import Linear


class SoftmaxRouter(Router):
    """The top_k largest of p = softmax(logits), by their probabilities:

        weight_e = scale * p_e / (sum of the chosen p)      renormalize
        weight_e = scale * p_e                              otherwise

    The first is computed as softmax over the chosen logits, which is how gpt-oss has
    it and the same number. With top_k = 1 it is always `scale`: then only the
    balancing loss trains the router.

    With n_groups > 1 a token chooses within the top_groups groups of experts which
    hold its largest p (DeepSeek-V2, to bound the devices a token visits).

                    top_k  renormalize  scale  bias  n_groups  top_groups
        Qwen3-MoE     8       yes         1     no      1          1
        gpt-oss       4       yes         1     yes     1          1
        DeepSeek-V2   6       no          16    no      8          3

    Parameters, state, dtypes and the balancing loss: see `Router`.

    Source: transformers 5.24.0 Qwen3MoeTopKRouter, GptOssTopKRouter,
    DeepseekV2TopkRouter.
    Departure: DeepSeek-V2 gives experts outside the groups probability 0 instead of
    barring them, which differs only where a chosen p underflows to 0.
    """

    traced = ("aux_coefficient",)

    @staticmethod
    def check(
        *,
        top_k: int = 2,
        renormalize: bool = True,
        scale: float = 1.0,
        bias: bool = False,
        n_groups: int = 1,
        top_groups: int = 1,
        aux_coefficient: float = 0.0,
    ) -> None:
        """Raises ValueError for numbers that make no router."""
        check_router(
            top_k=top_k,
            n_groups=n_groups,
            top_groups=top_groups,
            scale=scale,
            aux_coefficient=aux_coefficient,
        )

    def __init__(
        self,
        d_model: int,
        n_experts: int,
        *,
        top_k: int = 2,
        renormalize: bool = True,
        scale: float = 1.0,
        bias: bool = False,
        n_groups: int = 1,
        top_groups: int = 1,
        aux_coefficient: float = 0.0,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: width of the tokens.
        n_experts: experts to choose from.
        top_k: experts per token.
        renormalize: the weights of a token sum to `scale`.
        scale: factor on every weight.
        bias: the logits have a learned offset.
        n_groups, top_groups: choose within the best groups only.
        aux_coefficient: of the balancing loss; a number or a traced scalar.
        linear: makes the map whose kernel becomes the router's.
        rngs: gives the keys.
        """
        check_groups(n_experts, top_k, n_groups, top_groups)
        super().__init__(
            d_model,
            n_experts,
            top_k=top_k,
            bias=bias,
            aux_coefficient=aux_coefficient,
            linear=linear,
            rngs=rngs,
        )
        self.renormalize = renormalize
        self.scale = scale
        self.n_groups = n_groups
        self.top_groups = top_groups

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Weights (float32 or wider) and experts, [tokens, top_k], best first."""
        logits = self.logits(x)
        p = jax.nn.softmax(logits)
        # Ordered by logits: probabilities tie where logits do not.
        allowed = best_groups(logits, self.n_groups, self.top_groups, summed=1)
        _, chosen = jax.lax.top_k(allowed, self.top_k)
        if self.renormalize:
            weights = jax.nn.softmax(jnp.take_along_axis(logits, chosen, axis=-1))
        else:
            weights = jnp.take_along_axis(p, chosen, axis=-1)
        weights, _ = self.balance(self.scale * weights, chosen, p)
        return weights, chosen
