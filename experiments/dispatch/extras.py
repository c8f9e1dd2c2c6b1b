"""Packages that only some ways of running need."""

import importlib.util


def needed(package: str, choice: str, extra: str = "cluster") -> None:
    """Refuses a choice whose package is not installed.

    Raises:
        ValueError: names the extra that brings it.
    """
    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"{choice} needs the package {package}: pip install 'blocklab[{extra}]'"
        )
