"""Calls that choose elements of a tensor: which of equal ones they name is not determined, and devices differ in it.

``sort`` without ``stable`` on a GPU names equal elements in another order than on the host. Both are right: what they
name is the same, and they name nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe_core.model import Argument, Phase, ReplayTensor
from msprobe_core.replay.recorded import RecordedCall

_PLACES_ALONE = frozenset({"argsort", "argmax", "argmin"})
_VALUES_AND_PLACES = frozenset({"sort", "topk", "max", "min", "kthvalue", "median", "nanmedian"})
"""Functions that return elements of their first tensor and, second, their places; elements may be integers too."""


def _names_places(call: RecordedCall, path: str) -> bool:
    """Whether the output at a path has places in the first tensor of a call."""
    function = call.site.path.rpartition(".")[2]
    return function in _PLACES_ALONE or (function in _VALUES_AND_PLACES and path.rpartition(".")[2] == "1")


def chosen_from(call: RecordedCall) -> Mapping[str, NDArray[Any]]:
    """Return the tensor whose elements an output names, by path of the output; empty if a stable order is asked for."""
    stable = call.kwargs.get("stable")
    if call.site.phase is not Phase.FORWARD or (isinstance(stable, Argument) and stable.value):
        return {}
    given = [*call.args[:1], *(call.kwargs[name] for name in ("input", "self") if name in call.kwargs)]
    if not given or not isinstance(given[0], ReplayTensor):
        return {}
    return {path: given[0].values for path in call.outputs if _names_places(call, path)}


def name_the_same(places: NDArray[Any], others: NDArray[Any], source: NDArray[Any]) -> bool:
    """Whether integer results name equal elements of a tensor along one of its dimensions, each element once.

    Args:
        places: Results of the call.
        others: Those of another call of it, of the same shape.
        source: What both have chosen from.
    """
    if places.dtype.kind not in "iu" or places.shape != others.shape or not source.ndim:
        return False
    if places.ndim == 0:
        source = np.ravel(source)
    return any(_name_the_same_along(places, others, source, dim) for dim in range(source.ndim))


def _name_the_same_along(places: NDArray[Any], others: NDArray[Any], source: NDArray[Any], dim: int) -> bool:
    if places.ndim == source.ndim - 1:
        places, others = np.expand_dims(places, dim), np.expand_dims(others, dim)
    rest = [source.shape[:dim] + source.shape[dim + 1 :], places.shape[:dim] + places.shape[dim + 1 :]]
    if rest[0] != rest[1] or not all(_are_places(each, source.shape[dim]) for each in (places, others)):
        return False
    named = [np.take_along_axis(source, each, dim) for each in (places, others)]
    ordered = np.sort(places, axis=dim)
    return np.array_equal(*named, equal_nan=source.dtype.kind in "fc") and not np.any(np.diff(ordered, axis=dim) == 0)


def _are_places(values: NDArray[Any], size: int) -> bool:
    return not values.size or (int(values.min()) >= 0 and int(values.max()) < size)
