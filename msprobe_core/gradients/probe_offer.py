"""The task ``grad_probe``, registered as plugins register features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import Task
from msprobe_core.protocols.recording import FeatureOffer

if TYPE_CHECKING:
    from msprobe_core.gradients.probe import GradientProbe


class _ProbeOffer:
    name = Task.GRAD_PROBE.value

    def make(self, host: Any) -> GradientProbe | None:
        if host.config.task is not Task.GRAD_PROBE:
            return None
        from msprobe_core.gradients.probe import GradientProbe  # other tasks do not need it

        return GradientProbe(host)


@hookimpl
def msprobe_register_features() -> Sequence[FeatureOffer]:
    """Offer the probe of this room."""
    return [_ProbeOffer()]
