"""ViT and the parallel layers of ViT-22B: images instead of tokens.

transformers 5.24.0 modeling_vit.py. The ref_* files are our reading of arXiv 2302.05442
section 2.1 in torch, with RMSNorm and with LayerNorm without bias.
"""

import jax.numpy as jnp
import pytest

from blocks.families import tensors
from blocks.families.family import Family
from blocks.families.fields import FamilyError, Fields
from blocks.vision_model import VisionModel
from tests.blocks.released import conftest
from tests.blocks.released.conftest import slow

LAYER = "layers.{i}"
ATTENTION, MLP = "both/branch/attn", "both/branch/ffn"


class Vision(conftest.Released):
    start = ()

    @staticmethod
    def batch_of(io):
        return {"pixels": io["pixel_values"], "labels": io["labels"]}

    def embedded(self, model):
        return model.embed(self.batch["pixels"])

    def outputs(self, model):
        return model(self.batch["pixels"])


def parallel_overrides(fields):
    norm = fields.get("norm")
    return [
        "model=vit_22b",
        "model.d_model=32",
        "model.n_layers=3",
        "model.n_heads=4",
        "model.d_ff=48",
        "model.image_size=12",
        "model.patch_size=4",
        "model.n_classes=5",
        f"norm={norm}",
        "model.norm.eps=1e-3",
        f"norm@model.attention.qk_norm={norm}",
        "model.attention.qk_norm.eps=1e-3",
    ]


def parallel_names(fields):
    del fields
    table = {
        "patches/kernel": tensors.linear("embed.weight"),
        "patches/bias": tensors.From("embed.bias"),
        "positions": tensors.From("pos", lambda w: w[0], lambda s: (1, *s)),
        "head/kernel": tensors.linear("head.weight"),
        "head/bias": tensors.From("head.bias"),
        "final_norm/gain": tensors.From("norm.weight"),
        "both/in_norm/gain": tensors.From(f"{LAYER}.norm.weight"),
        f"{MLP}/up/kernel": tensors.linear(f"{LAYER}.fc1.weight"),
        f"{MLP}/up/bias": tensors.From(f"{LAYER}.fc1.bias"),
        f"{MLP}/down/kernel": tensors.linear(f"{LAYER}.fc2.weight"),
        f"{MLP}/down/bias": tensors.From(f"{LAYER}.fc2.bias"),
        f"{ATTENTION}/o/bias": tensors.From(f"{LAYER}.o_proj.bias"),
    }
    for x in "qkvo":
        at = f"{ATTENTION}/{x}/kernel"
        table[at] = tensors.linear(f"{LAYER}.{x}_proj.weight")
    for x in "qk":
        table[f"{ATTENTION}/{x}_norm/gain"] = tensors.From(f"{LAYER}.{x}_norm.weight")
    return tensors.Names(table)


PARALLEL = Family(("ours",), parallel_overrides, parallel_names)
NORMS = {"ref_vit22b": "rmsnorm", "ref_vit22b_ln": "layernorm_nobias"}


@pytest.fixture(scope="module")
def vision():
    """vision(name): each is made once."""
    made = {}

    def of(name):
        if name not in made:
            with pytest.MonkeyPatch.context() as patch:
                if name in NORMS:
                    use_parallel(patch, NORMS[name])
                made[name] = Vision(name)
                made[name].loaded  # noqa: B018  read while the family is known
        return made[name]

    return of


def use_parallel(patch, norm):
    """The reference is no published family: it is known in this file only."""
    fields = Fields({"model_type": "ours", "norm": norm})
    patch.setattr(conftest.Fields, "read", lambda _: fields)
    for module in (conftest, conftest.weights):
        patch.setattr(module, "family_of", lambda _: PARALLEL)
    patch.setattr(conftest, "overrides_of", parallel_overrides)


@pytest.mark.parametrize("name", ["vit", "ref_vit22b", slow("ref_vit22b_ln")])
def test_parameters_streams_logits_loss_and_gradients(vision, name, monkeypatch):
    model = vision(name)
    if name in NORMS:
        use_parallel(monkeypatch, NORMS[name])
    model.assert_same_parameters()
    model.assert_same_outputs()
    model.assert_same_loss_and_gradients()


@pytest.mark.parametrize(
    "wrong",
    [
        "model.attention.causal=true",
        slow("model.ffn.activation=gelu"),
        "model.norm.eps=1e-6",
    ],
)
def test_a_wrong_detail_shows(vision, wrong):
    vision("vit").assert_shows(wrong)


def test_names_of_published_files_hold_the_same_parameters(vision):
    of = vision("vit")
    hub, _ = conftest.weights.load(
        of.folder / "weights_hub.safetensors", of.fields, of.layout
    )
    assert hub.keys() == of.loaded[0].keys()
    for path, x in of.loaded[0].items():
        assert (hub[path] == x).all(), path


def test_images_of_another_size_and_other_batches_are_refused(vision):
    of = vision("vit")
    model = of.layout.merge(*of.loaded)
    with pytest.raises(ValueError, match="whole patches of 4, got shape"):
        model(jnp.ones((1, 3, 12, 10)))
    with pytest.raises(ValueError, match="expected images of 10 tokens, got 5"):
        model(jnp.ones((1, 3, 8, 8)))
    with pytest.raises(ValueError, match="needs images: pixels and labels"):
        model.loss(jnp.ones((2, 5), jnp.int32))


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"patch_size": 15}, "image_size must be a multiple of patch_size"),
        ({"pool": "max"}, "pool must be one of token, mean, got 'max'"),
        ({"n_classes": 0}, "n_classes must be at least 1, got 0"),
    ],
)
def test_impossible_settings_are_refused(wrong, told):
    with pytest.raises(ValueError, match=told):
        VisionModel.check(d_model=8, n_layers=1, n_heads=2, d_ff=8, **wrong)


def test_another_activation_is_refused(vision):
    fields = Fields({"model_type": "vit", "hidden_act": "swish"})
    with pytest.raises(FamilyError, match="hidden_act: expected"):
        conftest.family_of(fields).overrides(fields)
