"""The model shapes every peer is measured at, and what their steps cost on paper."""

import dataclasses
import json

# One optimizer for every peer. Matrices decay; clipping is by the global norm.
LEARNING_RATE, B1, B2, EPS = 1e-3, 0.9, 0.95, 1e-8
WEIGHT_DECAY, CLIP_NORM = 0.1, 1.0


@dataclasses.dataclass(frozen=True)
class Point:
    """A decoder: Pre-LayerNorm, GELU feed-forward of 4 d_model, tied head, float32.

    `steps` is how many optimizer steps a peer takes in one round.
    """

    name: str
    d_model: int
    n_layers: int
    n_heads: int
    seq_len: int
    batch_size: int
    vocab_size: int = 256
    steps: int = 1

    @property
    def d_ff(self) -> int:
        return 4 * self.d_model

    @property
    def tokens(self) -> int:
        return self.batch_size * self.seq_len

    @property
    def matmul_params(self) -> int:
        """N = 12 L D^2 + V D: the parameters that are multiplied (the head is tied)."""
        return 12 * self.n_layers * self.d_model**2 + self.vocab_size * self.d_model

    def flops(self, matmul_params: int | None = None) -> int:
        """Model FLOPs of a step, B T (6 N + 12 L D T).

        The second term is full attention, not half of it for the causal mask: the
        convention of PaLM (arXiv 2204.02311, appendix B) and of nanoGPT. What is
        recomputed in the backward pass does not count.
        """
        n = self.matmul_params if matmul_params is None else matmul_params
        attention = 12 * self.n_layers * self.d_model * self.seq_len
        return self.tokens * (6 * n + attention)

    def replace(self, **sizes) -> "Point":
        return dataclasses.replace(self, **sizes)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Point":
        return cls(**json.loads(text))


POINTS = {
    p.name: p
    for p in (
        Point("tiny", 32, 2, 2, 32, 8, steps=200),
        Point("small", 64, 6, 2, 64, 8, steps=25),
        Point("base", 128, 4, 4, 128, 16, steps=4),
        Point("big", 256, 8, 4, 128, 16, steps=1),
    )
}
