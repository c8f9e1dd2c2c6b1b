"""Folders of runs of a 2 x 2 study (and more) whose truth is known."""

import numpy as np
import pytest

STEPS = 100
GRID = {"adamw": (1e-4, 1e-3, 1e-2), "muon": (0.01, 0.02, 0.04)}
# Rate at which each column is best; the penalty is PENALTY * log10(rate / best)^2.
BEST = {"adamw": 1e-3, "muon": 0.02}
PENALTY = 0.4
DESIGN = {
    "rows": {
        "name": "normalizer",
        "key": "norm",
        "levels": ["rmsnorm", "derf"],
    },
    "columns": {"name": "optimizer", "key": "optimizer", "levels": ["adamw", "muon"]},
    "tune_seeds": [100],
    "primary": {"id": "H1", "direction": ">", "statement": "Derf loses more with Muon"},
}


def curve(end, seed, *, speed=1.0, gap=0.0, every=10):
    """Falls from about 5 to `end`, in step / speed; the gap opens linearly."""
    step = np.arange(0, STEPS + 1, every)
    shape = (1 + speed * step / 5) ** -1.0
    last = (1 + speed * STEPS / 5) ** -1.0
    base = end + (5 - end) * (shape - last) / (1 - last)
    return step, base + gap * step / STEPS + 0.0 * seed


def rows_of(steps, values):
    rows = []
    for step, value in zip(steps.tolist(), values.tolist(), strict=True):
        row = {"step": step, "val_loss": value, "tokens": 64 * step}
        rows.append(row if step == 0 else row | {"loss": value, "grad_norm": 1.0})
    return rows


@pytest.fixture
def make_cell(make_run):
    """Writes one run: make_cell(home, row, column, seed, end, gap=..., ...)."""

    def write(
        home,
        row,
        column,
        seed,
        end,
        *,
        gap=0.0,
        speed=1.0,
        rate=None,
        design=DESIGN,
        norm=None,
        norm_extra=None,
        tags=None,
        every=10,
        **keywords,
    ):
        steps, values = curve(end, seed, speed=speed, gap=gap, every=every)
        optimizer = {
            "_target_": f"experiments.optimizers.{column}.{column.capitalize()}",
            "learning_rate": BEST.get(column, 0.02) if rate is None else rate,
        }
        return make_run(
            home,
            norm=norm or row,
            seed=seed,
            metrics=rows_of(steps, values),
            choices={"optimizer": column},
            tags=({"design": design} if design else {}) | (tags or {}),
            norm_extra=norm_extra,
            config_extra={"optimizer": optimizer},
            **keywords,
        )

    return write


@pytest.fixture
def make_study(make_cell):
    """A 2 x 2 study with tuning runs: gaps 0.3 and 0.3 + effect, plus noise per run.

    What a seed does to all cells is 0.5 * seed, far more than the effect: only paired
    statistics find it.
    """

    def write(home, *, effect=0.4, seeds=4, noise=0.01, ahead=0.0, speed=1.0, **kw):
        rng = np.random.default_rng(7)
        for row, gap in (("rmsnorm", 0.0), ("derf", 0.3)):
            for column in ("adamw", "muon"):
                own = gap + (effect if (row, column) == ("derf", "muon") else 0)
                fast = speed if column == "muon" else 1.0
                for seed in range(seeds):
                    end = 2 + 0.5 * seed - ahead * (column == "muon")
                    end += noise * rng.standard_normal()
                    make_cell(home, row, column, seed, end, gap=own, speed=fast, **kw)
                for rate in GRID[column]:
                    extra = PENALTY * np.log10(rate / BEST[column]) ** 2
                    make_cell(
                        home, row, column, 100, 2 + extra, gap=own, rate=rate, **kw
                    )

    return write


WIDE = {
    "rows": {
        "name": "normalizer",
        "key": "norm",
        "levels": [
            "rmsnorm",
            "derf",
            "dyt",
            {"derf_0.3": {"norm": "derf", "model.norm.alpha_init": 0.3}},
            {"derf_0.1": {"norm": "derf", "model.norm.alpha_init": 0.1}},
        ],
    },
    "columns": {
        "name": "optimizer",
        "key": "optimizer",
        "levels": ["adamw", "muon", "muon_capped"],
    },
    "tune_seeds": [100],
    "primary": {
        "id": "H1",
        "direction": ">",
        "statement": "Derf at alpha 0.5 loses more with Muon than with AdamW",
    },
    "contrasts": [
        {"id": "dyt", "rows": ["rmsnorm", "dyt"], "columns": ["adamw", "muon"]},
        {"id": "cap", "rows": ["rmsnorm", "derf"], "columns": ["adamw", "muon_capped"]},
        {"id": "shape", "rows": ["dyt", "derf"], "columns": "muon"},
    ],
    "remedies": ["derf_0.3", {"id": "spectral cap", "column": "muon_capped"}],
    "doses": [
        {
            "id": "derf",
            "x": "alpha",
            "rows": {"derf_0.1": 0.1, "derf_0.3": 0.3, "derf": 0.5},
        },
        {"x": "spectral cap", "columns": {"muon_capped": 1.0, "muon": 4.0}},
    ],
    "predictions": [
        {
            "id": "P1",
            "statement": "The residual RMS is larger with Muon",
            "quantity": "site/x_rms",
            "rows": "rmsnorm",
            "columns": ["adamw", "muon"],
            "direction": ">",
        },
        {
            "id": "P5",
            "statement": "Capping the growth removes the interaction",
            "contrast": "cap",
            "direction": "=",
            "margin": 0.05,
        },
        {
            "id": "P6",
            "statement": "The interaction is there at own rates",
            "contrast": "H1",
            "rates": "own",
            "direction": "<",
        },
        {
            "id": "P7",
            "statement": "Nobody measured this",
            "quantity": "no/such",
            "contrast": "H1",
            "direction": ">",
        },
    ],
}
# What every row adds to the baseline under adamw, muon and muon_capped.
GAPS = {
    "rmsnorm": (0.0, 0.0, 0.0),
    "derf": (0.3, 0.9, 0.3),
    "dyt": (0.3, 0.3, 0.3),
    "derf_0.3": (0.28, 0.4, 0.3),
    "derf_0.1": (0.27, 0.3, 0.28),
}


def site_probes(row, column, seed, *, n_layers=3):
    """Rows of probes.jsonl: growth of the stream and of spectral norms as powers."""
    power = {"adamw": 0.25, "muon": 0.5, "muon_capped": 0.1}[column]
    site = np.arange(1, 2 * n_layers + 1)
    rows = []

    def add(step, quantity, axis, values):
        values = [float(v) for v in values]
        rows.append(
            {"step": step, "quantity": quantity, "axis": axis, "values": values}
        )

    for step in (1, 2, 4, 8, 16, 32, 64, 100):
        growth = step**power
        rms = np.sqrt(1 + 0.3 * site * growth) * (1 + 0.01 * seed)
        add(step, "site/x_rms", "site", rms)
        add(step, "final/x_rms", "scalar", [1.1 * rms[-1]])
        if row != "rmsnorm":
            add(step, "site/sat99", "site", 1 - 1 / (1 + 0.1 * growth * site))
            add(step, "site/gain_eff", "site", 1 / (1 + 0.1 * growth * site))
            add(step, "site/lin_cos", "site", 1 / (1 + 0.02 * growth * site))
            add(step, "final/gain_eff", "scalar", [0.5 / (1 + 0.1 * growth)])
        for name in ("q", "o", "ffn_up", "ffn_down"):
            layer = np.arange(1, n_layers + 1)
            add(step, f"sigma1/{name}", "layer", layer * growth * (1 + 0.1 * seed))
    return rows


@pytest.fixture
def make_wide(make_cell):
    """All kinds of arms with probes, a diverged tuning rate and a diverged run."""

    def write(home, *, seeds=3):
        rng = np.random.default_rng(3)
        grid = GRID | {"muon_capped": GRID["muon"]}
        for row, gaps in GAPS.items():
            norm, extra = (row, None)
            if row.startswith("derf"):
                alpha = float(row.partition("_")[2] or 0.5)
                norm, extra = "derf", {"alpha_init": alpha}
            for column, gap in zip(grid, gaps, strict=True):
                common = {"norm": norm, "norm_extra": extra, "design": WIDE, "gap": gap}
                for rate in grid[column]:
                    best = BEST.get(column, 0.02)
                    # Derf under adamw wants the smallest rate of the grid.
                    if (row, column) == ("derf", "adamw"):
                        best = 1e-4
                    end = 2 + PENALTY * np.log10(rate / best) ** 2
                    lost = row != "rmsnorm" and rate == 1e-2
                    make_cell(
                        home,
                        row,
                        column,
                        100,
                        end,
                        rate=rate,
                        state="diverged" if lost else "completed",
                        diverged_step=30 if lost else None,
                        **common,
                    )
                rates = {BEST.get(column, 0.02)}
                if (row, column) == ("derf", "adamw"):
                    rates.add(1e-4)
                for rate in sorted(rates):
                    for seed in range(seeds):
                        lost = (row, column, seed) == ("dyt", "muon", 2)
                        end = (
                            2 + 0.02 * rng.standard_normal() - 0.1 * (column != "adamw")
                        )
                        make_cell(
                            home,
                            row,
                            column,
                            seed,
                            end,
                            rate=rate,
                            speed=2.0 if column != "adamw" else 1.0,
                            state="diverged" if lost else "completed",
                            diverged_step=40 if lost else None,
                            probes=site_probes(row, column, seed),
                            **common,
                        )

    return write
