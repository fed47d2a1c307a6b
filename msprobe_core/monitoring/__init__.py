"""Files of training monitors: statistics of a training over steps, by rank, quantity and name."""

from msprobe_core.monitoring.divergence import DIVERGED, Divergence, first_divergence, first_non_finite, num_shared
from msprobe_core.monitoring.files import find_monitored, is_monitored, read_monitored
from msprobe_core.monitoring.history import Monitored, Place, Quantity

__all__ = [
    "DIVERGED",
    "Divergence",
    "Monitored",
    "Place",
    "Quantity",
    "find_monitored",
    "first_divergence",
    "first_non_finite",
    "is_monitored",
    "num_shared",
    "read_monitored",
]
