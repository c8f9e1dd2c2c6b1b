"""How alike streams are, and how far a sub-layer turns what it is given."""

import polars as pl
from matplotlib.figure import Figure

from analysis.plots.sites import cosines_figure

SIMILARITY = "stream_similarity"
COSINE = "stream_cosine"


def similarity_figure(runs: pl.DataFrame, probes: pl.DataFrame) -> Figure:
    """Mean cosine between two streams of a token before each sub-layer: 1 for streams
    that are copies, for which several are no more than one.

    Raises:
        ValueError: no run recorded it.
    """
    return cosines_figure(
        runs,
        probes,
        SIMILARITY,
        y="mean cosine of two streams",
        title="How alike the streams are",
    )


def cosine_figure(runs: pl.DataFrame, probes: pl.DataFrame) -> Figure:
    """Mean cosine between the stream before and after each sub-layer: 1 for a sub-layer
    that changes nothing but the length.

    Raises:
        ValueError: no run recorded it.
    """
    return cosines_figure(
        runs,
        probes,
        COSINE,
        y="cos(before, after)",
        title="Stream before and after a sub-layer",
    )
