"""The section of a study, as headings, sentences and tables: page and terminal show
the same ones."""

from dataclasses import dataclass, field

from analysis.interaction.design import AS_RUN, OWN, SHARED, difference, joined
from analysis.interaction.wording import (
    boot_text,
    compared,
    interval_text,
    loss_text,
    p_text,
    range_text,
    ratio_text,
    sign_flip_text,
    signed,
)
from analysis.text import NOTHING, count, number

RULES = {
    OWN: "own rates: each cell at its best rate",
    SHARED: "shared rates: every row at the best rate of the baseline row",
    AS_RUN: "as run: no tuning runs, so nothing is known of other rates",
}


@dataclass(frozen=True)
class Block:
    """One piece of a section: kind is heading, text, note, warn or table."""

    kind: str
    text: str = ""
    heads: tuple[str, ...] = ()
    rows: list[tuple] = field(default_factory=list)


def blocks(result: dict) -> list[Block]:
    """What `summarise_study` found, to be read alone."""
    if "error" in result:
        return [Block("warn", result["error"])]
    found = _design(result)
    first = None
    for rule, of in result["rules"].items():
        if first and of["cells"] == result["rules"][first]["cells"]:
            text = f"The same runs as under {first} rates."
            found += [Block("heading", f"Under {RULES.get(rule, rule)}")]
            found += [Block("text", text)]
            continue
        first = first or rule
        found += _rule(result["design"], rule, of)
    if not result["rules"]:
        found.append(Block("warn", "No measuring run completed yet."))
    found += _predictions(result["predictions"])
    found += _tuning(result["tuning"])
    return found + _left_out(result["left_out"])


def _design(result: dict) -> list[Block]:
    design, primary = result["design"], result["design"]["primary"]
    lines = [Block("warn", note) for note in result["notes"]]
    carried, n_runs = result["registered_in"]
    which = f"all {n_runs}" if carried == n_runs else f"{carried} of {n_runs}"
    origin = f"Registered: {which} runs carry it in their config."
    if not design["is_registered"]:
        origin = (
            "Not registered: the axes were named after the runs, and the first level "
            "of each is taken as the baseline."
        )
    said = f" {primary['statement'].rstrip('.')}." if primary["statement"] else ""
    sign = f", {primary['direction']} 0" if primary["direction"] else ""
    a, b = primary["rows"], primary["columns"]
    lines.append(
        Block(
            "text",
            f"Primary hypothesis ({primary['id']}):{said} Interaction I = "
            f"({difference(a)}) under {b[1]} minus ({difference(a)}) under {b[0]}, of the "
            f"last {design['metric']}{sign}. {origin}",
        )
    )
    if design["claim"]:
        lines.append(Block("text", f"Published: {design['claim']}"))
    levels = [
        (f["name"], label, "baseline" if label == f["levels"][0] else "", _is(wanted))
        for axis in ("rows", "columns")
        for f in (design[axis],)
        for label, wanted in zip(f["levels"], design["wanted"][axis], strict=True)
    ]
    lines.append(Block("table", heads=("factor", "level", "", "is"), rows=levels))
    return lines


def _is(wanted: dict) -> str:
    """`norm=derf, model.norm.alpha_init=0.3`."""
    return ", ".join(f"{key}={value}" for key, value in wanted.items()) or "tags.cell"


def _rule(design: dict, rule: str, of: dict) -> list[Block]:
    main = of["primary"]
    found = [
        Block("heading", f"Under {RULES.get(rule, rule)}"),
        Block("text", f"{main['sentence']}"),
        _means(design, of["cells"]),
        _scales(main),
    ]
    found += _seeds(main)
    found += _contrasts(of["contrasts"])
    found += _remedies(design, of["remedies"])
    return found + _mixed(of["mixed_model"])


def _means(design: dict, cells: list[dict]) -> Block:
    by_cell = {(c["row"], c["column"]): c for c in cells}
    columns = [
        c
        for c in design["columns"]["levels"]
        if any(column == c for _, column in by_cell)
    ]
    rows = [
        (row, *(_cell_text(by_cell.get((row, column))) for column in columns))
        for row in design["rows"]["levels"]
        if any(r == row for r, _ in by_cell)
    ]
    return Block("table", heads=(f"mean {design['metric']}", *columns), rows=rows)


def _cell_text(cell: dict | None) -> str:
    if cell is None:
        return NOTHING
    return f"{interval_text(cell)} (n={cell['n']})"


def _scales(main: dict) -> Block:
    estimates = [
        ("I of final values", main["estimate"]),
        ("(a) I at matched loss", main["matched"]),
        ("(b) I of ln(steps)", main["log_steps"]),
    ]
    estimates += [(f"gap, {g['contrast']['columns'][0]}", g) for g in main["gaps"]]
    rows = [
        (
            name,
            interval_text(e),
            e["n"],
            p_text(e["p_t"]),
            sign_flip_text(e),
            number(e["smallest"], 2),
            e["seeds_for_80"] or NOTHING,
        )
        for name, e in estimates
    ]
    ratio = main["gap_ratio"]
    rows.append(("(c) ratio of the gaps", ratio_text(ratio), ratio["n"], *[""] * 4))
    heads = (
        "quantity",
        "mean ± 95 % t interval",
        "seeds",
        "p (t)",
        "p (sign flips)",
        "found with 80 % power",
        "seeds for 80 % power",
    )
    return Block("table", heads=heads, rows=rows)


def _seeds(main: dict) -> list[Block]:
    """Raw I_s, and where the column that is ahead was rewound to."""
    matches = main["matched"]["matches"]
    rows = []
    for seed, value in main["estimate"]["per_seed"].items():
        match = matches.get(seed)
        at = f"{match['rewound']} at step {match['step']:.0f}" if match else NOTHING
        if match and not match["rewound"]:
            at = "equal at the end"
        rows.append(
            (
                seed,
                signed(value),
                signed(main["matched"]["per_seed"].get(seed)),
                at,
                number(match["target"]) if match else NOTHING,
                signed(main["log_steps"]["per_seed"].get(seed)),
            )
        )
    if not rows:
        return []
    heads = ("seed", "I", "I at matched loss", "rewound", "to loss", "ln step ratio")
    note = (
        "Matched loss: the column whose baseline row ends lower is read where that row "
        "first reached the final loss of the other; between evaluations, straight "
        "lines. Steps: to the highest of the four final losses, which all four reach."
    )
    if main["log_steps"]["reason"]:
        note += f" Left out of the step ratios: {main['log_steps']['reason']}."
    return [Block("table", heads=heads, rows=rows), Block("note", note)]


def _contrasts(contrasts: list[dict]) -> list[Block]:
    if not contrasts:
        return []
    rows = [
        (
            c["contrast"]["id"],
            compared(c["contrast"]),
            interval_text(c) if c["n"] else f"no run of {', '.join(c['missing'])}",
            c["n"],
            p_text(c["p_t"]),
            p_text(c["p_holm"]),
            sign_flip_text(c),
        )
        for c in contrasts
    ]
    heads = (
        "secondary contrast",
        "of",
        "mean ± 95 % t interval",
        "seeds",
        "p (t)",
        "p (Holm)",
        "p (sign flips)",
    )
    note = (
        f"Holm over {count(len(rows), 'contrast')}; the primary hypothesis is "
        "not among them. Intervals are one each, not corrected."
    )
    return [Block("table", heads=heads, rows=rows), Block("note", note)]


def _remedies(design: dict, remedies: list[dict]) -> list[Block]:
    if not remedies:
        return []
    rows = [
        (
            r["remedy"]["id"],
            interval_text(r["gap"]) if r["gap"]["n"] else "not measured",
            ratio_text(r["of_gap"], percent=True),
            boot_text(r["of_gap"]),
            ratio_text(r["of_interaction"], percent=True),
            boot_text(r["of_interaction"]),
        )
        for r in remedies
    ]
    heads = (
        "remedy",
        "gap that is left",
        "recovered of the gap",
        "bootstrap",
        "of the interaction",
        "bootstrap",
    )
    p = design["primary"]
    note = (
        f"Of the gap {difference(p['rows'])} under {p['columns'][1]}, and of "
        "the interaction alone, with Fieller's 95 % interval; bootstrap: percentiles "
        "over resampled seeds, too narrow for a handful of them."
    )
    return [Block("table", heads=heads, rows=rows), Block("note", note)]


def _mixed(model: dict) -> list[Block]:
    if "error" in model:
        return [Block("note", f"Mixed model of all arms: {model['error']}.")]
    rows = [
        (
            t["name"],
            range_text(t["mean"], t["low"], t["high"]),
            p_text(t["p"]),
            p_text(t["p_holm"]),
        )
        for t in model["terms"]
    ]
    note = (
        "y ~ row * column + (1 | seed) by REML, n = "
        f"{model['n']}; SD of seeds {number(model['sd_seed'], 2)}, residual "
        f"{number(model['sd_residual'], 2)}, pooled over cells; Wald intervals."
    )
    note += "".join(f" {text.rstrip('.')}." for text in model["warnings"])
    heads = ("mixed model", "mean, 95 % interval", "p", "p (Holm)")
    return [Block("table", heads=heads, rows=rows), Block("note", note)]


def _predictions(predictions: list[dict]) -> list[Block]:
    if not predictions:
        return []
    rows = []
    for p in predictions:
        c = p["contrast"]
        margin = f" within ±{c['margin']:g}" if c["direction"] == "=" else ""
        sign = f" {c['direction']} 0{margin}" if c["direction"] else ""
        reason = f": {p['reason']}" if p["reason"] else ""
        rows.append(
            (
                c["id"],
                c["statement"],
                f"{compared(c)}{sign}",
                interval_text(p) if p["n"] else NOTHING,
                p["n"],
                f"{p['verdict']}{reason}",
            )
        )
    heads = ("prediction", "statement", "measured by", "found", "seeds", "outcome")
    return [Block("heading", "Predictions"), Block("table", heads=heads, rows=rows)]


def _tuning(tuning: dict | None) -> list[Block]:
    if tuning is None:
        return []
    edge = {tuple(cell) for cell in tuning["at_edge"]}
    rows = []
    for cell in dict.fromkeys((p["row"], p["column"]) for p in tuning["points"]):
        own = [p for p in tuning["points"] if (p["row"], p["column"]) == cell]
        grid = ", ".join(f"{p['rate']:g}: {loss_text(p)}" for p in own)
        best = next((p["rate"] for p in own if p["is_own"]), None)
        flag = " (edge of the grid)" if cell in edge else ""
        shared = tuning["shared"].get(cell[1])
        rows.append(
            (
                *cell,
                grid,
                f"{best:g}{flag}" if best is not None else "none ended",
                f"{shared:g}" if shared is not None else NOTHING,
            )
        )
    heads = ("row", "column", "rate: value", "own rate", "shared rate")
    seeds = ", ".join(map(str, tuning["seeds"]))
    noun = "seed" if len(tuning["seeds"]) == 1 else "seeds"
    text = f"Rates are chosen on {noun} {seeds}, which no mean above uses."
    found = [
        Block("heading", "Learning rates"),
        Block("text", text),
        Block("table", heads=heads, rows=rows),
    ]
    if edge:
        names = ", ".join(joined(cell) for cell in sorted(edge))
        found.append(
            Block(
                "warn",
                f"The best rate lies at the edge of the grid for {names}: a better one "
                "may lie beyond it.",
            )
        )
    return found


def _left_out(runs: list[dict]) -> list[Block]:
    """Runs that would have been measured, one a line; the others by number."""
    lost = [r for r in runs if r["row"] is not None and r["reason"][:5] != "at no"]
    found = []
    if lost:
        rows = [
            (joined((r["row"], r["column"])), r["seed"], r["reason"], r["run_id"])
            for r in lost
        ]
        heads = ("left out", "seed", "why", "run")
        found += [
            Block("heading", "Runs left out"),
            Block("table", heads=heads, rows=rows),
            Block("note", "A seed that one cell lacks is left out of every contrast "
                  "with that cell, as contrasts are paired by seed."),
        ]  # fmt: skip
    rest = len(runs) - len(lost)
    if rest:
        text = f"{count(rest, 'run')} in no cell of the design, or at no chosen rate."
        found.append(Block("note", text))
    return found
