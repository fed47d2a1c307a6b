"""What replays of recorded calls ask of the framework. All imports are late: a training needs none of them."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe_core.plugin import CallScript, LinearKind, ReplayCall, Replayed, Site


class Replaying:
    """See `msprobe_core.plugin.ReplayingFramework` and what its methods name."""

    def why_not_replayed(self, site: Site) -> str | None:
        """Return why calls of this API are not replayed; see `msprobe_core.plugin.ReplayingFramework`."""
        from msprobe.pytorch._replay import why_not_replayed

        return why_not_replayed(site)

    def replay(self, call: ReplayCall, model: object | None = None, device: str | None = None) -> Replayed:
        """Replay a recorded call on the CPU or on another device."""
        from msprobe.pytorch._replay import replay

        return replay(call, model, device)

    def replay_devices(self) -> Sequence[str]:
        """Return the devices present besides the CPU; see `msprobe_core.plugin.DeviceReplayingFramework`."""
        from msprobe.pytorch._replay_devices import devices

        return devices()

    def linear_in(self, site: Site) -> LinearKind | None:
        """Return how a function is linear; see `msprobe_core.plugin.LinearFramework`."""
        from msprobe.pytorch._replay_table import linear_in

        return linear_in(site.path)

    def has_reference(self, site: Site) -> bool:
        """Return whether a function has an independent formula; see `msprobe_core.plugin.ReferringFramework`."""
        from msprobe.pytorch._reference_formulas import find_reference

        return find_reference(site.prefix, site.path) is not None

    def script(self, call: ReplayCall) -> CallScript:
        """Write a recorded call as source code; see `msprobe_core.plugin.ScriptingFramework`."""
        from msprobe.pytorch._script import script_of

        return script_of(call)
