"""Where in the model a sub-layer sits, for parts that depend on it."""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class Site:
    """One sub-layer of one block.

    name: of the sub-layer: "attn", "ffn".
    layer: index of the block from 0; may be traced (blocks are built under vmap).
    n_layers: blocks of the model; may be traced (`blocks.grown_stack`).
    index, per_block: number of the sub-layer in its block, and how many there are.
    """

    name: str
    layer: int | jax.Array
    n_layers: int | jax.Array
    index: int = 0
    per_block: int = 1

    @property
    def number(self):
        """Index of the sub-layer in the whole model, from 0."""
        return self.layer * self.per_block + self.index

    @property
    def n_sublayers(self):
        """Sub-layers of the whole model."""
        return self.n_layers * self.per_block
