"""Makes run directories as docs/run_directory.md describes them, from known laws."""

import itertools
import json
import math

import numpy as np
import pytest

ALL_DEPTHS = (6, 12, 24, 48, 96, 192, 384)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_run(
    directory,
    *,
    task="train",
    seed=0,
    norm="layernorm",
    placement="pre",
    n_layers=4,
    state="completed",
    diverged_step=None,
    error=None,
    metrics=(),
    probes=(),
    learning_rate=0.001,
    model="LanguageModel",
    references=None,
    choices=None,
    tags=None,
    norm_extra=None,
    config_extra=None,
):
    """Writes one run and returns its folder."""
    config = {
        "name": directory.name,
        "tags": tags or {},
        "seed": seed,
        "steps": 100,
        "log_every": 10,
        "model": {
            "_target_": f"blocks.models.{model}",
            "n_layers": n_layers,
            "d_model": 64,
            "norm": {"_target_": f"blocks.norms.{norm}", **(norm_extra or {})},
            "placement": {"_target_": f"blocks.residual.{placement}"},
        },
        "optimizer": {
            "_target_": "experiments.optimizers.adamw.AdamW",
            "learning_rate": learning_rate,
            "betas": [0.9, 0.95],
        },
        "data": {"_target_": "experiments.data.text.Text", "seed": seed},
        "task": {"_target_": f"experiments.tasks.{task}.{task.capitalize()}"},
        "runtime": {"layout": "threads"},
        **(config_extra or {}),
    }
    number = sum(1 for _ in directory.glob("*-*")) if directory.exists() else 0
    folder = directory / f"{norm}_{placement}-{number:012x}"
    folder.mkdir(parents=True)
    status = {
        "state": state,
        "step": 100,
        "steps": 100,
        "started": 1.79e9,
        "updated": 1.79e9 + 60,
        "seconds": 60.5,
        "diverged_step": diverged_step,
        "error": error,
        "attempt": 1,
        "params_digest": None,
    }
    env = {
        "choices": {
            "norm": norm,
            "placement": placement,
            "experiment": "x",
            **(choices or {}),
        },
        "data": {
            "fingerprint": "f00d" * 8,
            "unit": "byte",
            "references": references or {},
        },
        "n_params": 123456,
        "layout": "threads",
    }
    for name, value in (("config", config), ("status", status), ("env", env)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "probes.jsonl", probes)
    return folder


def loss_rows(start, end, seed, *, steps=100, every=2, noise=0.02, stop=None):
    """A loss that falls from start to end as a power of the step; val every 20."""
    rng = np.random.default_rng([seed, round(1e4 * end)])
    offset = noise * rng.standard_normal()
    rows = [{"step": 0, "val_loss": start, "tokens": 0}]
    for step in range(every, steps + 1, every):
        mean = end + offset + (start - end) * (1 + step / (steps / 60)) ** -0.9
        loss = mean + noise * rng.standard_normal()
        row = {"step": step, "loss": loss, "grad_norm": 1.0, "tokens": step * 64}
        if step % (10 * every) == 0:
            row["val_loss"] = mean + 0.03
        if stop is not None and step >= stop:
            rows.append({"step": step, "loss": None, "finite": False})
            return rows
        rows.append(row)
    return rows


def depth_probes(n_layers, seed, *, stream="pre", sigma=0.08, scale=0.03, v=1.0):
    """Probes of an exact law times log-normal noise.

    pre: stream 1 + v l and gradients C / sqrt(1 + v l); post: both constant.
    """
    rng = np.random.default_rng([n_layers, seed, len(stream)])
    block = np.arange(1, n_layers + 1)
    square = 1 + v * block if stream == "pre" else np.full(n_layers, 1.0)
    noise = np.exp(sigma * rng.standard_normal((2, n_layers)))
    wobble = np.exp(0.3 * sigma * rng.standard_normal(3))
    up = scale * math.sqrt(2) / np.sqrt(square) * noise[0]
    site = {"stream_mean_square": square * wobble[0]}
    layer = {
        "grad_norm/ffn/up/kernel": up,
        "grad_norm/ffn/down/kernel": 2.8 * scale / np.sqrt(square) * noise[1],
    }
    scalar = {
        "input_mean_square": [wobble[1]],
        "branch_gain": [v * wobble[2]],
        "loss": [0.01],
    }
    return [
        {"step": 0, "quantity": q, "axis": axis, "values": [float(x) for x in values]}
        for axis, group in (("layer", layer), ("site", site), ("scalar", scalar))
        for q, values in group.items()
    ]


def write_depth_runs(
    directory, *, seeds=16, depths=ALL_DEPTHS, sigma=0.08, norms=("layernorm",), **kw
):
    """A depth family: pre and post of each norm, every seed at every depth."""
    for norm, placement in itertools.product(norms, ("pre", "post")):
        for n_layers in depths:
            for seed in range(seeds):
                write_run(
                    directory,
                    task="depth",
                    model="ResidualMLP",
                    norm=norm,
                    placement=placement,
                    n_layers=n_layers,
                    seed=seed,
                    metrics=[{"step": 0, "loss": 0.01, "grad_norm": 1.0}],
                    probes=depth_probes(n_layers, seed, stream=placement, sigma=sigma),
                    **kw,
                )


@pytest.fixture
def make_run():
    return write_run


@pytest.fixture
def make_losses():
    return loss_rows


@pytest.fixture
def make_depth_runs():
    return write_depth_runs


@pytest.fixture
def make_depth_probes():
    return depth_probes
