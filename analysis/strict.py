"""Numbers that JSON does not have."""

import math


def strict(value):
    """NaN and infinity, which JSON does not have, become null."""
    if isinstance(value, dict):
        return {str(key): strict(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
