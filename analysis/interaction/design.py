"""What a study compares: two factors and the hypotheses about them."""

from dataclasses import dataclass, field

METRIC, RATE = "val_loss", "optimizer.learning_rate"
SHARED, OWN, AS_RUN = "shared", "own", "as run"


def joined(labels) -> str:
    """`derf × muon`."""
    return " \N{MULTIPLICATION SIGN} ".join(labels)


def difference(labels) -> str:
    """`derf − rmsnorm`: of two levels the later minus the earlier; of one, itself."""
    return " \N{MINUS SIGN} ".join(reversed(labels))


@dataclass(frozen=True)
class Level:
    """A value of a factor, and what a run must have to be of it.

    `wanted` maps a Hydra group (as in `choices` of env.json) or a dotted config path
    to a value.
    """

    label: str
    wanted: dict


@dataclass(frozen=True)
class Factor:
    """An axis of the design; its first level is the baseline."""

    name: str
    levels: tuple[Level, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(level.label for level in self.levels)


@dataclass(frozen=True)
class Contrast:
    """Two levels of one factor or of both; a later level minus an earlier one.

    With two rows and two columns it is the interaction
    (y[row 1, column 1] - y[row 0, column 1]) - (y[row 1, column 0] - y[row 0, column 0]).
    """

    id: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    statement: str = ""
    direction: str | None = None  # ">", "<", or "=": no more than `margin` from 0
    margin: float | None = None
    rates: str | None = None
    quantity: str | None = None  # a probe in place of the metric
    reduce: str = "mean"  # over its places
    at: str = "last"  # probed step: last, mean, or a number

    @property
    def is_interaction(self) -> bool:
        return len(self.rows) == len(self.columns) == 2


@dataclass(frozen=True)
class Remedy:
    """A cell that should close the gap of the primary hypothesis."""

    id: str
    row: str
    column: str


@dataclass(frozen=True)
class Dose:
    """Levels of one factor with a number each: the interaction is drawn against it."""

    id: str
    x: str
    levels: dict[str, float]
    is_rows: bool


@dataclass(frozen=True)
class Design:
    """Two factors and what was said about them before the runs."""

    rows: Factor
    columns: Factor
    primary: Contrast
    metric: str = METRIC
    rate: str = RATE
    tune_seeds: tuple[int, ...] = ()
    contrasts: tuple[Contrast, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    doses: tuple[Dose, ...] = ()
    predictions: tuple[Contrast, ...] = ()
    claim: str = ""  # what was published, and what of it this can check
    is_registered: bool = True
    raw: dict = field(default_factory=dict, repr=False)
