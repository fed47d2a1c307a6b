"""The setting ``twin``, registered as plugins register features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msprobe_core.hookspecs import hookimpl
from msprobe_core.protocols.recording import FeatureOffer

if TYPE_CHECKING:
    from msprobe_core.twin.follower import Follower


class _FollowerOffer:
    name = "twin"

    def make(self, host: Any) -> Follower | None:
        if host.config.twin is None:
            return None
        from msprobe_core.twin.follower import Follower  # imports polars, which other recordings do not need

        return Follower.make(host)


@hookimpl
def msprobe_register_features() -> Sequence[FeatureOffer]:
    """Offer the follower of this room."""
    return [_FollowerOffer()]
