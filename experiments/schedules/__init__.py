"""Learning-rate schedules: a multiplier in [0, 1] of every group's peak rate.

Configs name them as experiments.schedules.WarmupCosine, and a run is found again by the
names in its config: this is their one address, whatever file defines them.
"""

from experiments.schedules.constant import Constant
from experiments.schedules.inverse_sqrt import InverseSqrt
from experiments.schedules.warmup_cosine import WarmupCosine
from experiments.schedules.warmup_linear import WarmupLinear
from experiments.schedules.wsd import WSD

__all__ = ["WSD", "Constant", "InverseSqrt", "WarmupCosine", "WarmupLinear"]
