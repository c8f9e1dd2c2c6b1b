"""Routers that score every expert by itself, whatever chooses among them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_choice
from blocks.ffn.activations import activation_of
from blocks.ffn.moe.router import Router, check_router

SCORES = ("sigmoid", "sqrtsoftplus")
EPS = 1e-20


class ScoringRouter(Router):
    """Base of routers with s = score(logits):

        weight_e = scale * s_e / (sum of the chosen s + 1e-20)   renormalize
        weight_e = scale * s_e                                   otherwise

    In the balancing loss p = s / (sum(s) + 1e-20). Parameters, state and dtypes: see
    `Router`.
    """

    def __init__(
        self,
        d_model: int,
        n_experts: int,
        *,
        score: str,
        top_k: int,
        renormalize: bool,
        scale: float,
        aux_coefficient,
        linear: Callable,
        rngs: nnx.Rngs,
    ):
        super().__init__(
            d_model,
            n_experts,
            top_k=top_k,
            bias=False,
            aux_coefficient=aux_coefficient,
            linear=linear,
            rngs=rngs,
        )
        self.score = score
        self.renormalize = renormalize
        self.scale = scale

    def scores(self, x: jax.Array) -> jax.Array:
        """s [tokens, n_experts], float32 or wider."""
        return activation_of(self.score)(self.logits(x))

    def weigh(self, s: jax.Array, chosen: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Weights of the chosen experts [tokens, top_k], and the load [n_experts]."""
        weights = jnp.take_along_axis(s, chosen, axis=-1)
        if self.renormalize:
            # Whoever chooses may leave none but experts that score next to nothing, and
            # the square of a sum near 1e-20, for the gradient, leaves float32.
            largest = jnp.max(weights, axis=-1, keepdims=True)
            largest = jax.lax.stop_gradient(jnp.maximum(largest, 1e-18))
            weights = weights / largest
            total = jnp.sum(weights, -1, keepdims=True)
            weights = weights / (total + EPS / largest)
        p = s / (jnp.sum(s, -1, keepdims=True) + EPS)
        return self.balance(self.scale * weights, chosen, p)


def check_scoring(
    *, score: str, top_k: int, scale: float, aux_coefficient: float, **of
):
    """Raises ValueError for values that make no such router; `of` as `check_router`."""
    check_choice("score", score, SCORES)
    groups = {"n_groups": 1, "top_groups": 1} | of
    check_router(top_k=top_k, scale=scale, aux_coefficient=aux_coefficient, **groups)
