"""BERT with its masked-token head, and the encoders of T5 and T5 v1.1.

transformers 5.24.0 modeling_bert.py, modeling_t5.py. The texts have padding. T5 has no
loss of its own here: the golden one is the squared distance to given numbers.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blocks.attention.bidirectional import adding_to_scores
from blocks.families.family import overrides_of
from blocks.families.fields import FamilyError, Fields
from tests.blocks.released import conftest
from tests.blocks.released.conftest import slow


class Encoder(conftest.Released):
    start = ()

    @staticmethod
    def batch_of(io):
        found = {"tokens": io["input_ids"], "mask": io["attention_mask"]}
        for ours, theirs in (("segments", "token_type_ids"), ("labels", "labels")):
            if theirs in io:
                found[ours] = io[theirs]
        return found

    def embedded(self, model):
        tokens = self.batch["tokens"]
        return model.embed(tokens, self.batch.get("segments")), tokens.shape

    def outputs(self, model):
        given = (self.batch.get(name) for name in ("tokens", "mask", "segments"))
        return model(*given)

    def streams(self):
        """As the parent, with what the model adds to the scores."""
        model = self.layout.merge(*self.loaded)
        tokens = self.batch["tokens"]
        added = model.added_to_scores(tokens.shape[1], jnp.asarray(self.batch["mask"]))
        with adding_to_scores(added):
            return super().streams()


class T5(Encoder):
    def loss_and_gradients(self):
        params, state = self.loaded

        def loss_of(params):
            out = self.outputs(self.layout.merge(params, state))
            return jnp.mean(jnp.square(out - self.io["target"]))

        return jax.jit(jax.value_and_grad(loss_of))(params)

    def assert_same_outputs(self):
        self.assert_same_streams()
        self.assert_close(self.logits(), "last_hidden_state")


@pytest.fixture(scope="module")
def encoder():
    made = {}

    def of(name):
        if name not in made:
            made[name] = (Encoder if name == "bert" else T5)(name)
        return made[name]

    return of


FAMILIES = ["bert", "t5_encoder", slow("t5v1_1_encoder")]


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_streams_outputs_loss_and_gradients(encoder, name):
    model = encoder(name)
    model.assert_same_parameters()
    model.assert_same_outputs()
    model.assert_same_loss_and_gradients()


@pytest.mark.parametrize(
    "wrong",
    [
        "model.norm.eps=1e-6",
        slow("model.ffn.activation=gelu"),
        slow("model.attention.scale=1"),
    ],
)
def test_a_wrong_detail_of_bert_shows(encoder, wrong):
    encoder("bert").assert_shows(wrong)


def test_padding_is_not_seen(encoder):
    of = encoder("bert")
    model = of.layout.merge(*of.loaded)
    tokens, mask = of.batch["tokens"], np.asarray(of.batch["mask"])
    assert (mask == 0).any()
    other = np.where(mask == 0, (tokens + 7) % 64, tokens)
    plain, changed = (
        np.asarray(model(t, jnp.asarray(mask), of.batch["segments"]))
        for t in (tokens, other)
    )
    np.testing.assert_array_equal(plain[mask == 1], changed[mask == 1])
    assert np.abs(plain[mask == 0] - changed[mask == 0]).max() > 0.01


def test_a_decoder_is_refused():
    with pytest.raises(FamilyError, match="is_encoder_decoder: expected false"):
        overrides_of(Fields({"model_type": "t5", "is_encoder_decoder": True}))
    with pytest.raises(FamilyError, match="is_decoder: expected false, got true"):
        overrides_of(Fields({"model_type": "bert", "is_decoder": True}))


def test_what_an_encoder_cannot_do_is_refused(encoder):
    of = encoder("t5_encoder")
    t5 = of.layout.merge(*of.loaded)
    with pytest.raises(ValueError, match="needs masked texts: tokens and labels"):
        t5.loss(of.batch["tokens"])
    with pytest.raises(ValueError, match="there is no head to predict tokens"):
        t5.loss({"tokens": of.batch["tokens"], "labels": of.batch["tokens"]})
    of = encoder("bert")
    bert = of.layout.merge(*of.loaded)
    with pytest.raises(ValueError, match="needs the segment of every token"):
        bert(of.batch["tokens"])
    with pytest.raises(ValueError, match="at most max_len=16 tokens, got 24"):
        bert(jnp.ones((1, 24), jnp.int32), None, jnp.zeros((1, 24), jnp.int32))
