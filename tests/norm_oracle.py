"""The NumPy function that a choice of conf/norm is tested against."""

import functools
import importlib
import inspect
from collections.abc import Callable

from blocks.oracle import norms, pointwise_norms

# In a YAML these say whether there is such a parameter, or how it is kept.
LEARNED = {"gain", "bias"}


def norm_oracle(choice: str, node: dict) -> Callable:
    """f(x, **parameters, **state), with the settings of the config node filled in.

    It is the function named like the choice, or else like the file of its class; one
    that makes a difference between training and evaluation takes `is_training` too.
    """
    path, _, name = node["_target_"].rpartition(".")
    file = path.rpartition(".")[2]
    found = [
        getattr(module, function)
        for function in (choice, file)
        for module in (norms, pointwise_norms)
        if hasattr(module, function)
    ]
    assert found, f"blocks/oracle has no normalizer {choice} or {file}"
    made = getattr(importlib.import_module(path), name)
    defaults = {
        k: p.default for k, p in inspect.signature(made.__init__).parameters.items()
    }
    accepted = inspect.signature(found[0]).parameters.keys() - LEARNED
    settings = {k: v for k, v in (defaults | node).items() if k in accepted}
    settings = {k: v for k, v in settings.items() if v is not inspect.Parameter.empty}
    return functools.partial(found[0], **settings)
