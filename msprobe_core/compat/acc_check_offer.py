"""The task ``acc_check``, registered as plugins register features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import Task
from msprobe_core.protocols.recording import FeatureOffer

if TYPE_CHECKING:
    from msprobe_core.compat.online_tables import TabulatedCheck


class _OnlineOffer:
    name = Task.ACC_CHECK.value

    def make(self, host: Any) -> TabulatedCheck | None:
        if host.config.task is not Task.ACC_CHECK:
            return None
        from msprobe_core.compat.online_tables import TabulatedCheck  # imports polars, which other tasks do not need

        return TabulatedCheck.make(host)


@hookimpl
def msprobe_register_features() -> Sequence[FeatureOffer]:
    """Offer the check, with the published tables."""
    return [_OnlineOffer()]
