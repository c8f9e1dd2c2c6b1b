"""Router that scores every expert by itself: DeepSeek-V3 and V4, Kimi K2, Llama 4."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.checks import check_not_negative
from blocks.ffn.moe.router import best_groups, check_groups
from blocks.ffn.moe.scoring import ScoringRouter, check_scoring
from blocks.linear import Linear
from blocks.state import Running


class SigmoidRouter(ScoringRouter):
    """The experts with the top_k largest s + balance_bias, weighed by s = score(logits)
    as `ScoringRouter` says.

    The bias only chooses; it is in no weight and has no gradient. After every training
    call it moves against the load, which balances without an auxiliary loss:

        balance_bias_e += bias_speed * sign(1 / n_experts - load_e)

    With n_groups > 1 a token chooses within its top_groups best groups, each worth the
    sum of its two largest s + balance_bias.

                    score         top_k  renormalize  scale  n_groups  top_groups
        DeepSeek-V3 sigmoid         8       yes        2.5      8          4
        Kimi K2     sigmoid         8       yes        2.827    1          1
        DeepSeek-V4 sqrtsoftplus    6       yes        1.5      1          1
        Llama 4     sigmoid         1       no         1        1          1

    State beside that of `Router` (float32):
        balance_bias  [n_experts]  starts at 0
        bias_speed    []           kept here because members may differ in it

    Source: arXiv 2412.19437 section 2.1.2, arXiv 2408.15664; transformers 5.24.0
    DeepseekV3TopkRouter, Llama4Router.
    Departure: Llama 4 chooses by the logit, which differs only where sigmoid rounds to
    one number (logits above 17).
    """

    traced = ("aux_coefficient", "bias_speed")

    @staticmethod
    def check(
        *,
        score: str = "sigmoid",
        top_k: int = 2,
        renormalize: bool = True,
        scale: float = 1.0,
        n_groups: int = 1,
        top_groups: int = 1,
        bias_speed: float = 0.001,
        aux_coefficient: float = 0.0,
    ) -> None:
        """Raises ValueError for values that make no router."""
        check_not_negative(bias_speed=bias_speed)
        check_scoring(
            score=score,
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
        score: str = "sigmoid",
        top_k: int = 2,
        renormalize: bool = True,
        scale: float = 1.0,
        n_groups: int = 1,
        top_groups: int = 1,
        bias_speed: float = 0.001,
        aux_coefficient: float = 0.0,
        linear: Callable = Linear,
        rngs: nnx.Rngs,
    ):
        """Args:
        d_model: width of the tokens.
        n_experts: experts to choose from.
        score: sigmoid, or sqrtsoftplus, sqrt(log(1 + e^z)).
        top_k: experts per token.
        renormalize: the weights of a token sum to `scale`.
        scale: factor on every weight (routed_scaling_factor).
        n_groups, top_groups: choose within the best groups only.
        bias_speed: step of the balancing bias per training call; 0 keeps it still.
            A number or a traced scalar.
        aux_coefficient: of the balancing loss; likewise.
        linear: makes the map whose kernel becomes the router's.
        rngs: gives the keys.
        """
        check_groups(n_experts, top_k, n_groups, top_groups)
        super().__init__(
            d_model,
            n_experts,
            score=score,
            top_k=top_k,
            renormalize=renormalize,
            scale=scale,
            aux_coefficient=aux_coefficient,
            linear=linear,
            rngs=rngs,
        )
        self.n_groups = n_groups
        self.top_groups = top_groups
        self.balance_bias = Running(jnp.zeros((n_experts,), jnp.float32))
        self.bias_speed = Running(jnp.full((), bias_speed, jnp.float32))

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Weights (float32 or wider) and experts, [tokens, top_k], best first."""
        s = self.scores(x)
        ranked = s + self.balance_bias[...].astype(s.dtype)
        allowed = best_groups(ranked, self.n_groups, self.top_groups, summed=2)
        _, chosen = jax.lax.top_k(allowed, self.top_k)
        weights, load = self.weigh(s, chosen)
        if self.is_training:
            # Compared as counts, so that an exactly balanced expert stays put.
            pairs = chosen.size
            counts = jnp.round(load * pairs)
            step = jnp.sign(pairs - counts * self.n_experts).astype(jnp.float32)
            self.balance_bias[...] = (
                self.balance_bias[...] + self.bias_speed[...] * step
            )
        return weights, chosen
