"""Features that take part in a recording besides the recorder; a new one is added in `make_features` only.

Those that need rooms above this one are offered through the hook ``msprobe_register_features``.
"""

from __future__ import annotations

from msprobe_core.capture.features.feature import Feature, Host
from msprobe_core.capture.features.input_replay import InputLoader
from msprobe_core.capture.features.live_checks import LiveChecks
from msprobe_core.capture.features.manifest import ManifestRecording
from msprobe_core.capture.features.overflow import OverflowWatch
from msprobe_core.capture.features.perturbing import PerturbedWindows
from msprobe_core.capture.features.reference_check import BenchCheck
from msprobe_core.guard import checked
from msprobe_core.plugins import registry


def make_features(host: Host) -> list[Feature]:
    """Return the features that a configuration selects, in the order in which they attach.

    Raises:
        PluginError: the framework's plugin lacks a capability that one of them needs.
    """
    own = (
        ManifestRecording.make, PerturbedWindows.make, InputLoader.make, OverflowWatch.make, BenchCheck.make,
        LiveChecks.make,
    )  # fmt: skip
    made: list[Feature] = [feature for make in own if (feature := make(host)) is not None]
    for name, offer in registry().features().items():
        feature = offer.make(host)
        if feature is not None:
            made.append(checked(feature, Feature, registry().described("feature", name), "make"))
    return made
