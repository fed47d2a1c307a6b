"""Perturbation of last digits in the windows of a run: the setting ``perturb``."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe_core.capture.attachments import Attachments
from msprobe_core.capture.features.feature import Feature, Host
from msprobe_core.capture.forward_window import ForwardWindow
from msprobe_core.config import Config
from msprobe_core.config.requested_windows import requested_window
from msprobe_core.errors import PluginError
from msprobe_core.interception.perturbation import seed_of
from msprobe_core.model import Perturbation
from msprobe_core.protocols.capabilities import PerturbingFramework
from msprobe_core.protocols.framework import NamedModel


class PerturbedWindows(Feature):
    """Has the framework perturb each window of a selected step, with a separate seed."""

    def __init__(self, config: Config, framework: PerturbingFramework, perturbation: Perturbation) -> None:
        """Begin without a perturbation."""
        self._config = config
        self._framework = framework
        self._perturbation = perturbation
        self._step = 0
        self._num_windows = 0
        # A repetition that begins long before its windows is to arrive there as far off as rounding brings it.
        self._is_perturbed_between = requested_window() is not None

    @classmethod
    def make(cls, host: Host) -> PerturbedWindows | None:
        """Return the feature if the configuration selects it.

        Raises:
            PluginError: the framework's plugin does not support it.
        """
        if host.config.perturb is None:
            return None
        if not isinstance(host.framework, PerturbingFramework):
            raise PluginError(f"'perturb' is not available for {host.framework.name}: its plugin does not offer it")
        return cls(host.config, host.framework, host.config.perturb)

    def begin_window(self, step: int, rank: int | None) -> bool:  # noqa: ARG002
        """See `Feature`."""
        self._step = step
        # Unselected ranks are perturbed too: their results reach the recorded ranks.
        return self._is_perturbed_between or self._config.selects_step(step)

    def attach(
        self,
        attachments: Attachments,
        models: Sequence[NamedModel],
        forwards: ForwardWindow | None,  # noqa: ARG002
    ) -> None:
        """See `Feature`."""
        seed = seed_of(self._perturbation, self._step, self._num_windows)
        self._num_windows += 1
        attachments.put_in_place(self._framework.perturb, models, self._perturbation, seed)
