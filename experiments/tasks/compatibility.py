"""Which choices go together: counts by pair of axes, and why the others do not."""

import collections
import json
import pathlib
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.compatibility.choices import axes
from experiments.compatibility.covering import refused_pairs
from experiments.config import Config
from experiments.errors import UserError

FILE = "compatibility.json"
SCHEMA = 1


class Compatibility:
    """Lists the pairs of choices that are refused; builds nothing, makes no run.

    Prints a table and writes `outputs/<name>/compatibility.json`
    (docs/compatibility.md). Choices are found in `conf/`; reasons are those that a user
    is told who asks for such a pair.
    """

    traced = ()

    @staticmethod
    def check() -> None:
        """There is nothing to set."""

    def answer(self, config: Config, console: Console) -> None:
        """Prints the refusals and writes them.

        Raises:
            UserError: the folder cannot be written.
        """
        node = collect()
        console.print(_table(node))
        pairs = node["pairs"]
        n_refused = sum(len(pair["refused"]) for pair in pairs)
        path = _write(config.folder / FILE, node)
        lines = [
            f"{n_refused} of {sum(p['n_pairs'] for p in pairs)} pairs of choices are "
            f"refused, on {sum(bool(p['refused']) for p in pairs)} of {len(pairs)} "
            "pairs of axes",
            f"everything is in {path}",
        ]
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def collect() -> dict[str, Any]:
    """Contents of compatibility.json."""
    found = axes()
    refused = collections.defaultdict(list)
    for ((first, a), (second, b)), verdict in refused_pairs(found).items():
        entry = {first: a, second: b, "reason": verdict.reason}
        refused[first, second].append(entry)
    return {
        "schema": SCHEMA,
        "axes": [{"axis": a.name, "choices": list(a.choices)} for a in found],
        "pairs": [
            {
                "axes": [first.name, second.name],
                "n_pairs": len(first.choices) * len(second.choices),
                "refused": refused[first.name, second.name],
            }
            for i, first in enumerate(found)
            for second in found[i + 1 :]
        ],
    }


def _table(node: dict[str, Any]) -> Table:
    """Pairs of axes with refusals; equal reasons of one pair are said once."""
    table = Table(title="refused pairs", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("axes", style="bold", no_wrap=True)
    table.add_column("allowed", justify="right", no_wrap=True)
    table.add_column("refused", justify="right", no_wrap=True)
    table.add_column("which, and why")
    table.expand = True
    for pair in node["pairs"]:
        alike = collections.defaultdict(list)
        for entry in pair["refused"]:
            alike[_kind(entry["reason"], entry)].append(entry)
        lines = []
        for first, *more in alike.values():
            both = [f"{axis}={_shown(first[axis])}" for axis in pair["axes"]]
            lines.append(" ".join(both) + (f" and {len(more)} more" if more else ""))
            reason = first["reason"].partition("; choose")[0]
            lines.append("    " + reason.removeprefix("model."))
        n = len(pair["refused"])
        if n:
            axes_of = " x\n".join(pair["axes"])
            counts = f"{pair['n_pairs'] - n}", f"{n}"
            table.add_row(escape(axes_of), *counts, escape("\n".join(lines)))
    return table


def _kind(reason: str, entry: dict[str, Any]) -> str:
    """The reason without what is particular to the two choices."""
    kind = reason.partition(";")[0].partition(" (")[0]
    for axis, choice in entry.items():
        kind = kind.replace(f"{axis}={choice}", axis)
    return kind


def _shown(choice: str | None) -> str:
    return "null" if choice is None else choice


def _write(path: pathlib.Path, node: dict[str, Any]) -> pathlib.Path:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(node, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot write there ({error})") from None
    return path
