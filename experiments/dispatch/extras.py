"""Packages that only some ways of running need."""

import importlib.util

from experiments.errors import ConfigError


def check_package(dispatch) -> None:
    """Refuses a way of running whose package is not installed.

    Raises:
        ConfigError: names the extra that brings it.
    """
    package = dispatch.package
    if package is not None and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"runtime.dispatch: {type(dispatch).__name__} needs the package {package}: "
            "pip install 'blocklab[cluster]'"
        )
