"""The task ``free_benchmark``, registered as plugins register features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import Task
from msprobe_core.protocols.recording import FeatureOffer

if TYPE_CHECKING:
    from msprobe_core.capture.features.feature import Feature


class _Offer:
    name = Task.FREE_BENCHMARK.value

    def make(self, host: Any) -> Feature | None:
        if host.config.task is not Task.FREE_BENCHMARK:
            return None
        from msprobe_core.config.schema import HandlerType  # imports YAML, which the command line does not need

        if host.config.options.handler_type is HandlerType.FIX:
            from msprobe_core.free_benchmark.replaced_results import FixedResults

            return FixedResults.make(host)
        from msprobe_core.free_benchmark.feature import FreeBenchmark  # imports polars, which other tasks do not need

        return FreeBenchmark.make(host)


@hookimpl
def msprobe_register_features() -> Sequence[FeatureOffer]:
    """Offer the task."""
    return [_Offer()]
