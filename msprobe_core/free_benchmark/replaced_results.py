"""``handler_type`` ``fix`` of the task ``free_benchmark``: the training goes on with the more precise results of calls.

This is the one setting that is meant to change a training. It answers whether a suspected call is to blame: if the loss
recovers with it fixed, it is. Nothing is recorded but which calls were fixed, and how often.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from msprobe_core.capture.attachments import Attachments
from msprobe_core.capture.features.feature import Feature, Host
from msprobe_core.capture.forward_window import ForwardWindow
from msprobe_core.config.schema import FuzzStage, PertMode
from msprobe_core.errors import ConfigError, PluginError, StoreError
from msprobe_core.free_benchmark.checker import device_of
from msprobe_core.model import Phase
from msprobe_core.protocols.capabilities import FixingFramework, ReplayingFramework
from msprobe_core.protocols.framework import NamedModel
from msprobe_core.store.atomic_file import write_json

FIXED_FILE = "free_benchmark_fixed_rank{rank}.json"

_logger = logging.getLogger(__name__)


class FixedResults(Feature):
    """Has results of calls replaced in all windows of the selected steps; see `msprobe_core.plugin.CallFixer`."""

    def __init__(self, host: Host, framework: FixingFramework) -> None:
        """Begin; the first window begins to change the training."""
        self._config = host.config
        self._framework = framework
        self._options = host.config.options
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._step = -1
        self._rank: int | None = None
        self._fixed: Counter[str] = Counter()
        self._refused: dict[str, str] = {}
        self._num_written = -1

    @classmethod
    def make(cls, host: Host) -> FixedResults:
        """Return the feature, after a warning.

        Raises:
            ConfigError: calls are to be computed on the host, where they run already.
            PluginError: the framework's plugin does not support it.
        """
        framework, options = host.framework, host.config.options
        if not isinstance(framework, FixingFramework):
            raise PluginError(f"'handler_type' 'fix' is not available for {framework.name}: it replaces nothing")
        on_host = options.pert_mode is PertMode.TO_CPU
        if on_host and (not isinstance(framework, ReplayingFramework) or device_of(framework) is None):
            raise ConfigError("'pert_mode' is 'to_cpu', but this training runs on the host already; take 'check'")
        _logger.warning(
            "free_benchmark: 'handler_type' is 'fix': THIS CHANGES THE TRAINING. %s of %s are replaced by what is "
            "computed %s; take 'check' for a training that is to stay as it is",
            "gradients" if options.fuzz_stage is FuzzStage.BACKWARD else "results",
            f"calls named {', '.join(options.list)}" if options.list else "all calls",
            "on the host" if on_host else "in float32 from inputs in half precision",
        )  # fmt: skip
        return cls(host, framework)

    # --- windows ----------------------------------------------------------------------------------------------

    def records_step(self, step: int) -> bool:  # noqa: ARG002
        """See `Feature`: nothing is recorded."""
        return False

    def begin_window(self, step: int, rank: int | None) -> bool:
        """See `Feature`; as many windows change the training as there are in selected steps, on all ranks."""
        if step != self._step:
            self._step = step
            self._numbers.clear()
        self._rank = rank
        return self._config.selects_step(step)

    def attach(
        self,
        attachments: Attachments,
        models: Sequence[NamedModel],
        forwards: ForwardWindow | None,  # noqa: ARG002
    ) -> None:
        """See `Feature`."""
        attachments.put_in_place(self._framework.fix_calls, self, models)

    def end_window(self, *, was_running: bool) -> None:  # noqa: ARG002
        """Write which calls were fixed, if there are new ones."""
        if len(self._fixed) + len(self._refused) != self._num_written:
            self._write()

    def close(self) -> None:
        """Write how often calls were fixed."""
        if self._num_written >= 0:
            self._write()

    def _write(self) -> None:
        self._num_written = len(self._fixed) + len(self._refused)
        path = self._config.directory / FIXED_FILE.format(rank="" if self._rank is None else self._rank)
        content = {"stage": self._options.fuzz_stage.value, "mode": self._options.pert_mode.value}
        try:
            write_json(path, {**content, "fixed": dict(self._fixed), "not_fixed": self._refused})
        except StoreError as error:
            _logger.warning("free_benchmark: which calls are fixed cannot be written: %s", error)

    # --- calls ------------------------------------------------------------------------------------------------

    @property
    def is_backward(self) -> bool:
        """See `msprobe_core.plugin.CallFixer`."""
        return self._options.fuzz_stage is FuzzStage.BACKWARD

    @property
    def on_host(self) -> bool:
        """See `msprobe_core.plugin.CallFixer`."""
        return self._options.pert_mode is PertMode.TO_CPU

    def wants(self, prefix: str, name: str) -> bool:
        """Whether ``list`` or ``scope`` selects the call."""
        number = self._numbers[prefix, name]
        self._numbers[prefix, name] += 1
        phase = Phase.BACKWARD if self.is_backward else Phase.FORWARD
        entry = f"{prefix}.{name}.{number}.{phase.value}"
        return not self._options.list or any(word in entry for word in self._options.list)

    def fixed(self, prefix: str, name: str) -> None:
        """Count the call, and log the first of each API."""
        api = f"{prefix}.{name}"
        self._fixed[api] += 1
        if self._fixed[api] == 1:
            _logger.warning("step %d: free_benchmark: %s is fixed from now on: its result is another", self._step, api)

    def refused(self, prefix: str, name: str, why: str) -> None:
        """Remember the first reason for each API."""
        self._refused.setdefault(f"{prefix}.{name}", why)

    def say(self, sentence: str) -> None:
        """Log it."""
        _logger.warning("free_benchmark: %s", sentence)
