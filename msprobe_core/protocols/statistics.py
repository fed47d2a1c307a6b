"""What a plugin offers for a statistic of its own: a number of each tensor beside maximum, minimum, mean and norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from msprobe_core.errors import PluginError


class Merging(str, Enum):
    """How the values of the parts of a tensor, such as the shards of several ranks, give that of the whole."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    MEAN = "mean"
    """The mean, weighted by the number of elements, as of a share of elements."""


_TAKEN = frozenset(
    ("max", "min", "mean", "norm", "num_nan", "num_inf", "dtype", "shape", "requires_grad", "value", "checksum", "file",
     "name", "stack")
)  # fmt: skip
"""Titles of the columns that each side has anyway."""

_MAX_LENGTH = 40


def is_statistic_name(name: str) -> bool:
    """Whether a statistic may have this name."""
    is_word = name.isascii() and name.isidentifier() and name.islower() and len(name) <= _MAX_LENGTH
    return is_word and name not in _TAKEN and not name.startswith("fp8_")


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A number that is recorded of each tensor if the setting ``extra_statistics`` lists it.

    ``reduce`` gets a vector of at least one element, and its library, see `msprobe_core.fingerprint.Arrays`: NumPy for
    tensors on the host, and for copies of others where the plugin of their framework reduces copies; else the
    framework's own on the tensor's device. The elements are float32 or float64: narrower floats are widened without
    loss, integers and booleans are float64 (float32 on a device without it), complex numbers are their magnitudes. It
    returns a number, or an array without dimensions of the same library. It must not write to the elements, and not
    wait for a device: no ``float``, ``item`` or ``if`` of a result. With operators and methods that all libraries share
    it works in every framework: ``abs(values).max()``, ``(values == 0).sum() / len(values)``.

    Attributes:
        name: At most 40 lower-case letters, digits and ``_``, and none of the core's own columns. It is a value of the
            setting, a field of the dump, and the title of columns.
        summary: What it is, in one line.
        reduce: See above. One that raises, or returns something else, is dropped for the rest of the session, with a
            warning; the training goes on.
        merge: How values of parts are merged; ``None`` if that of the whole does not follow from them.
        limit: Largest difference of two values that passes, 0 for equal ones; ``None`` if it is shown, and no verdict
            depends on it.
        is_relative: Whether the difference is divided by golden's magnitude.
    """

    name: str
    summary: str
    reduce: Callable[[Any, Any], Any]
    merge: Merging | None = None
    limit: float | None = None
    is_relative: bool = True

    def __post_init__(self) -> None:
        """Check what every use relies on.

        Raises:
            PluginError: the name or the limit cannot be used.
        """
        if not is_statistic_name(self.name):
            raise PluginError(
                f"a statistic cannot be named {self.name!r}: give at most {_MAX_LENGTH} lower-case letters, digits and "
                "'_', and no name of another column"
            )
        if self.limit is not None and not self.limit >= 0:
            raise PluginError(f"the limit of the statistic {self.name!r} is {self.limit!r}; give a number from 0")
