"""A moving average of the weights, kept beside a run and read for evaluation.

    a_1 = p_1        a_t = a_{t-1} + (1 - decay) / (1 - decay^t) * (p_t - a_{t-1})

t counts updates from 1. This is the exponential average with its start corrected: no
trace of zero or of the initial parameters is left, a_t weighs p_s by decay^(t - s). As
decay goes to 1 it becomes the plain mean of Polyak and Juditsky (1992).

Source: bias correction of arXiv 1412.6980 section 3, applied to the parameters;
optax 0.2.8 `ema(decay, debias=True)` fed with parameters gives the same numbers.
"""

import jax
import jax.numpy as jnp

Params = dict[str, jax.Array]


def check(*, decay: float) -> None:
    """Refuses what is not in [0, 1): at 1 no parameter would weigh anything."""
    if not 0 <= decay < 1:
        raise ValueError(f"decay: expected a number in [0, 1), got {decay}")


def init(params: Params) -> Params:
    """The average before any update: the parameters, in float32 or wider."""
    return {path: _wide(p) for path, p in params.items()}


def update(average: Params, params: Params, decay, step) -> Params:
    """The average after the update that gave `params`.

    Args:
        average: of `init` or of the update before; keeps its dtypes.
        params: after the update.
        decay: weight of the past, in [0, 1); a number or a traced scalar.
        step: updates finished, this one included: 1 at the first; likewise.
    """

    def mix(a, p):
        d = jnp.asarray(decay, a.dtype)
        # 1 - d^t cancels for d near 1, expm1 does not; d = 0 gives 1.
        share = (1 - d) / -jnp.expm1(jnp.asarray(step, a.dtype) * jnp.log(d))
        return a + share * (p.astype(a.dtype) - a)

    return {path: mix(a, params[path]) for path, a in average.items()}


def _wide(p: jax.Array) -> jax.Array:
    # A copy: the average and the parameters may be donated to one program.
    return jnp.array(p, jnp.promote_types(p.dtype, jnp.float32))


class Average:
    """The average as a part: evaluation uses it, training does not notice.

    Args:
        decay: weight of the past, in [0, 1); about 1 / (1 - decay) updates count.
    """

    traced = ("decay",)

    check = staticmethod(check)

    def __init__(self, *, decay: float = 0.999):
        self.decay = decay

    def init(self, params: Params) -> Params:
        """Before any update."""
        return init(params)

    def update(self, average: Params, params: Params, step) -> Params:
        """After the update number `step` (from 1), which gave `params`."""
        return update(average, params, self.decay, step)
