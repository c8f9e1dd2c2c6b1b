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
    `post_norm` is the joint's: a residual scheme that is no plain sum says where it
    puts it. `parallel` makes attention and feed-forward one sub-layer: both read the
    same normalized input and their sum is the branch (GPT-J, PaLM).

    A placement in which sub-layers or layers differ (blocks/placements) is a class with
    the same attributes and its own `at`; `varies` is true where layers do.
    """

    varies = False

    in_norm: bool = True
    inner_norm: bool = False
    out_norm: bool = False
    post_norm: bool = False
    embedding_norm: bool = False
    final_norm: bool = True
    parallel: bool = False

    def at(self, site: str, layer: int, n_layers: int) -> "Placement":
        """The placement of one sub-layer of block `layer`."""
        del site, layer, n_layers
        return self


NONE = Placement(in_norm=False)
PRE = Placement()
POST = Placement(in_norm=False, post_norm=True)
