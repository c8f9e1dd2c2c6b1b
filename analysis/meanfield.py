"""Mean-field theory of residual stacks: stream and gradient of every block.

For a wide stack of feed-forward sub-layers at initialization. The branch F adds a mean
square v per unit of mean square that it reads; `s_l^2` is the mean square of the stream
after block l, `delta_l` the gradient of the loss in it, relative to that in the output.

    forward    s_l^2     = s_{l-1}^2 + (what block l adds)
    backward   delta_{l-1}^2 = delta_l^2 * (1 + gain of branch l)
    weights    g(l) = C * (scale of branch l) * delta_l * (RMS that F reads)

With a normalizer that divides by the scale the backward product telescopes to
s_L^2 / s_l^2, and a final norm divides by s_L: g(l) = C / s_l, whatever L is. The depth
dependence of the last block is then that of the stream alone. A pointwise function does
not divide, and nothing telescopes.

C is the same number for all depths of one scheme; it holds width, data and loss.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import erf


@dataclass(frozen=True)
class MeanField:
    """Theory of one stack.

    Attributes:
        stream: s_l^2 before block 1 and after blocks 1..L, [L + 1].
        gradient: g(l) / C of blocks 1..L, [L].
    """

    stream: np.ndarray
    gradient: np.ndarray


Scheme = Callable[..., MeanField]


def pre(
    n_layers: int,
    *,
    s0_square: float = 1.0,
    v: float = 1.0,
    factors: Sequence[float] | None = None,
) -> MeanField:
    """x + c_l F(N(x)), then a norm: g(l) = C c_l / sqrt(s0^2 + v sum_{k<=l} c_k^2).

    With c = 1 Pre-LN, C / sqrt(s0^2 + v l). Peri-LN and OLMo 2 are the same with v = 1,
    the mean square of a normalized branch, whatever the weights are.
    """
    c = np.ones(n_layers) if factors is None else np.asarray(factors, float)
    stream = s0_square + v * np.concatenate([[0.0], np.cumsum(c**2)])
    return MeanField(stream, c / np.sqrt(stream[1:]))


def layernorm_scaling(n_layers: int, *, s0_square=1.0, v=1.0) -> MeanField:
    """x + F(N(x) / sqrt(l)): c_l = l^-1/2, stream s0^2 + v H_l, H_l = 1 + 1/2 + ... + 1/l.

    arXiv 2502.05795.
    """
    blocks = np.arange(1, n_layers + 1)
    return pre(n_layers, s0_square=s0_square, v=v, factors=blocks**-0.5)


def depth_scaled(
    n_layers: int, *, power: float = 0.5, s0_square=1.0, v=1.0
) -> MeanField:
    """x + L^-power F(N(x)): depth-muP (1/2, arXiv 2310.02244), CompleteP (1, 2505.01618).

    GPT-2's 1/sqrt(L) on W2 is power 1/2 for W1; the gradient of W2 itself then lacks
    the factor L^-1/2.
    """
    factors = np.full(n_layers, float(n_layers) ** -power)
    return pre(n_layers, s0_square=s0_square, v=v, factors=factors)


def post(n_layers: int, *, s0_square=1.0, v=1.0) -> MeanField:
    """N(x + F(x)): every block sees and leaves mean square 1, so g(l) = C / sqrt(1 + v).

    The gain 1 + v of the sum and the norm's division by it cancel in both directions.
    F is taken to be homogeneous (a ReLU stack), so s0^2 drops out in the first block.
    """
    stream = np.concatenate([[s0_square], np.ones(n_layers)])
    return MeanField(stream, np.full(n_layers, (1 + v) ** -0.5))


def deepnorm(n_layers: int, *, s0_square=1.0, v=1.0) -> MeanField:
    """N(alpha x + F(x)), all weights of F times beta.

    g(l) = C beta / sqrt(alpha^2 + beta^4 v)

    alpha = (2 L)^(1/4), beta = (8 L)^(-1/4): L^-1/2 almost exactly, and the same for
    every block. arXiv 2203.00555.
    """
    alpha_square, beta = math.sqrt(2 * n_layers), (8 * n_layers) ** -0.25
    gradient = beta / math.sqrt(alpha_square + beta**4 * v)
    stream = np.concatenate([[s0_square], np.ones(n_layers)])
    return MeanField(stream, np.full(n_layers, gradient))


def mix(n_layers: int, *, share: float = 0.25, s0_square=1.0, v=1.0) -> MeanField:
    """The first floor(share L) blocks Post-LN, the others Pre-LN.

    The Pre-LN part starts at mean square 1: g(L) = C / sqrt(1 + v (L - floor(share L))).
    arXiv 2412.13795; floor as in its code.
    """
    first = int(share * n_layers)
    rest = pre(n_layers - first, s0_square=1.0 if first else s0_square, v=v)
    head = post(first, s0_square=s0_square, v=v)
    stream = np.concatenate([head.stream[:-1], rest.stream])
    # Through the Pre-LN part the stream gradient reaches its input as 1 / s = 1.
    return MeanField(stream, np.concatenate([head.gradient, rest.gradient]))


def residual_two_streams(n_layers: int, *, s0_square=1.0, v=1.0) -> MeanField:
    """ResiDual: x = N(x + F(x)), z = z + F(x), out = x + N(z).

        g(L) = C (1 / sqrt(1 + v) + 1 / sqrt(s0^2 + v L))

    The two paths carry the same output gradient, so their amplitudes add. Of the last
    block only: the others are NaN. arXiv 2304.14802.
    """
    stream = s0_square + v * np.arange(n_layers + 1)
    gradient = np.full(n_layers, np.nan)
    gradient[-1] = (1 + v) ** -0.5 + stream[-1] ** -0.5
    return MeanField(stream, gradient)


def no_norm(
    n_layers: int, *, s0_square=1.0, v=1.0, is_final_norm: bool = False
) -> MeanField:
    """x + F(x): the stream grows by 1 + v per block, and so does every gradient.

    g(l) = C s0 (1 + v)^{(L - 1) / 2}, the same for all l. A final norm divides by
    s_L and makes it flat over depths, too.
    """
    stream = s0_square * (1 + v) ** np.arange(n_layers + 1.0)
    gradient = np.full(n_layers, math.sqrt(s0_square) * (1 + v) ** ((n_layers - 1) / 2))
    return MeanField(stream, gradient / math.sqrt(stream[-1]) ** is_final_norm)


# f, f' and the name of the norm's class.
POINTWISE = {
    "Derf": (erf, lambda u: 2 / math.sqrt(math.pi) * np.exp(-(u**2))),
    "DyT": (np.tanh, lambda u: 1 - np.tanh(u) ** 2),
}
# A standard normal variable as nodes and weights: the trapezoid rule, whose error for
# these analytic functions falls exponentially (at 1001 nodes below 1e-12).
_NODES = np.linspace(-9, 9, 1001)
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()


def gaussian_mean(function: Callable[[np.ndarray], np.ndarray]) -> float:
    """E function(z) for z ~ N(0, 1)."""
    return float(_WEIGHTS @ function(_NODES))


def pointwise(
    n_layers: int,
    *,
    function: str = "Derf",
    alpha: float = 0.5,
    s0_square=1.0,
    v=1.0,
) -> MeanField:
    """x + F(f(alpha x)), then f(alpha x): nothing divides by the scale of the stream.

        s_l^2         = s_{l-1}^2 + v E f(alpha s_{l-1} z)^2              z ~ N(0, 1)
        delta_{l-1}^2 = delta_l^2 (1 + v alpha^2 E f'(alpha s_{l-1} z)^2)
        delta_L^2     = alpha^2 E f'(alpha s_L z)^2
        g(l)          = C delta_l sqrt(E f(alpha s_{l-1} z)^2)

    E f'^2 falls as 1 / s and not as 1 / s^2, so the last block tends to L^-1/4 (beyond
    some hundred blocks), and the first one grows as exp(const sqrt(L)).
    """
    if function not in POINTWISE:
        raise ValueError(
            f"function must be one of {', '.join(POINTWISE)}, got {function!r}"
        )
    f, derivative = POINTWISE[function]

    def moments(square: float) -> tuple[float, float]:
        scale = alpha * math.sqrt(square)
        return (
            gaussian_mean(lambda z: f(scale * z) ** 2),
            alpha**2 * gaussian_mean(lambda z: derivative(scale * z) ** 2),
        )

    stream, read, slope = [float(s0_square)], [], []
    for _ in range(n_layers):
        value, gain = moments(stream[-1])
        read.append(value)
        slope.append(gain)
        stream.append(stream[-1] + v * value)
    _, final = moments(stream[-1])
    # delta_l^2 from the last block to the first.
    gains = 1 + v * np.asarray(slope)
    delta = final * np.concatenate([np.cumprod(gains[:0:-1])[::-1], [1.0]])
    return MeanField(np.asarray(stream), np.sqrt(delta * np.asarray(read)))


def over_depths(scheme: Scheme, depths: Sequence[int], layer: str = "last", **keywords):
    """g / C of the first or last block at each of these depths, [len(depths)]."""
    at = 0 if layer == "first" else -1
    return np.array([scheme(int(d), **keywords).gradient[at] for d in depths])
