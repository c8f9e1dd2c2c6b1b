"""Keywords of a parent class, taken over by a subclass that adds a few of its own."""

import inspect
from collections.abc import Callable


def with_keywords_of(parent: Callable) -> Callable:
    """Gives a function that ends in **keywords the keyword-only parameters of `parent`.

    What reads signatures (configs are checked against them) then sees every keyword
    with its type and default, without a second list that falls behind the first.
    """

    def decorate(function: Callable) -> Callable:
        own = inspect.signature(function).parameters
        open_ended = [p for p in own.values() if p.kind is p.VAR_KEYWORD]
        assert open_ended, f"{function.__qualname__} does not end in **keywords"
        theirs = [
            p
            for name, p in inspect.signature(parent).parameters.items()
            if p.kind is p.KEYWORD_ONLY and name not in own
        ]
        mine = [p for p in own.values() if p.kind is not p.VAR_KEYWORD]
        order = sorted([*mine, *theirs], key=lambda p: p.kind)
        function.__signature__ = inspect.Signature(order)
        function.__annotations__ = {
            p.name: p.annotation for p in order if p.annotation is not p.empty
        }
        return function

    return decorate
