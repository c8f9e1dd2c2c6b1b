"""Launches runs and sweeps: composes, runs, reports.

python launch.py                                   one run, on real text
python launch.py -m norm=rmsnorm,derf seed=0,1,2   a sweep
python launch.py experiment=xiong                  a question with its protocol
"""

import os
import sys

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float:
    from experiments.job import run_one

    return run_one(cfg)


def cli() -> None:
    """Runs `main`; a mistake or a failed run ends in one line and a non-zero code."""
    # -m anywhere; argparse by itself takes no overrides after it if some came before.
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda a: a not in ("-m", "--multirun"))
    _, unknown = get_args_parser().parse_known_args()
    if unknown:
        sys.exit(
            f"error: {unknown[0]}: no such option; overrides are written key=value"
        )
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here instead of being printed
    if os.environ.get("BLOCKLAB_FULL_ERROR") == "1":
        main()  # tracebacks asked for
        return
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; the same command continues")
    except Exception as error:
        from experiments.explain import one_line

        sys.exit(one_line(error))


if __name__ == "__main__":
    cli()
