"""Attention and feed-forward with norms at different sites."""

import dataclasses

from blocks.placement import PRE, Placement


@dataclasses.dataclass(frozen=True, kw_only=True)
class BySublayer:
    """The norms of attention and of the feed-forward, each as a Placement has them.

    Of `attn` and `ffn` only the norms of the sub-layer count; those at the ends of the
    model are given here. NormFormer (arXiv 2110.09456) is one of these.
    """

    varies = False
    parallel = False

    attn: Placement = PRE
    ffn: Placement = PRE
    embedding_norm: bool = False
    final_norm: bool = True

    def at(self, site: str, layer: int, n_layers: int) -> Placement:
        """The placement of one sub-layer of block `layer`."""
        del layer, n_layers
        return {"attn": self.attn, "ffn": self.ffn}[site]
