"""Tables that are printed, and written as Markdown."""

import dataclasses
from collections.abc import Sequence

from rich import box
from rich.table import Table as RichTable


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells are strings already; the first column is left-aligned, the others right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def __post_init__(self):
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"{self.title}: expected {len(self.columns)} cells in a row, "
                    f"got {list(row)}"
                )

    def markdown(self) -> str:
        """A heading, the table, and the notes as a list; `|` in cells is escaped."""

        def line(cells):
            return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

        marks = ["---"] + ["---:"] * (len(self.columns) - 1)
        lines = [f"### {self.title}", "", line(self.columns), line(marks)]
        lines += [line(row) for row in self.rows]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def rich(self) -> RichTable:
        table = RichTable(
            title=self.title,
            box=box.SIMPLE_HEAD,
            caption="\n".join(self.notes) or None,
            caption_justify="left",
            title_justify="left",
        )
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*row)
        return table


def milliseconds(seconds: float) -> str:
    """Three significant digits: 0.00144 -> '1.44', 0.2048 -> '205'."""
    return significant(1e3 * seconds)


def significant(x: float, digits: int = 3) -> str:
    """`x` with so many significant digits and no exponent; '0' for 0."""
    if x == 0:
        return "0"
    exponent = int(f"{x:.{digits - 1}e}".split("e")[1])
    rounded = round(x, digits - 1 - exponent)
    return f"{rounded:,.{max(digits - 1 - exponent, 0)}f}"


def mebibytes(n: float) -> str:
    return f"{n / 2**20:,.0f}"
