"""What trackers can draw of a row of metrics.jsonl."""

import math
from collections.abc import Mapping
from typing import Any


def finite_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row but its step; one that is not finite is left out.

    Trackers take NaN in ways of their own: drawn, refused, or turned into text. A gap is
    the same in all, and the state of the run tells why.
    """
    return {
        key: float(value)
        for key, value in row.items()
        if key != "step"
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
    }
