"""Released models go on with a text as they read it whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blocks.generation import check
from tests.blocks.released.conftest import GOLDEN, of, slow
from tests.blocks.token_by_token import whole_and_token_by_token

# Learned positions; sinks and windows; chunks, and queries that grow; a delta rule.
QUICK = ("gpt2", "gpt_oss", "llama4", "qwen3_next")
ENCODERS = (
    "bert",
    "ref_vit22b",
    "ref_vit22b_ln",
    "t5_encoder",
    "t5v1_1_encoder",
    "vit",
)
WITHOUT_A_CACHE = ("deepseek_v4",)
FOUND = sorted(path.parent.name for path in GOLDEN.glob("*/weights.safetensors"))
FAMILIES = [
    name if name in QUICK else slow(name)
    for name in FOUND
    if name not in (*ENCODERS, *WITHOUT_A_CACHE)
]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_token_by_token_are_those_of_the_real_model(family):
    """In float32, and beside the whole text in float64."""
    model = of(family)
    params, state = model.loaded
    check(model.layout.merge(params, state))
    tokens = jnp.asarray(model.batch)
    _, found = whole_and_token_by_token(model.layout.merge(params, state), tokens)
    model.assert_close(found, "logits")
    with jax.enable_x64(True):
        _, layout = model.built("model.dtype=float64")
        params = {path: jnp.asarray(x, np.float64) for path, x in params.items()}
        whole, found = whole_and_token_by_token(layout.merge(params, state), tokens)
        whole, found = np.asarray(whole), np.asarray(found)
    assert whole.dtype == np.float64
    largest = np.abs(whole).max()
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-12 * largest)
    model.assert_close(whole, "logits")


@pytest.mark.parametrize("family", WITHOUT_A_CACHE)
def test_a_family_without_a_cache_is_refused(family):
    model = of(family)
    with pytest.raises(ValueError, match="its call takes no"):
        check(model.layout.merge(*model.loaded))
