"""The framework that replays the calls of a dump."""

from __future__ import annotations

from msprobe_core.errors import BrokenPluginError, MissingFrameworkError, MissingLibraryError, PluginError
from msprobe_core.plugins import registry
from msprobe_core.protocols.capabilities import ReplayingFramework


def replaying_framework(name: str) -> ReplayingFramework:
    """Return the framework of dumps that name it so.

    Raises:
        PluginError: no plugin here stands for it, it cannot be imported, or it does not replay calls.
    """
    offer = registry().frameworks().get(name)
    if offer is None:
        raise MissingFrameworkError(
            f"the dumps are of {name!r}, and no plugin here stands for it; see `msprobe plugins`"
        )
    try:
        framework = offer.load()
    except BrokenPluginError as error:
        if not isinstance(missing := error.__cause__, ImportError):
            raise
        raise MissingLibraryError(
            f"{name} cannot be imported here ({missing}), and calls are replayed with it"
        ) from missing
    if not isinstance(framework, ReplayingFramework):
        raise PluginError(f"the plugin for {name} does not replay calls")
    return framework
