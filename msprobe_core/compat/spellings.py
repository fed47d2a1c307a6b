"""Words that mindstudio-probe has in the headers of its tables."""

from typing import Final

SIDES: Final = (("target", "NPU"), ("golden", "Bench"))

STATISTIC_TITLES: Final = {"max": "Max", "min": "Min", "mean": "Mean", "norm": "L2norm"}

RELATIVE_STATISTICS: Final = {"max": "Max", "min": "Min", "mean": "Mean", "norm": "Norm"}
"""Before ``RelativeErr``."""

METRICS: Final = {
    "cosine": "Cosine",
    "euclidean": "EucDist",
    "largest_abs": "MaxAbsErr",
    "largest_rel": "MaxRelativeErr",
    "within_1e3": "One Thousandth Err Ratio",
    "within_5e3": "Five Thousandths Err Ratio",
}
