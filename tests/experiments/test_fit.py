"""Models and data that do not belong together: one line, before anything is written."""

import pytest

from experiments.errors import ConfigError
from experiments.fit import ADVICE, check_fit, reads_of
from experiments.group import load_dataset

ENCODER = ("model=bert_tiny", "data=masked", "data@data.text=markov")


def fit(compose, *overrides):
    (config,) = compose(*overrides)
    check_fit(config, load_dataset(config.data))


@pytest.mark.parametrize(
    "overrides, told",
    [
        (
            ("model=vit_digits", "data=markov"),
            "data: VisionModel reads images, Markov has none but tokens (use data=digits)",
        ),
        (
            ("model=bert_tiny", "data=markov"),
            "data: TokenEncoder reads masked texts, Markov has none but tokens (use",
        ),
        (
            ("model=bert_tiny", "data=digits"),
            "data: TokenEncoder reads masked texts, Digits has none but images",
        ),
        (
            ("data=digits",),
            "data: LanguageModel reads tokens, Digits has none but images (use data",
        ),
        (
            ("data=masked", "data@data.text=markov"),
            "data: LanguageModel reads tokens, Masked has none but masked texts",
        ),
        (
            ("data=gaussian",),
            "data: LanguageModel reads tokens, Gaussian has none but rows of numbers",
        ),
        (
            ("model=residual_mlp", "data=digits"),
            "data: ResidualMLP reads rows of numbers, Digits has none but images (use",
        ),
        (
            ("model=vit_digits", "data=digits", "model.image_size=16"),
            "model.image_size: the images of Digits need 8, got 16",
        ),
        (
            ("model=vit_digits", "data=digits", "model.n_classes=11"),
            "model.n_classes: the images of Digits need 10, got 11",
        ),
        (
            (*ENCODER, "seq_len=600"),
            "seq_len: the model reads at most model.max_len=512 tokens, got 600",
        ),
        (
            (*ENCODER, "model.head_activation=null"),
            "model.head_activation: null leaves no head",
        ),
        (
            (*ENCODER, "model.vocab_size=64"),
            "model.vocab_size: the data have 65 symbols, got 64",
        ),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(compose, overrides, told):
    with pytest.raises(ConfigError) as caught:
        fit(compose, *overrides)
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=vit_digits", "data=digits"),
        ("model=bert_tiny", "data=masked", "data@data.text=markov"),
        # Windows need not be whole episodes: no floor is told.
        ("model=bert_tiny", "data=masked", "data@data.text=copy", "seq_len=37"),
        ("data=markov",),
        ("model=residual_mlp", "data=gaussian"),
    ],
)
def test_what_fits_is_taken(compose, overrides):
    fit(compose, *overrides)


def test_a_model_that_says_nothing_is_known_by_its_keywords(compose):
    (config,) = compose()
    assert reads_of(config.model) == "tokens"
    (config,) = compose("model=residual_mlp", "data=gaussian")
    assert reads_of(config.model) == "rows of numbers"
    (config,) = compose("model=vit_digits", "data=digits")
    assert reads_of(config.model) in ADVICE
