"""Logits of a text whose tokens come one after the other, for tests."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from blocks.generation import continued
from blocks.modes import set_training
from blocks.positions.place import Place

N_PROMPT = 4  # tokens that come at once
QUICKLY_COMPILED = {"xla_backend_optimization_level": 0}


def whole_and_token_by_token(model, tokens, *, room=3):
    """Logits [batch, seq, vocab] of both ways, from one program.

    room: positions that the cache has and nothing reaches.
    """
    graphdef, arrays = nnx.split(model)
    length = tokens.shape[1] + room

    @functools.partial(jax.jit, compiler_options=QUICKLY_COMPILED)
    def run(arrays, tokens):
        model = nnx.merge(graphdef, arrays)
        set_training(model, False)
        given, kept = continued(model, tokens[:, :N_PROMPT], Place(0, length))

        def step(kept, token):
            start, token = token
            # A model of this trace: it carries its statistics on.
            model = nnx.merge(graphdef, jax.tree.map(lambda x: x, arrays))
            set_training(model, False)
            hidden, kept = continued(model, token[:, None], Place(start, length), kept)
            return kept, model.logits(hidden)

        starts = jnp.arange(N_PROMPT, tokens.shape[1])
        _, one_by_one = jax.lax.scan(step, kept, (starts, tokens[:, N_PROMPT:].T))
        given = model.logits(given).reshape(len(tokens), N_PROMPT, -1)
        found = jnp.concatenate([given, jnp.moveaxis(one_by_one, 0, 1)], axis=1)
        return model(tokens), found

    return run(arrays, tokens)
