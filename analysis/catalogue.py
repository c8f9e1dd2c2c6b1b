"""The catalogue of parts as one HTML page: DIR/catalogue.json -> DIR/catalogue.html."""

import base64
from html import escape
from pathlib import Path

from analysis.answers import read_answer, write_whole
from analysis.page import CSS
from analysis.plots.curves import curve_svg
from analysis.text import count

SOURCE, PAGE = "catalogue.json", "catalogue.html"
SCHEMA = 1

MORE_CSS = """
body { max-width: 96rem; }
pre { margin: .3rem 0; font-size: .82rem; line-height: 1.35; white-space: pre-wrap; }
td p { margin: 0 0 .2rem; } td small { color: #666; } td { max-width: 30rem; }
td.choice { max-width: 15rem; } td.choice code { white-space: nowrap; }
td.curves { max-width: none; } td.curves img { width: 26rem; max-width: none; }
nav a { margin-right: .8rem; }
.cards { display: flex; flex-wrap: wrap; gap: 1.4rem; }
.cards figure { margin: 0; width: 15rem; } .cards img { width: 15rem; }
figcaption { font-size: .85rem; color: #444; }
"""

LINES = {"token": "whole token: x = t u", "feature": "one feature: x_i = t"}


def write_catalogue(directory: str | Path) -> Path:
    """Draws the page of a catalogue; returns where it is.

    Raises:
        AnalysisError: there is no catalogue in the folder, it cannot be read, or the
            page cannot be written.
    """
    home = Path(directory)
    text = render(read_catalogue(home))
    return write_whole(
        home / PAGE, lambda path: path.write_text(text, encoding="utf-8")
    )


def read_catalogue(home: Path) -> dict:
    """Contents of catalogue.json (docs/catalogue.md).

    Raises:
        AnalysisError: no such file, not JSON, or of another schema.
    """
    return read_answer(home / SOURCE, task="catalogue", schema=SCHEMA)


def render(node: dict) -> str:
    """The page, without outside resources."""
    groups = node["groups"]
    n = sum(len(group["entries"]) for group in groups)
    sizes = ", ".join(f"{name} {size:,}" for name, size in node["sizes"].items())
    body = [
        "<h1>Catalogue of parts</h1>",
        f"<p>{count(n, 'choice')} in {count(len(groups), 'group')}. Parameters are "
        f"those of each part alone at {escape(sizes)}; a model has its own sizes.</p>",
        *_problems(groups),
        _contents([*(group["group"] for group in groups), "activations"]),
    ]
    for group in groups:
        body.append(f'<h2 id="{escape(group["group"])}">{escape(group["group"])}</h2>')
        if any(entry["curves"] for entry in group["entries"]):
            body.append(CURVES_NOTE)
        body.append(_group(group, node["t"]))
    body += ['<h2 id="activations">activations</h2>', ACTIVATIONS_NOTE]
    body.append(_activations(node["activations"], node["t"]))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>Catalogue of parts</title>\n<style>{CSS}{MORE_CSS}</style>\n"
        "</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


CURVES_NOTE = (
    '<p class="note">Curves at the initial values, in evaluation mode: one feature y '
    "(blue) and dy/dt (dashed, orange) against t. Left: the whole token grows, x = t u "
    "with u of unit mean square. Right: x<sub>i</sub> = t and the other features stay "
    "those of u. u<sub>i</sub> = 1. Slopes beyond the frame are cut.</p>"
)
ACTIVATIONS_NOTE = (
    '<p class="note">Of <code>model.ffn.activation</code>: y (blue) and dy/dx (dashed, '
    "orange) against x.</p>"
)


def _contents(names: list[str]) -> str:
    links = [f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names]
    return f"<nav>{' '.join(links)}</nav>"


def _problems(groups: list[dict]) -> list[str]:
    lines = [
        f"{group['group']}={entry['choice']}: {entry['problem']}"
        for group in groups
        for entry in group["entries"]
        if entry["problem"]
    ]
    if not lines:
        return []
    listed = "<br>".join(escape(line) for line in lines)
    head = f"{count(len(lines), 'choice')} could not be built alone:"
    return [f'<p class="warn">{head}<br>{listed}</p>']


def _group(group: dict, t: list[float]) -> str:
    has_curves = any(entry["curves"] for entry in group["entries"])
    heads = ["choice", "what it is", "parameters", "source"]
    rows = []
    for entry in group["entries"]:
        name = f"{group['group']}={entry['choice']}"
        target = escape(entry["target"] or "").replace(".", ".<wbr>")
        target = f"<br><small>{target}</small>"
        cells = [
            f'<td class="choice"><code>{escape(name)}</code>{target}</td>',
            f"<td>{_what(entry)}</td>",
            f'<td class="n">{_parameters(entry)}</td>',
            f"<td>{_sources(entry)}</td>",
        ]
        if has_curves:
            curves = _curves(entry, name, t)
            cells.insert(1, f'<td class="curves">{curves}</td>')
        rows.append("".join(cells))
    if has_curves:
        heads.insert(1, "curves")
    return _table(heads, rows)


def _what(entry: dict) -> str:
    says = escape(entry["says"]).replace("\n", "<br>")
    parts = [f"<p>{says}</p>"] if says else []
    if entry["formula"] and not _is_same(entry["formula"], entry["says"]):
        parts.append(f"<pre>{escape(entry['formula'])}</pre>")
    keywords = ", ".join(
        f"{k}={_value(v)}"
        for k, v in entry["keywords"].items()
        if v is not None and v != []
    )
    if keywords:
        parts.append(f"<small>{escape(keywords)}</small>")
    return "".join(parts)


def _value(value) -> str:
    """A keyword's value; of a part only which class it is."""
    if isinstance(value, dict):
        return str(value.get("_target_", "{...}")).rsplit(".", 1)[-1]
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _parameters(entry: dict) -> str:
    if entry["n_params"] is None:
        return ""
    lines = [f"{p['path']} {list(p['shape'])} {p['role']}" for p in entry["params"]]
    listed = "<br>".join(escape(line) for line in lines)
    return f"{entry['n_params']:,}<br><small>{listed}</small>"


def _sources(entry: dict) -> str:
    short, full = entry["says_source"] or "", entry["source"] or ""
    found = [full] if short in full else [short, full]
    return "<br>".join(escape(source) for source in found if source)


def _is_same(text: str, other: str) -> bool:
    """Whether two texts differ in spaces and the last full stop only."""
    first, second = (" ".join(t.split()).rstrip(".") for t in (text, other))
    return first == second


def _curves(entry: dict, name: str, t: list[float]) -> str:
    if not entry["curves"]:
        return ""
    panels = [
        (title, entry["curves"][line]["y"], entry["curves"][line]["slope"])
        for line, title in LINES.items()
    ]
    return _image(curve_svg(t, panels, name), f"y and its slope: {name}")


def _activations(activations: list[dict], t: list[float]) -> str:
    cards = []
    for one in activations:
        svg = curve_svg(t, [("", one["y"], one["slope"])], one["name"])
        cards.append(
            f"<figure>{_image(svg, one['name'])}<figcaption>"
            f"<code>{escape(one['name'])}</code> {escape(one['says'])}"
            "</figcaption></figure>"
        )
    return f'<div class="cards">\n{chr(10).join(cards)}\n</div>'


def _table(heads: list[str], rows: list[str]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    lines = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{lines}\n</table></div>'


def _image(svg: bytes, what: str) -> str:
    data = base64.b64encode(svg).decode()
    return f'<img alt="{escape(what)}" src="data:image/svg+xml;base64,{data}">'
