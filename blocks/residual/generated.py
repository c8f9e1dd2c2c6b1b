"""What the schemes with generated coefficients have in common."""

import abc
import math
from collections.abc import Callable

import jax
from flax import nnx

from blocks.checks import check_choice, check_finite
from blocks.norms.statistics import check_eps
from blocks.residual.add import AddEnds, AddJoint
from blocks.residual.generated_joint import STARTS, GeneratedJoint
from blocks.residual.stream_ends import StreamEnds
from blocks.residual.streams import check_streams, refuse_post_norm
from blocks.site import Site


def check_generated(
    *,
    n_streams: int = 4,
    start: str = "uniform",
    alpha_init: float = 0.01,
    phi_std: float = 0.02,
    eps: float = 1e-6,
    expand: str = "copy",
    reduce: str = "mean",
) -> None:
    """Raises ValueError for values that no generated scheme can have."""
    check_streams(n_streams, expand, reduce)
    check_eps(eps)
    check_choice("start", start, STARTS)
    check_finite(alpha_init=alpha_init)
    if not (math.isfinite(phi_std) and phi_std >= 0):
        raise ValueError(f"phi_std must be finite and >= 0, got {phi_std}")
    # Streams that start alike and are treated alike get the same gradients for ever.
    if start == "uniform" and expand == "copy" and phi_std == 0 and n_streams > 1:
        raise ValueError(
            f"phi_std must be above 0 with start='uniform' and n_streams={n_streams}, "
            f"got {phi_std}: nothing would ever make the streams differ "
            "(or take start='onehot')"
        )


def check_coefficient_eps(coefficient_eps: float) -> None:
    """Raises ValueError for what cannot be added to weights of streams."""
    if not (math.isfinite(coefficient_eps) and coefficient_eps >= 0):
        raise ValueError(
            f"coefficient_eps must be finite and >= 0, got {coefficient_eps}"
        )


class GeneratedStreams(abc.ABC):
    """What the schemes have in common whose joints are `GeneratedJoint`s.

    A subclass has `joint` (the class of its joints), `res_init()` (initial biases of
    raw_res) and may have `joint_keywords`. With n_streams = 1 there is nothing to mix
    and nothing to weigh: the scheme is then the plain residual, without parameters.
    """

    takes_post_norm = False  # there is no sum of stream and branch to normalize
    joint: type[GeneratedJoint]
    check = staticmethod(check_generated)

    def __init__(
        self,
        *,
        n_streams: int = 4,
        start: str = "uniform",
        alpha_init: float = 0.01,
        phi_std: float = 0.02,
        eps: float = 1e-6,
        expand: str = "copy",
        reduce: str = "mean",
    ):
        """Args:
        n_streams: residual streams, 1 to 8.
        start: uniform or onehot, the initial biases of H_pre and H_post.
        alpha_init: of the gates of what depends on the token.
        phi_std: standard deviation of phi.
        eps: of the normalization of the flattened streams.
        expand: copy or first; reduce: mean, sum or head (`StreamEnds`).
        """
        self.n_streams = n_streams
        self.start = start
        self.alpha_init = alpha_init
        self.phi_std = phi_std
        self.eps = eps
        self.expand = expand
        self.reduce = reduce
        self.coefficient_eps = 0.0
        self.joint_keywords = {}

    @abc.abstractmethod
    def res_init(self) -> jax.Array:
        """Initial biases of raw_res."""

    def init_factor(self, use: str, site: Site) -> float:
        """Initial kernels are as they would be without streams."""
        del use, site
        return 1.0

    def make_ends(
        self, d_model: int, *, n_layers, norm: Callable, rngs: nnx.Rngs
    ) -> nnx.Module:
        del n_layers, norm
        if self.n_streams == 1:
            return AddEnds()
        return StreamEnds(
            d_model,
            n_streams=self.n_streams,
            expand=self.expand,
            reduce=self.reduce,
            eps=self.eps,
            coefficient_eps=self.coefficient_eps,
            rngs=rngs,
        )

    def make_joint(
        self,
        d_model: int,
        *,
        site: Site,
        post_norm: Callable | None = None,
        rngs: nnx.Rngs,
    ) -> nnx.Module:
        refuse_post_norm(post_norm, self.n_streams)
        if self.n_streams == 1:
            return AddJoint(None, skip=1.0, branch_scale=1.0)
        return self.joint(
            d_model,
            n_streams=self.n_streams,
            start=self.start,
            number=site.number,
            alpha_init=self.alpha_init,
            phi_std=self.phi_std,
            res_init=self.res_init(),
            eps=self.eps,
            coefficient_eps=self.coefficient_eps,
            rngs=rngs,
            **self.joint_keywords,
        )
