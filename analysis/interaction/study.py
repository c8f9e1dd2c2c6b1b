"""Which run belongs to which cell, seed and learning-rate rule of a design."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from analysis.errors import AnalysisError
from analysis.interaction.design import AS_RUN, OWN, SHARED, Design, joined
from analysis.interaction.levels import number_of, place_of, same
from analysis.interaction.tuning import Tuning, mistuned, tune
from analysis.load import Runs
from analysis.losses import final_losses
from analysis.provenance import mixed_lines
from analysis.variants import is_depth_family

Cell = tuple[str, str]


@dataclass(frozen=True)
class Study:
    """The runs of a design, sorted.

    Attributes:
        design, table: what was asked, and the folder.
        rules: the learning-rate rules there are runs for, that of the primary first.
        runs: rule -> (row, column) -> seed -> run_id, completed runs only.
        finals: run_id -> last value of the metric.
        tuning: the grid of the tuning runs, or None.
        left_out: runs of no cell, or that did not complete, with the reason.
        notes: what a reader should know about the design.
    registered_in: how many runs carry its primary hypothesis in their config.
    """

    design: Design
    table: Runs
    rules: tuple[str, ...]
    runs: dict[str, dict[Cell, dict[int, str]]]
    finals: dict[str, float]
    tuning: Tuning | None
    left_out: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    registered_in: int = 0

    def values(self, rule: str, of: dict[str, float] | None = None) -> dict:
        """(row, column) -> seed -> number of the run; the final metric if not given."""
        numbers = self.finals if of is None else of
        return {
            cell: {s: numbers[r] for s, r in members.items() if r in numbers}
            for cell, members in self.runs.get(rule, {}).items()
        }

    @property
    def cells(self) -> list[Cell]:
        """In the order of the design; those that have a run."""
        present = {cell for members in self.runs.values() for cell in members}
        product = [
            (r, c) for r in self.design.rows.labels for c in self.design.columns.labels
        ]
        return [cell for cell in product if cell in present]


PHASES = (
    "tune",
    "measure",
)  # what a run may say of itself; of any other it is left out


def sort_runs(
    table: Runs, design: Design, notes: Sequence[str] = (), registered_in: int = 0
) -> Study:
    """Puts every run into its cell.

    Raises:
        AnalysisError: two runs for one cell, seed and rule; no run in any cell.
    """
    rows, left_out = [], []
    for run in table.runs.to_dicts():
        try:
            cell = _cell(run, design, table.runs.columns)
        except ValueError as error:
            raise AnalysisError(f"{run['run_id']}: {error}") from error
        if is_depth_family(run["family"]) or cell is None:
            left_out.append(_left(run, None, "in no cell of the design"))
        elif run["seed"] is None:
            left_out.append(_left(run, cell, "no seed"))
        elif _phase(run, design) not in PHASES:
            left_out.append(_left(run, cell, f"of phase {_phase(run, design)}"))
        else:
            rate = number_of(run.get(f"config.{design.rate}"))
            rows.append(run | {"cell": cell, "rate": rate})
    if not rows:
        raise AnalysisError(f"no run of {table.directory} is in a cell of the design")
    metrics = table.metrics
    if design.metric not in metrics.columns or metrics[design.metric].is_null().all():
        raise AnalysisError(f"no run has {design.metric!r} in metrics.jsonl")
    losses = final_losses(table.runs, metrics, design.metric)
    finals = dict(losses.select("run_id", "value").rows())
    first = [run for run in rows if _phase(run, design) == "tune"]
    tuning = tune(first, finals, design) if first else None
    measured: dict[str, dict] = {}
    for run in rows:
        if _phase(run, design) == "tune":
            continue
        rules = _rules(run, tuning)
        if not rules:
            left_out.append(_left(run, run["cell"], "at no chosen learning rate"))
        elif run["state"] != "completed":
            left_out.append(_left(run, run["cell"], _why(run), rules))
        elif run["run_id"] not in finals:
            left_out.append(_left(run, run["cell"], f"no {design.metric}", rules))
        else:
            for rule in rules:
                seeds = measured.setdefault(rule, {}).setdefault(run["cell"], {})
                _refuse_second(seeds, run, table)
                seeds[run["seed"]] = run["run_id"]
    first = design.primary.rates or OWN
    rules = sorted(measured, key=lambda rule: (rule != first, rule))
    return Study(
        design,
        table,
        tuple(rules),
        measured,
        finals,
        tuning,
        left_out,
        [
            *notes,
            *(f"{m}; cells do not tell them apart" for m in mixed_lines(table.runs)),
            *mistuned(measured.get(OWN, {}), measured.get(SHARED, {}), finals),
        ],
        registered_in,
    )


def _cell(run: dict, design: Design, columns: list[str]) -> Cell | None:
    row, column = (place_of(run, f, columns) for f in (design.rows, design.columns))
    return None if row is None or column is None else (row, column)


def _phase(run: dict, design: Design) -> str:
    tagged = run.get("config.tags.phase")
    if tagged is not None:
        return str(tagged)
    return "tune" if run["seed"] in design.tune_seeds else "measure"


def _rules(run: dict, tuning: Tuning | None) -> list[str]:
    tagged = run.get("config.tags.rates")
    if tagged is not None:
        rules = json.loads(tagged) if tagged.startswith("[") else [tagged]
        return [str(rule) for rule in rules]
    if tuning is None:
        return [AS_RUN]
    row, column = run["cell"]
    found = []
    for rule, rate in (
        (OWN, tuning.own.get((row, column))),
        (SHARED, tuning.shared.get(column)),
    ):
        if rate is not None and run["rate"] is not None and same(run["rate"], rate):
            found.append(rule)
    return found


def _refuse_second(seeds: dict, run: dict, table: Runs) -> None:
    other = seeds.get(run["seed"])
    if other is None:
        return
    pair = table.runs.filter(pl.col("run_id").is_in([other, run["run_id"]]))
    asked = [c for c in pair.columns if c.startswith(("choice.", "config."))]
    differ = [
        c.split(".", 1)[1]
        for c in asked
        if pair[c].n_unique() > 1 and not c.startswith(("config.tags", "config.name"))
    ]
    raise AnalysisError(
        f"two runs of {joined(run['cell'])} at seed {run['seed']}: {other} and "
        f"{run['run_id']} differ in {', '.join(differ[:4]) or 'nothing'}. Make it an "
        "axis, keep one value (--keep), or name seeds for tuning (--tune-seeds)"
    )


def _why(run: dict) -> str:
    if run["state"] == "diverged" and run["diverged_step"] is not None:
        return f"diverged at step {run['diverged_step']}"
    return run["state"]


def _left(run: dict, cell: Cell | None, reason: str, rules=()) -> dict:
    return {
        "run_id": run["run_id"],
        "row": cell[0] if cell else None,
        "column": cell[1] if cell else None,
        "seed": run["seed"],
        "rates": list(rules),
        "reason": reason,
    }
