"""Whether a model can read the data of its run."""

from experiments.config import Config
from experiments.data.dataset import IMAGES, MASKED_TEXTS, ROWS, TOKENS, Dataset
from experiments.errors import ConfigError
from experiments.parts import Part

ADVICE = {
    TOKENS: "use data=stdlib or another source of tokens",
    ROWS: "use data=gaussian",
    IMAGES: "use data=digits",
    MASKED_TEXTS: "use data=masked",
}


def reads_of(model: Part) -> str:
    """What the batches of a model are: as it says, else as its keywords do."""
    of_keywords = TOKENS if "vocab_size" in dict(model.keywords) else ROWS
    return getattr(model.cls, "reads", of_keywords)


def check_fit(config: Config, dataset: Dataset) -> None:
    """Refuses a model and data that do not belong together.

    Raises:
        ConfigError: names the keys.
    """
    model, data = config.model, config.data
    reads = reads_of(model)
    if reads != dataset.holds:
        advice = f" ({ADVICE[reads]})" if reads in ADVICE else ""
        raise ConfigError(
            f"data: {model.name} reads {reads}, {data.name} has none but "
            f"{dataset.holds}{advice}"
        )
    for key, size in dataset.sizes.items():
        if model.get(key) != size:
            raise ConfigError(
                f"model.{key}: the {dataset.holds} of {data.name} need {size}, "
                f"got {model.get(key)}"
            )
    if dataset.holds == ROWS:
        width = data.get("d_model", model["d_model"])
        if width != model["d_model"]:
            raise ConfigError(
                f"data.d_model: must equal model.d_model={model['d_model']}, got {width}"
            )
    if dataset.vocab_size is not None:
        _check_texts(config, dataset)
    if dataset.holds == MASKED_TEXTS:
        _check_encoder(config)


def _check_texts(config: Config, dataset: Dataset) -> None:
    """Refuses a vocabulary that is too small, and windows that the data do not have."""
    vocab_size = config.model["vocab_size"]
    if vocab_size is not None and vocab_size < dataset.vocab_size:
        raise ConfigError(
            f"model.vocab_size: the data have {dataset.vocab_size} symbols, "
            f"got {vocab_size}"
        )
    for split in ("train", "validation"):
        tokens = getattr(dataset, f"{split}_tokens")
        if tokens is not None and tokens <= config.seq_len:
            raise ConfigError(
                f"seq_len: the {split} data have {tokens} tokens, too few for windows "
                f"of {config.seq_len} + 1"
            )
    if dataset.period is not None and config.seq_len % dataset.period:
        raise ConfigError(
            f"seq_len: {config.data.name} begins anew every {dataset.period} tokens: "
            f"expected a multiple of {dataset.period}, got {config.seq_len}"
        )


def _check_encoder(config: Config) -> None:
    """Refuses what shows only when an encoder meets its first batch."""
    model = config.model
    max_len = model.get("max_len")
    if max_len is not None and config.seq_len > max_len:
        raise ConfigError(
            f"seq_len: the model reads at most model.max_len={max_len} tokens, "
            f"got {config.seq_len}"
        )
    if model.get("head_activation", "") is None:
        raise ConfigError(
            "model.head_activation: null leaves no head that finds masked tokens "
            "(gelu_erf is BERT's)"
        )
