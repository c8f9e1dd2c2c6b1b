"""Every part there is: formula, parameters, source."""

import dataclasses
import json
import pathlib
from typing import Any

from flax import nnx
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.catalogue.build import Sizes, build, parameters_of
from experiments.catalogue.choices import Choice, groups
from experiments.catalogue.curves import activation_curves, grid, norm_curves
from experiments.catalogue.text import comment_lines, comment_of, formula_of, source_of
from experiments.config import Config
from experiments.errors import UserError

FILE = "catalogue.json"
SCHEMA = 1


class Catalogue:
    """Lists every choice of every group of `conf/`; trains nothing, makes no run.

    Prints a table per group and writes `outputs/<name>/catalogue.json`
    (docs/catalogue.md), from which `python -m analysis catalogue outputs/<name>` draws
    a page. Parts are found in `conf/` and built one by one at these sizes; one that
    cannot be built alone is listed with the reason.

    d_model, n_heads, d_ff, n_layers, seq_len, vocab_size: sizes that parts are given;
        d_ff None is 4 d_model. A whole model keeps its own, but for vocab_size.
    """

    traced = ()

    @staticmethod
    def check(
        *,
        d_model: int = 512,
        n_heads: int = 8,
        d_ff: int | None = None,
        n_layers: int = 12,
        seq_len: int = 1024,
        vocab_size: int = 256,
    ) -> None:
        sizes = dict(d_model=d_model, n_heads=n_heads, n_layers=n_layers)
        sizes |= dict(seq_len=seq_len, vocab_size=vocab_size)
        for name, size in (sizes | ({} if d_ff is None else {"d_ff": d_ff})).items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if d_model % n_heads:
            raise ValueError(f"d_model={d_model} is not divisible by n_heads={n_heads}")

    def __init__(
        self,
        *,
        d_model: int = 512,
        n_heads: int = 8,
        d_ff: int | None = None,
        n_layers: int = 12,
        seq_len: int = 1024,
        vocab_size: int = 256,
    ):
        self.sizes = Sizes(
            d_model=d_model,
            n_heads=n_heads,
            d_ff=4 * d_model if d_ff is None else d_ff,
            n_layers=n_layers,
            seq_len=seq_len,
            vocab_size=vocab_size,
        )

    def answer(self, config: Config, console: Console) -> None:
        """Prints the catalogue and writes it.

        Raises:
            UserError: the folder cannot be written.
        """
        node = self.collect()
        sizes = ", ".join(f"{k}={v}" for k, v in node["sizes"].items())
        line = f"parameters of each part alone at {sizes} (a model at its own sizes)"
        console.print(line, highlight=False, soft_wrap=True)
        for group in node["groups"]:
            console.print(_table(group))
        n = sum(len(group["entries"]) for group in node["groups"])
        problems = [
            f"{group['group']}={e['choice']}: {e['problem']}"
            for group in node["groups"]
            for e in group["entries"]
            if e["problem"]
        ]
        path = _write(config.folder / FILE, node)
        lines = [f"{n} choices in {len(node['groups'])} groups"]
        if problems:
            lines += [f"{len(problems)} could not be built alone:", *problems]
        lines += [f"everything is in {path}"]
        lines += [f"python -m analysis catalogue {path.parent} makes a page of it"]
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    def collect(self) -> dict[str, Any]:
        """The catalogue as plain data: contents of catalogue.json."""
        return {
            "schema": SCHEMA,
            "sizes": dataclasses.asdict(self.sizes),
            "groups": [
                {"group": group, "entries": [self._entry(c) for c in choices]}
                for group, choices in groups().items()
            ],
            "t": grid(),
            "activations": activation_curves(),
        }

    def _entry(self, choice: Choice) -> dict[str, Any]:
        """One choice. Whatever is wrong with it is written down and stops no other."""
        says, says_source = comment_of(choice.text)
        entry: dict[str, Any] = {
            "choice": choice.name,
            "says": says,
            "says_source": says_source,
            "target": None,
            "keywords": {},
            "formula": None,
            "source": None,
            "n_params": None,
            "params": [],
            "curves": None,
            "problem": None,
        }
        try:
            part = choice.part()
            if part is None:  # an experiment: its comment is a text
                text = "\n".join(comment_lines(choice.text))
                return {**entry, "says": text, "says_source": None}
            entry["target"] = part.target
            entry["keywords"] = {
                k: v for k, v in part.to_config().items() if not k.startswith("_")
            }
            entry["formula"] = formula_of(part.cls)
            entry["source"] = source_of(part.cls)
            specs = parameters_of(part, self.sizes)
            if specs is not None:
                entry["n_params"] = sum(spec.size for spec in specs.values())
                entry["params"] = [
                    {"path": path, "role": spec.role, "shape": list(spec.shape)}
                    for path, spec in specs.items()
                ]
            if choice.group == "norm":
                norm = build(part.build({}, "norm"), self.sizes, nnx.Rngs(0))
                entry["curves"] = norm_curves(norm, self.sizes.d_model)
        except UserError as error:
            entry["problem"] = str(error)
        except Exception as error:  # somebody's half-written part
            first = (str(error).splitlines() or [""])[0]
            is_plain = isinstance(error, (TypeError, ValueError))
            entry["problem"] = first if is_plain else f"{type(error).__name__}: {first}"
        return entry


def _table(group: dict[str, Any]) -> Table:
    table = Table(title=f"{group['group']}=", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("choice", style="bold", no_wrap=True)
    table.add_column("formula", ratio=3)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("source", ratio=2)
    table.expand = True
    targets = [entry["target"] for entry in group["entries"]]
    for entry in group["entries"]:
        # Of several choices of one class the YAML says what tells this one apart.
        is_shared = targets.count(entry["target"]) > 1
        formula = entry["says"] if is_shared else entry["formula"] or entry["says"]
        if entry["target"] is None:
            formula = formula.partition("\n")[0]
        n_params = entry["n_params"]
        table.add_row(
            entry["choice"],
            escape(entry["problem"] or formula),
            "" if n_params is None else f"{n_params:,}",
            escape(entry["says_source"] or entry["source"] or ""),
        )
    return table


def _write(path: pathlib.Path, node: dict[str, Any]) -> pathlib.Path:
    text = json.dumps(node, indent=1, allow_nan=False, default=list) + "\n"
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot write there ({error})") from None
    return path
