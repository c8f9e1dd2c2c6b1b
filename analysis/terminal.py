"""The summary of a report on the terminal."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis.decide import CONFIRMED, NOT_CONFIRMED
from analysis.interaction.section import blocks
from analysis.report import Report
from analysis.text import NOTHING, minus
from analysis.wording import (
    band_text,
    incidents,
    interval_text,
    law_text,
    measured_text,
    state_text,
    states_line,
    usual_text,
    verdict_line,
)

COLOURS = {CONFIRMED: "green", NOT_CONFIRMED: "red"}


def show(report: Report, console: Console) -> None:
    """Prints runs, losses, laws and verdicts, then where the files are."""
    summary = report.summary
    console.print(f"[bold]{escape(summary['title'])}[/bold]", highlight=False)
    if summary["question"]:
        console.print(escape(summary["question"]), highlight=False)
    console.print(states_line(summary), highlight=False)
    for line in summary["mixed"]:
        console.print(line, style="yellow", highlight=False, markup=False)
    for family in summary["families"]:
        _show_family(family, console)
    if summary.get("interaction"):
        show_interaction(summary["interaction"], console)
    if summary["expected"]:
        _show_expected(summary["expected"], console)
    # A path must stay one line to be copied or clicked.
    for path in (report.page, *report.figures):
        console.print(str(path), soft_wrap=True, highlight=False, markup=False)


def show_interaction(result: dict, console: Console) -> None:
    """The section of the page, block by block."""
    for block in blocks(result):
        if block.kind == "table":
            table = _table("", *map(escape, block.heads))
            table.columns[0].no_wrap = True
            for column in table.columns:
                column.overflow = "fold"  # a number cut short is another number
            for row in block.rows:
                table.add_row(*(escape(str(cell)) for cell in row))
            console.print(table)
        else:
            form = "[bold]{}[/bold]" if block.kind == "heading" else "{}"
            console.print(form.format(escape(block.text)), highlight=False)


def _show_family(family: dict, console: Console) -> None:
    losses = {row["variant"]: row for row in family["losses"]}
    accuracies = {row["variant"]: row for row in family["accuracies"]}
    laws: dict[str, dict] = {}
    for law in family["laws"]:
        laws.setdefault(law["variant"], {})[law["name"]] = law
    table = _table(family["family"], "variant", "runs")
    if losses:
        measure = next(iter(losses.values()))["measure"]
        unit = family["loss_unit"]
        table.add_column(f"final {measure} [{unit}]".replace("[", r"\["))
    if accuracies:
        table.add_column("final val_accuracy")
    names = ("W1 last", "W2 last") if laws else ()
    for name in names:
        table.add_column(f"p, {name}")
    if laws:
        table.add_column("theory W1")
    # Losses come best first; variants without one follow in their own order.
    rank = {label: i for i, label in enumerate(losses)}
    ordered = sorted(
        family["variants"], key=lambda v: rank.get(v["variant"], len(rank))
    )
    for variant in ordered:
        label = variant["variant"]
        cells = [escape(label), state_text(variant)]
        if losses:
            cells.append(interval_text(losses[label]) if label in losses else "")
        if accuracies:
            found = accuracies.get(label)
            cells.append(interval_text(found) if found else "")
        own = laws.get(label, {})
        cells += [_fit_text(own.get(name)) for name in names]
        if laws:
            theory = own.get("W1 last", {}).get("theory")
            cells.append(_theory_text(theory))
        table.add_row(*cells)
    console.print(table)
    if family["usual"]:
        console.print(usual_text(family), highlight=False, markup=False)
    for variant in family["variants"]:
        for line in incidents(variant, with_depth=bool(laws), limit=3):
            line = f"{variant['variant']}: {line}"
            console.print(line, soft_wrap=True, highlight=False, markup=False)


def _fit_text(law: dict | None) -> str:
    if law is None:
        return ""
    if law["error"]:
        return law["error"]
    return f"{interval_text(law['exponent'])} {law_text(law)}, n={law['exponent']['n']}"


def _theory_text(theory: dict | None) -> str:
    if theory is None:
        return ""
    is_known = theory["shape"] != "none"
    return minus(f"{theory['exponent']:.3f}") if is_known else NOTHING


def _show_expected(outcomes: list[dict], console: Console) -> None:
    table = _table(
        "expected and measured", "check", "variant", "expected", "measured", "verdict"
    )
    for o in outcomes:
        colour = COLOURS.get(o["verdict"], "yellow")
        table.add_row(
            escape(o["id"]),
            escape(o["label"]),
            band_text(o),
            f"{measured_text(o)} (n={o['n']})",
            f"[{colour}]{escape(verdict_line(o))}[/{colour}]",
        )
    console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column)
    return table
