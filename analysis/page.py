"""The report as one HTML page without outside resources."""

import base64
from html import escape
from pathlib import Path

from analysis.decide import CONFIRMED, NOT_CONFIRMED
from analysis.interaction.section import Block, blocks
from analysis.text import NOTHING, count, minus, number
from analysis.variants import is_depth_family
from analysis.wording import (
    band_text,
    incidents,
    interval_text,
    law_text,
    measured_text,
    profile_text,
    ratio_text,
    state_text,
    states_line,
    usual_text,
    verdict_line,
)

CSS = """
:root { color-scheme: light; }
body { margin: 2.5rem auto; max-width: 68rem; padding: 0 1.5rem; color: #222;
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.9rem; margin: 0 0 .3rem; }
h2 { font-size: 1.3rem; margin: 2.4rem 0 .6rem; border-bottom: 1px solid #ddd; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
.question { font-size: 1.15rem; color: #444; margin: 0 0 1rem; }
.note { color: #666; font-size: .9rem; margin: .3rem 0 1rem; }
.warn { background: #fdf3e2; border-left: 4px solid #e69f00; padding: .6rem 1rem; }
.scroll { overflow-x: auto; margin-bottom: .8rem; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; padding: .35rem .9rem .35rem 0; vertical-align: top;
  border-bottom: 1px solid #e6e6e6; }
th { font-weight: 600; color: #555; }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap; }
.yes { color: #00694f; font-weight: 600; } .no { color: #b34700; font-weight: 600; }
.open { color: #555; font-weight: 600; }
figure { margin: 1rem 0 2rem; } img { max-width: 100%; height: auto; }
code { font-size: .88em; }
"""


def render(summary: dict, figures: list[tuple[str, Path]]) -> str:
    """Returns the page; figures are (family, PNG file) and are embedded."""
    body = [f"<h1>{escape(summary['title'])}</h1>"]
    if summary["question"]:
        body.append(f'<p class="question">{escape(summary["question"])}</p>')
    body.append(f"<p>{escape(states_line(summary))}</p>")
    body += _warnings(summary)
    if summary["expected"]:
        body += ["<h2>Expected and measured</h2>", _expected(summary["expected"])]
    if summary.get("interaction"):
        body.append("<h2>Interaction</h2>")
        body += [_block(block) for block in blocks(summary["interaction"])]
        body += [_image(path) for name, path in figures if name == "interaction"]
    for family in summary["families"]:
        body.append(f"<h2>{escape(family['family'])}</h2>")
        body += _family(family)
        for name, path in figures:
            if name == family["family"]:
                body.append(_image(path))
    title = escape(summary["title"])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{title}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    if block.kind == "table":
        return _table(block.heads, block.rows)
    form = {
        "heading": "<h3>{}</h3>",
        "note": '<p class="note">{}</p>',
        "warn": '<p class="warn">{}</p>',
    }
    return form.get(block.kind, "<p>{}</p>").format(escape(block.text))


def _warnings(summary: dict) -> list[str]:
    lines = list(summary["mixed"])
    missing = summary["n_runs"] - summary["states"].get("completed", 0)
    if missing:
        lines.append(
            f"{missing} of {count(summary['n_runs'], 'run')} did not complete. Means "
            "and laws below are over completed runs only; where the missing ones are "
            "not a random part, they are biased."
        )
    if summary["problems"]:
        lines.append(
            f"{count(len(summary['problems']), 'run')} could not be read in full: "
            + "; ".join(f"{p['run_id']} ({p['problem']})" for p in _few(summary))
        )
    return [f'<p class="warn">{escape(line)}</p>' for line in lines]


def _few(summary: dict, limit: int = 10) -> list[dict]:
    problems = summary["problems"]
    if len(problems) <= limit:
        return problems
    rest = {"run_id": f"and {len(problems) - limit} more", "problem": "summary.json"}
    return [*problems[:limit], rest]


def _family(family: dict) -> list[str]:
    is_depth = is_depth_family(family["family"])
    parts = [_runs(family["variants"], is_depth)]
    if family["usual"]:
        parts.append(f"<p>{escape(usual_text(family))}</p>")
    if family["losses"]:
        parts += ["<h3>Where training ended</h3>", _losses(family)]
    if family["accuracies"]:
        parts += ["<h3>Validation accuracy</h3>", _accuracies(family["accuracies"])]
    if family["laws"]:
        parts += ["<h3>Gradient against depth</h3>", _laws(family["laws"])]
    if family["profiles"]:
        parts += ["<h3>Gradient over the blocks</h3>", _profiles(family["profiles"])]
    if family.get("gains"):
        parts += ["<h3>Composite gain of the streams</h3>", _gains(family["gains"])]
    return parts


def _runs(variants: list[dict], is_depth: bool) -> str:
    rows = [
        (
            variant["variant"],
            variant["n_seeds"],
            state_text(variant),
            incidents(variant, with_depth=is_depth),
        )
        for variant in variants
    ]
    return _table(("variant", "seeds", "runs", "what happened"), rows)


def _losses(family: dict) -> str:
    losses = family["losses"]
    name = "validation" if losses[0]["measure"] == "val_loss" else "training"
    rows = [
        (*_ended(row), number(row["bits_per_byte"]), *_behind(row)) for row in losses
    ]
    heads = _heads(f"{name} loss [{family['loss_unit']}]", "bits/byte")
    return _table(heads, rows) + ENDS_NOTE


def _accuracies(accuracies: list[dict]) -> str:
    rows = [(*_ended(row), *_behind(row)) for row in accuracies]
    return _table(_heads("share that is right"), rows) + ENDS_NOTE


ENDS_NOTE = (
    '<p class="note">Mean over seeds ± half the 95 % Student-t interval. '
    "Differences are one interval each, not corrected for their number.</p>"
)


def _heads(measured: str, *more: str) -> tuple[str, ...]:
    first = ("variant", measured, "SD", "seeds")
    return (*first, *more, "minus the best, paired by seed", "step")


def _ended(row: dict) -> tuple:
    return row["variant"], interval_text(row), number(row["sd"], 2), row["n"]


def _behind(row: dict) -> tuple:
    return interval_text(row["to_best"]) if row["to_best"] else "", row["step"]


def _laws(laws: list[dict]) -> str:
    rows = []
    for law in (law for law in laws if law["layer"] == "last"):
        head = (law["variant"], law["name"])
        if law["error"]:
            rows.append((*head, law["error"], *[""] * 8, law["left_out"]))
            continue
        theory = law["theory"]
        has_theory = theory["shape"] != "none"
        rows.append(
            (
                *head,
                interval_text(law["exponent"]),
                law["exponent"]["n"],
                law_text(law),
                f"{law['max_residual_power']:.3f}",
                minus(f"{theory['exponent']:.3f}") if has_theory else NOTHING,
                minus(f"{theory['asymptote']:g}") if has_theory else NOTHING,
                number(theory["s0_square"], 3),
                number(theory["v"], 3),
                ratio_text(law),
                [theory["reason"], *law["left_out"]],
            )
        )
    heads = (
        "variant",
        "norm",
        "exponent p",
        "seeds",
        "law",
        "max residual",
        "theory, these depths",
        "theory, L → ∞",
        "s₀²",
        "v",
        "s₀²/v of g⁻²",
        "remarks",
    )
    depths = sorted({d for law in laws for d in law["depths"]})
    return _table(heads, rows) + (
        '<p class="note">‖∂loss/∂W‖<sub>F</sub> ∝ L<sup>p</sup> for the last block, L '
        f"in {', '.join(map(str, depths))}; p is the mean of the seeds' own slopes ± "
        "half the 95 % Student-t interval; residuals are of ln g. Theory: "
        "C/√(s₀² + vL) with the measured s₀² and v where the stream grows that way (a "
        "power-law fit on a finite grid finds less than ½), constant where the stream "
        "is constant, and the mean field of a pointwise normalizer, which does not "
        "divide by the scale. s₀²/v of g⁻²: the same ratio from the gradients alone, by "
        "g⁻² = (s₀² + vL)/C² (jackknife over seeds).</p>"
    )


def _profiles(profiles: list[dict]) -> str:
    rows = [
        (
            profile["variant"],
            profile["depth"],
            profile_text(profile),
            profile["kind"],
            number(profile["first_over_last"]["mean"], 3),
            profile["exponent"]["n"],
        )
        for profile in profiles
    ]
    heads = ("variant", "depth", "slope over blocks", "law", "first / last", "seeds")
    return _table(heads, rows) + (
        '<p class="note">Of W1 in the deepest networks, from block 2 on: exponent of the '
        "block number l, or rate per block where an exponential fits better. Theory of a "
        "scale-free normalizer before the branch: 1/√(s₀² + vl).</p>"
    )


def _gains(gains: list[dict]) -> str:
    rows = [
        (
            gain["variant"],
            gain["depth"],
            gain["step"],
            gain["forward"]["max"]["n"] if gain["forward"]["max"] else 0,
            *(
                cell
                for direction in ("forward", "backward")
                for cell in (
                    _factor(gain[direction]["max"]),
                    _factor(gain[direction]["min"]),
                    number(gain[direction]["farthest"], 4),
                )
            ),
        )
        for gain in gains
    ]
    heads = (
        "variant",
        "depth",
        "step",
        "seeds",
        "forward max",
        "min",
        "farthest from 1",
        "backward max",
        "min",
        "farthest from 1",
    )
    return _table(heads, rows) + (
        '<p class="note">Absolute row sums (forward) and column sums (backward) of the '
        "product of the mixing matrices of all sub-layers: geometric mean over seeds with "
        "its 95 % Student-t interval. Farthest: of all products up to a sub-layer (or "
        "from it on) and all seeds. The matrices are means over tokens.</p>"
    )


def _factor(interval: dict | None) -> str:
    """`12.3 [9.1, 16.6]`: the interval of a geometric mean is not symmetric."""
    if interval is None:
        return NOTHING
    if interval["n"] < 2:
        return f"{number(interval['mean'])} (one seed: no interval)"
    low, high = number(interval["low"]), number(interval["high"])
    return f"{number(interval['mean'])} [{low}, {high}]"


def _expected(outcomes: list[dict]) -> str:
    classes = {CONFIRMED: "yes", NOT_CONFIRMED: "no"}
    rows = [
        (
            o["id"],
            o["label"],
            f"{o['quantity']} ({o['fit']})",
            band_text(o),
            measured_text(o),
            o["n"],
            _Raw(
                f'<span class="{classes.get(o["verdict"], "open")}">'
                f"{escape(verdict_line(o))}</span>"
            ),
            o["source"],
        )
        for o in outcomes
    ]
    heads = (
        "check",
        "variant",
        "quantity (fit)",
        "expected ± tolerance",
        "measured ± interval",
        "seeds",
        "verdict",
        "source",
    )
    return _table(heads, rows)


class _Raw(str):
    """A cell that is HTML already."""


def _table(heads: tuple, rows: list[tuple]) -> str:
    def cell(value) -> str:
        if isinstance(value, _Raw):
            return f"<td>{value}</td>"
        if isinstance(value, list):
            return f"<td>{'<br>'.join(escape(str(v)) for v in value)}</td>"
        kind = ' class="n"' if len(str(value)) < 30 else ""
        return f"<td{kind}>{escape(str(value))}</td>"

    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    lines = ["<tr>" + "".join(map(cell, row)) + "</tr>" for row in rows]
    return (
        f'<div class="scroll"><table>\n<tr>{head}</tr>\n'
        + "\n".join(lines)
        + "\n</table></div>"
    )


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    name = escape(path.stem.replace("_", " "))
    return f'<figure><img alt="{name}" src="data:image/png;base64,{data}"></figure>'
