"""Where the norms of a block sit."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Which sites of a block and of the model carry a norm.

        u      = in_norm(x)                      in_norm     Pre-LN, peri, sandwich
        branch = out_norm(F(u, inner_norm))      out_norm    OLMo 2, peri, sandwich
        y      = post_norm(x + branch)           post_norm   Post-LN, DeepNorm

    `inner_norm` sits inside F before its output projection (Sub-LN, NormFormer);
    `embedding_norm` follows the embedding; `final_norm` precedes the head, and is
    needed wherever the stream is not normalized by the last block already.
    """

    in_norm: bool = True
    inner_norm: bool = False
    out_norm: bool = False
    post_norm: bool = False
    embedding_norm: bool = False
    final_norm: bool = True
