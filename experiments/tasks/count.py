"""What a model has and needs: parameters, memory, FLOPs."""

import json
import pathlib
from typing import Any

import jax.numpy as jnp
from flax import nnx
from rich import box
from rich.console import Console
from rich.table import Table

from blocks.dtypes import DTYPES
from blocks.parameters import Layout, layout_of
from experiments import counting
from experiments.config import Config
from experiments.errors import ConfigError, UserError
from experiments.group import load_dataset

FILE = "count.json"
SCHEMA = 1
F32 = 4  # bytes of a parameter, a gradient, and each of the two moments of AdamW


class Count:
    """Counts a model of any size; allocates and trains nothing, makes no run.

    Prints a table and writes `outputs/<name>/count.json`:

        n_params, n_active   all parameters; those that one token meets (of routed
                             experts top_k / n_experts, tables whole)
        n_state              numbers carried beside them (balancing biases, loads)
        parts                the same two by part, in the order of the forward pass
        training_bytes       float32 parameters, gradients and the moments of AdamW;
                             activations are not in it
        flops_per_token      of matrix products at `seq_len` tokens (an image: as many
                             as it has): forward, with weights and in attention;
                             training is three times that
        kv_cache             bytes in `cache_dtype` that a token adds, and that a
                             sequence of `seq_len` keeps

    cache_dtype: of cached keys and values.
    """

    traced = ()

    @staticmethod
    def check(*, cache_dtype: str = "bfloat16") -> None:
        if cache_dtype not in DTYPES:
            raise ValueError(
                f"cache_dtype must be one of {', '.join(DTYPES)}, got {cache_dtype!r}"
            )

    def __init__(self, *, cache_dtype: str = "bfloat16"):
        self.cache_dtype = cache_dtype

    def answer(self, config: Config, console: Console) -> None:
        """Prints the counts and writes them.

        Raises:
            UserError: the model cannot be built, or the folder cannot be written.
        """
        node = self.collect(layout_of_model(config), config.seq_len)
        console.print(_parts_table(node))
        console.print(_needs_table(node))
        path = _write(config.folder / FILE, node)
        line = f"everything is in {path}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    def collect(self, layout: Layout, seq_len: int) -> dict[str, Any]:
        """Contents of count.json."""
        seq_len = counting.n_tokens(layout, seq_len)
        parts = counting.count(layout)
        total = sum(parts.values(), counting.Count())
        flops = counting.flops_per_token(layout, seq_len)
        forward = flops["weights"] + flops["attention"]
        kept = counting.kept_per_token(layout, seq_len)
        width = jnp.dtype(self.cache_dtype).itemsize
        n = total.n_params
        return {
            "schema": SCHEMA,
            "seq_len": seq_len,
            "n_params": n,
            "n_active": total.n_active,
            "n_state": counting.state_size(layout),
            "parts": [
                {"part": part, "n_params": c.n_params, "n_active": c.n_active}
                for part, c in parts.items()
            ],
            "training_bytes": {
                "parameters": F32 * n,
                "gradients": F32 * n,
                "adamw": 2 * F32 * n,
                "total": 4 * F32 * n,
            },
            "flops_per_token": {**flops, "forward": forward, "training": 3 * forward},
            "kv_cache": {
                "dtype": self.cache_dtype,
                "bytes_per_token": width * kept["per_token"],
                "bytes_per_sequence": width * kept["per_sequence"],
            },
        }


def layout_of_model(config: Config) -> Layout:
    """The abstract model of a config.

    Raises:
        UserError: it cannot be built.
    """
    make = config.model.build(config.traced_values(), "model")
    more = {}
    if "vocab_size" in dict(config.model.keywords) and not config.model["vocab_size"]:
        more["vocab_size"] = load_dataset(config.data).vocab_size
    try:
        return layout_of(lambda: make(**more, rngs=nnx.Rngs(0)))
    except ValueError as error:
        raise ConfigError(f"model: {error}") from None


def _parts_table(node: dict[str, Any]) -> Table:
    table = Table(title="parameters", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("part", style="bold", no_wrap=True)
    table.add_column("all", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    is_mixture = node["n_active"] != node["n_params"]
    if is_mixture:
        table.add_column("of one token", justify="right", no_wrap=True)
    total = {"part": "all", "n_params": node["n_params"], "n_active": node["n_active"]}
    for row in (*node["parts"], total):
        share = f"{row['n_params'] / node['n_params']:.1%}"
        active = (f"{row['n_active']:,}",) if is_mixture else ()
        table.add_row(row["part"], f"{row['n_params']:,}", share, *active)
    return table


def _needs_table(node: dict[str, Any]) -> Table:
    table = Table(title="needs", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("what", style="bold")
    table.add_column("how much", justify="right", no_wrap=True)
    flops, cache, seq = node["flops_per_token"], node["kv_cache"], node["seq_len"]
    for what, value in (
        (
            "training: float32 parameters, gradients, AdamW",
            _bytes(node["training_bytes"]["total"]),
        ),
        (f"FLOPs per token, forward, {seq:,} tokens", f"{flops['forward']:.4g}"),
        ("    of which attention", f"{flops['attention']:.4g}"),
        ("FLOPs per token, training", f"{flops['training']:.4g}"),
        (
            f"key/value cache per token, {cache['dtype']}",
            f"{cache['bytes_per_token']:,} B",
        ),
        (f"    of {seq:,} tokens", _bytes(cache["bytes_per_sequence"])),
    ):
        table.add_row(what, value)
    return table


def _bytes(n: int) -> str:
    """12345678 -> 11.8 MiB."""
    value, units = float(n), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:,.1f} {units[0]}"


def _write(path: pathlib.Path, node: dict[str, Any]) -> pathlib.Path:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(node, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot write there ({error})") from None
    return path
