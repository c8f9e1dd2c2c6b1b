"""Command line: `python -m analysis report outputs/<name>`."""

import argparse
import difflib
import sys

COMMANDS = {
    "report": "figures, tables and one HTML page from a folder of runs",
    "status": "where the runs of a folder stand, once or live",
    "interaction": "means, contrasts and verdict of two axes of a folder of runs",
    "catalogue": "one HTML page of all parts, from what task=catalogue wrote",
    "count": "bars of the parameters by part, from what task=count wrote",
    "prune": "removes failed runs, old checkpoints, runs of no sweep",
}


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 fine, 2 nothing to read, 3 by `--strict`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 0
    command = arguments[0]
    if not command.startswith("-") and command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(COMMANDS)}"
        return _refuse(f"unknown command {command!r}; {hint}")
    options = parser.parse_args(arguments)
    run = {
        "report": _report,
        "status": _status,
        "interaction": _interaction,
        "catalogue": _catalogue,
        "count": _count,
        "prune": _prune,
    }
    return run[options.command](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis", description="Reads run directories."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    report = commands.add_parser("report", help=COMMANDS["report"])
    report.add_argument(
        "directory", help="the folder that holds the runs, outputs/<name>"
    )
    report.add_argument(
        "--strict",
        action="store_true",
        help="exit 3 unless every run completed and every expectation was confirmed",
    )
    _add_status_options(commands.add_parser("status", help=COMMANDS["status"]))
    interaction = commands.add_parser("interaction", help=COMMANDS["interaction"])
    _add_interaction_options(interaction)
    catalogue = commands.add_parser("catalogue", help=COMMANDS["catalogue"])
    catalogue.add_argument(
        "directory", help="the folder of catalogue.json, outputs/catalogue"
    )
    counted = commands.add_parser("count", help=COMMANDS["count"])
    counted.add_argument("directory", help="the folder of count.json, outputs/<name>")
    _add_prune_options(commands.add_parser("prune", help=COMMANDS["prune"]))
    return parser


def _add_status_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", help="the folder that holds the runs, outputs/<name>"
    )
    parser.add_argument(
        "--all", action="store_true", help="every run, however many there are"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--watch", action="store_true", help="again and again until all runs are done"
    )
    form.add_argument("--json", action="store_true", help="all numbers, as JSON")


def _add_prune_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", help="the folder that holds the runs, outputs/<name>"
    )
    parser.add_argument(
        "--state",
        default="",
        metavar="STATE[,STATE]",
        help="whole runs that are failed, diverged, preempted, lost or completed",
    )
    parser.add_argument(
        "--unlisted", action="store_true", help="whole runs that are not in sweep.json"
    )
    parser.add_argument(
        "--checkpoints",
        action="store_true",
        help="checkpoints of completed runs; the runs stay",
    )
    parser.add_argument(
        "--yes", action="store_true", help="remove; without it you are asked"
    )


def _add_interaction_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", help="the folder that holds the runs, outputs/<name>"
    )
    parser.add_argument(
        "--rows",
        default="",
        metavar="KEY[=A,B]",
        help="choice or config key, its levels with the baseline first: norm=rmsnorm,derf"
        " (alphabetical where none are given); without it the runs' own tags.design",
    )
    parser.add_argument(
        "--columns", default="", metavar="KEY[=A,B]", help="the other axis: optimizer"
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only runs with this choice or config value; may be repeated",
    )
    parser.add_argument(
        "--tune-seeds",
        default="",
        metavar="N,N",
        help="seeds whose runs choose the learning rates and are in no mean",
    )
    parser.add_argument("--json", action="store_true", help="all numbers, as JSON")
    parser.add_argument("--figures", metavar="DIR", help="write the figures there")


def _status(options: argparse.Namespace) -> int:
    from analysis.errors import AnalysisError
    from analysis.status_table import run

    try:
        run(options)
    except (AnalysisError, OSError) as error:
        return _refuse(str(error))
    return 0


def _prune(options: argparse.Namespace) -> int:
    from analysis.errors import AnalysisError
    from analysis.prune import run

    try:
        run(options)
    except (AnalysisError, OSError) as error:
        return _refuse(str(error))
    return 0


def _interaction(options: argparse.Namespace) -> int:
    from analysis.errors import AnalysisError
    from analysis.interaction.command import run

    if bool(options.rows) != bool(options.columns):
        return _refuse("give both --rows and --columns, or neither")
    try:
        run(options)
    except (AnalysisError, OSError) as error:
        return _refuse(str(error))
    return 0


def _catalogue(options: argparse.Namespace) -> int:
    from analysis.catalogue import write_catalogue
    from analysis.errors import AnalysisError

    try:
        print(write_catalogue(options.directory))
    except AnalysisError as error:
        return _refuse(str(error))
    return 0


def _count(options: argparse.Namespace) -> int:
    from analysis.counts import write_count
    from analysis.errors import AnalysisError

    try:
        print(write_count(options.directory))
    except AnalysisError as error:
        return _refuse(str(error))
    return 0


def _report(options: argparse.Namespace) -> int:
    # Late: Polars and Matplotlib take longer to import than --help should.
    from rich.console import Console

    from analysis.errors import AnalysisError
    from analysis.report import write_report
    from analysis.summary import is_clean
    from analysis.terminal import show

    try:
        report = write_report(options.directory)
    except (AnalysisError, OSError) as error:  # OSError: a full disk, say
        return _refuse(str(error))
    show(report, Console())
    return 3 if options.strict and not is_clean(report.summary) else 0


def _refuse(message: str) -> int:
    print(f"analysis: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
