"""Launches runs and sweeps: composes, runs, reports.

python launch.py                                   one run, on real text
python launch.py -m norm=rmsnorm,derf seed=0,1,2   a sweep
python launch.py experiment=xiong                  a question with its protocol
"""

import gc
import os
import sys

import hydra
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float:
    from experiments.job import run_one

    return run_one(cfg)


def with_files(overrides: list[str]) -> list[str]:
    """`overrides` with a `model.from_...` replaced by what makes that model."""
    from experiments.explain import one_line
    from experiments.released import expanded

    try:
        return expanded(overrides)
    except Exception as error:
        sys.exit(one_line(error))


def may_set_mode(given) -> bool:
    """Whether hydra.mode may come from a config: an experiment's, or one of the user's.

    Hydra composes everything once only to see it, a fifth of a second at each start.
    """
    files = (given.config_name, given.config_path, given.config_dir)
    keys = [o.lstrip("+~") for o in given.overrides]
    return any(files) or any(k.startswith(("experiment", "hydra.")) for k in keys)


def cli() -> None:
    """Runs `main`; a mistake or a failed run ends in one line and a non-zero code."""
    # What is imported stays; looking through it for garbage takes a tenth of the start.
    gc.disable()  # until `experiments.job` is there
    # -m anywhere; argparse by itself takes no overrides after it if some came before.
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda a: a not in ("-m", "--multirun"))
    given, unknown = get_args_parser().parse_known_args()
    if unknown:
        sys.exit(
            f"error: {unknown[0]}: no such option; overrides are written key=value"
        )
    if any(o.startswith("model.from_") for o in given.overrides):
        options = [a for a in sys.argv[1:] if a not in given.overrides]
        sys.argv[1:] = [*options, *with_files(given.overrides)]
    if not may_set_mode(given):
        Hydra.get_mode = lambda *_, **__: None
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here instead of being printed
    if os.environ.get("BLOCKLAB_FULL_ERROR") == "1":
        main()  # tracebacks asked for
        return
    try:
        main()
    except KeyboardInterrupt as stopped:
        print("stopped; the same command continues", file=sys.stderr)
        sys.exit(
            getattr(stopped, "exit_code", 130)
        )  # not 1, as of a launch that failed
    except Exception as error:
        from experiments.explain import one_line

        sys.exit(one_line(error))


if __name__ == "__main__":
    cli()
