"""HybridNorm: the norm between attention and feed-forward, and none before either."""

import dataclasses

from blocks.placement import NONE, POST, PRE, Placement


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hybrid:
    """One norm in a block, behind the sum of stream and attention.

        h = norm(x + attention(x)),     y = h + ffn(h)

    The attention normalizes its q, k and v (blocks.attention.qkv_norm). With first_pre
    block 0 is Pre-LN in both sub-layers (HybridNorm*).

    Source: arXiv 2503.04598 section 3; BryceZhuo/HybridNorm (final norm kept).
    """

    parallel = False
    needs_attention = True  # its norm is behind attention

    first_pre: bool = False
    embedding_norm: bool = False
    final_norm: bool = True

    @property
    def varies(self) -> bool:
        return self.first_pre

    def at(self, site: str, layer: int, n_layers: int) -> Placement:
        """The placement of one sub-layer of block `layer`."""
        del n_layers
        if self.first_pre and layer == 0:
            return PRE
        return POST if site == "attn" else NONE
