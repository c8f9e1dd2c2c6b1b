"""Explicit and fused attention: the same function, and a written rule between them."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from blocks.attention import attend as module
from blocks.attention.attend import attend, explicit, fused, why_not_cudnn


def qkv(dtype=jnp.float32, *, seq=7, n_kv_heads=2, d_head=8, d_value=8):
    rng = np.random.default_rng(0)
    widths = ((4, d_head), (n_kv_heads, d_head), (n_kv_heads, d_value))
    return [
        jnp.asarray(rng.normal(size=(2, heads, seq, width)).astype(dtype))
        for heads, width in widths
    ]


# What jax.nn.dot_product_attention can say, with its own numbers from its XLA path:
# the call the kernel gets, on another implementation.
EXPRESSIBLE = {
    "causal": dict(causal=True),
    "bidirectional": dict(causal=False),
    "window": dict(causal=True, window=3),
    "window of one": dict(causal=True, window=1),
    "scale": dict(causal=True, scale=0.7),
    "one key/value head": dict(causal=True, sizes={"n_kv_heads": 1}),
    "narrow values": dict(causal=True, window=4, sizes={"d_value": 5}),
}


@pytest.mark.parametrize("variant", EXPRESSIBLE.values(), ids=EXPRESSIBLE)
def test_explicit_equals_jax_nn(variant):
    variant = dict(variant)
    arrays = qkv(**variant.pop("sizes", {}))
    variant = {"window": None, "scale": 8**-0.5, **variant}

    def of(function):
        @jax.jit
        def value_and_gradient(*arrays):
            y, pull = jax.vjp(functools.partial(function, **variant), *arrays)
            return y, pull(jnp.sin(jnp.arange(y.size)).reshape(y.shape))

        return jax.tree.leaves(value_and_gradient(*arrays))

    theirs = of(functools.partial(fused, implementation="xla"))
    for ours, expected in zip(of(explicit), theirs, strict=True):
        limit = 1e-5 * jnp.abs(expected).max()
        np.testing.assert_allclose(ours, expected, rtol=0, atol=limit)


@pytest.mark.parametrize(
    "keywords, sizes, reason",
    [
        ({}, {}, None),
        ({}, {"d_head": 12}, "multiple of 8 features up to 256, got 12"),
        ({}, {"d_head": 264}, "multiple of 8 features up to 256, got 264"),
        ({}, {"d_value": 16}, "values are wider than keys, 16 and 8"),
        ({}, {"dtype": jnp.float32}, "takes float16 and bfloat16, got float32"),
        ({"softcap": 2.0}, {}, "no softcap"),
        ({"chunk": 2}, {}, "no chunk"),
        ({"sinks": jnp.zeros(4)}, {}, "no sinks"),
    ],
)
def test_the_kernel_is_refused_by_name(keywords, sizes, reason):
    q, k, v = qkv(**{"dtype": jnp.bfloat16, **sizes})
    found = why_not_cudnn(q, v, **keywords)
    if reason is None:
        assert found is None
        return
    assert reason in found
    with pytest.raises(ValueError, match=f"implementation cudnn: .*{reason}"):
        attend(q, k, v, causal=True, implementation="cudnn", **keywords)


def test_without_cuda_auto_is_explicit():
    arrays = qkv(jnp.bfloat16)
    jaxpr = {
        name: str(
            jax.make_jaxpr(functools.partial(attend, causal=True, implementation=name))(
                *arrays
            )
        )
        for name in ("auto", "explicit")
    }
    assert jaxpr["auto"] == jaxpr["explicit"]


@pytest.fixture
def imagined_cuda(monkeypatch):
    """Lets the kernel be traced here: its own checks ask the device what it is."""
    from jax._src.cudnn import fused_attention_stablehlo as kernel

    # A private function of JAX (in 0.10); elsewhere only the lowering goes unchecked.
    if not hasattr(kernel, "check_cudnn_version"):
        pytest.skip("this JAX looks for cuDNN elsewhere")
    monkeypatch.setattr(kernel, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(module, "_has_cuda", lambda: True)


def lowered(platform, **keywords):
    """The program of the forward and backward pass for a platform, as text."""
    arrays = qkv(jnp.bfloat16, seq=16, d_head=keywords.pop("d_head", 8))
    arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]

    @jax.jit
    def gradients(*arrays):
        y, pull = jax.vjp(functools.partial(attend, causal=True, **keywords), *arrays)
        return pull(y)

    return jax.export.export(
        gradients,
        platforms=[platform],
        # The kernel is no promise of stable serialization, which is not used here.
        disabled_checks=[
            jax.export.DisabledSafetyCheck.custom_call("__cudnn$fmhaSoftmax"),
            jax.export.DisabledSafetyCheck.custom_call("__cudnn$fmhaSoftmaxBackward"),
        ],
    )(*arrays).mlir_module()


@pytest.mark.parametrize("keywords", [{}, {"window": 5}, {"scale": 0.3}])
def test_auto_compiles_the_kernel_for_cuda_alone(imagined_cuda, keywords):
    text = lowered("cuda", **keywords)
    assert "__cudnn$fmhaSoftmax" in text
    assert "__cudnn$fmhaSoftmaxBackward" in text
    assert "cudnn" not in lowered("cpu", **keywords)


@pytest.mark.parametrize(
    "keywords",
    [{"implementation": "explicit"}, {"softcap": 2.0}, {"d_head": 136}, {"d_head": 6}],
)
def test_auto_leaves_to_xla_what_the_rule_says(imagined_cuda, keywords):
    assert "cudnn" not in lowered("cuda", **keywords)


def test_weights_are_rounded_once_and_scores_do_not_overflow():
    # q . k is 4 * 200 * 200 = 160000, above the largest float16.
    x = jnp.full((1, 1, 3, 4), 200, jnp.float16)
    y = attend(x, x, x, causal=True)
    assert y.dtype == jnp.float16
    np.testing.assert_array_equal(y, x)
