"""Run directories as three tidy Polars frames.

from analysis.load import load
runs = load("outputs/xiong")
runs.runs.select("variant", "seed", "n_layers", "state")
"""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from analysis import cache, frames
from analysis.folders import run_folders
from analysis.read_run import read_run


@dataclass(frozen=True)
class Runs:
    """What a folder of runs holds.

    Attributes:
        directory: the folder that was read.
        runs: one row per run: `run_id`, `path`, `family` (`train/LanguageModel`),
            `variant` (short label of what distinguishes it, other than the seed and,
            for depth laws, the depth), `usual` (what labels leave out, as most
            variants have it; null with few variants), `state` (`unknown` without a
            status), `step`, `steps`, `seed`, `n_layers`, `diverged_step`, `error` (one
            line), `problems` (what could not be read), `seconds`, `data_fingerprint`, ...;
            `reference.<name>` [nats/token], `choice.<group>` and `config.<dotted>`.
        metrics: one row per run and logged step; losses in nats per token. A value
            that was not finite is null.
        probes: one row per run, step and quantity, `values` a list of float64.
    """

    directory: Path
    runs: pl.DataFrame
    metrics: pl.DataFrame
    probes: pl.DataFrame


def load(directory: str | Path, *, use_cache: bool = True) -> Runs:
    """Reads every run of a folder `outputs/<name>`, finished or not.

    Args:
        directory: the folder whose sub-folders are runs; others in it are ignored.
        use_cache: keep a Parquet copy under `directory/.cache` and use it while no
            file of any run has changed.

    Raises:
        AnalysisError: the folder does not exist or holds no run. Nothing is created.
    """
    directory = Path(directory)
    folders = run_folders(directory)
    key, age = cache.key_of(folders)
    names = ("runs", "metrics", "probes")
    tables = cache.read(directory, key, names) if use_cache else None
    if tables is None:
        raws = [read_run(folder) for folder in folders]
        tables = {
            "runs": frames.runs_frame(raws),
            "metrics": frames.metrics_frame(raws),
            "probes": frames.probes_frame(raws),
        }
        if use_cache and age > cache.YOUNG_SECONDS:
            cache.write(directory, key, tables)
    # After the cache: the folder may have been moved since.
    paths = [str(directory / run_id) for run_id in tables["runs"]["run_id"]]
    tables["runs"] = tables["runs"].with_columns(pl.Series("path", paths))
    return Runs(directory=directory, **tables)
