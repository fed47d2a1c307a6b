"""Digests of parameters on their way from the trainer to the serving engine, computed one by one as they pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from msprobe.verl._files import Weight
from msprobe_core.plugin import Digest, Framework, TensorMeta
from msprobe_core.recording import without_wrappers

_MAX_BYTES = 256 << 20
"""Digests are fetched from a device once parameters of this size are pending, since it keeps copies until then."""


class WeightDigests:
    """Computes digests of parameters, and keeps nothing else of them."""

    def __init__(self, framework: Framework, placements: Mapping[str, str] | None = None) -> None:
        """Begin.

        Args:
            framework: Framework of the parameters.
            placements: How parameters are sharded in the trainer, by canonical name.
        """
        self._framework = framework
        self._placements = placements or {}
        self._reducer = framework.reducer()
        self._taken: list[tuple[str, TensorMeta, Digest]] = []
        self._waiting = 0

    def take(self, name: str, tensor: Any) -> None:
        """Take a digest of one parameter's current value."""
        digest = Digest()
        self._reducer.statistics(tensor, digest)
        self._reducer.checksum(tensor, digest)
        self._taken.append((without_wrappers(name), self._framework.describe(tensor), digest))
        if not self._reducer.is_complete:
            self._waiting += int(getattr(tensor, "nbytes", 0))
            if self._waiting >= _MAX_BYTES:
                self._reducer.collect()
                self._waiting = 0

    def finish(self) -> tuple[Weight, ...]:
        """Return the digests of all parameters, in the order of `take`."""
        self._reducer.collect()
        return tuple(self._weight(*taken) for taken in self._taken)

    def _weight(self, name: str, meta: TensorMeta, digest: Digest) -> Weight:
        stats = digest.stats
        return Weight(
            name=name,
            shape=meta.shape,
            dtype=meta.dtype.rpartition(".")[2],
            crc32=digest.checksum or "",
            l2=_finite(stats and stats.l2_norm),
            mean=_finite(stats and stats.mean),
            max=_finite(stats and stats.max),
            placement=self._placements.get(name),
        )


def tee(parameters: Iterable[Any], take: Callable[[str, Any], None]) -> Generator[Any, None, None]:
    """Yield parameters one by one, each after a call of ``take``, which must not raise."""
    for item in parameters:
        take(item[0], item[1])
        yield item


def placements_of(models: Iterable[Any]) -> dict[str, str]:
    """Return the placement of the models' sharded parameters, by canonical name; others are left out."""
    found: dict[str, str] = {}
    for model in models:
        named = getattr(model, "named_parameters", None)  # some chunks of a pipeline may not have it
        for name, parameter in () if named is None else named():
            placements = getattr(parameter, "placements", None)
            if placements is not None:
                found[without_wrappers(name)] = ", ".join(str(placement) for placement in placements)
    return found


def _finite(value: float | bool | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
