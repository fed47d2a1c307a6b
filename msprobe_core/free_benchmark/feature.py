"""The task ``free_benchmark`` in a training: samples calls, and repeats them perturbed when their step ends."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from msprobe_core.api_check.online.kinds import CallSample
from msprobe_core.api_check.online.online_check import MAX_ELEMENTS, OnlineCheck, replaying
from msprobe_core.api_check.online.step_budget import StepBudget
from msprobe_core.api_check.verdict import CallVerdict
from msprobe_core.capture.features.feature import Host
from msprobe_core.config.schema import FuzzStage, PertMode
from msprobe_core.errors import StoreError
from msprobe_core.free_benchmark.checker import ReactionChecker, device_of
from msprobe_core.free_benchmark.host_comparison import HostComparison
from msprobe_core.free_benchmark.published_rows import ROWS_FILE, append_rows, rows_of
from msprobe_core.model import Phase

_logger = logging.getLogger(__name__)


class FreeBenchmark(OnlineCheck):
    """Checks how sampled calls react to perturbations; the training sees its own results only."""

    _rank: int | None = None
    _writes_rows = True
    _on_host: Sequence[HostComparison] = ()

    @classmethod
    def make(cls, host: Host) -> FreeBenchmark:
        """Return the check for a session.

        Raises:
            PluginError: the framework's plugin does not replay calls.
        """
        framework, options = replaying(host), host.config.options
        is_changed = options.pert_mode is PertMode.EXCHANGE_VALUE  # MindSpore's name of it
        mode = PertMode.CHANGE_VALUE if is_changed else options.pert_mode
        checker = ReactionChecker(
            framework=framework, mode=mode, judge=options.judge, device=device_of(framework), max_elements=MAX_ELEMENTS
        )
        on_host: list[HostComparison] = []
        if mode is PertMode.TO_CPU and checker.device is not None:
            kind = checker.device.partition(":")[0]
            on_host = [HostComparison(host.config.directory, options, kind)]
            checker = replace(checker, on_host=on_host[0].take)
        phase = Phase.FORWARD if options.fuzz_stage is FuzzStage.FORWARD else Phase.BACKWARD
        sample = CallSample(
            options.list, (), options.sample, options.seed, framework.why_not_replayed, (phase,), options.max_sample
        )
        if not options.list:
            _logger.info("free_benchmark: all calls are perturbed; 'list' and 'scope' select some")
        made = cls(host, checker, StepBudget(options.budget), sample)
        made._on_host = on_host
        return made

    def begin_unit(self, step: int, rank: int | None) -> None:
        """See `Feature`."""
        super().begin_unit(step, rank)
        self._rank = rank
        for comparison in self._on_host:
            comparison.step, comparison.rank = step, rank
            if self._unit is not None:
                comparison.root = self._unit.parent.parent

    def note(self, verdict: CallVerdict, step: int) -> None:
        """Write the published rows of a call."""
        rows = rows_of(verdict, self._config.options.pert_mode, step, self._rank)
        if not rows or not self._writes_rows or self._unit is None:
            return
        path = self._unit.parent.parent / ROWS_FILE
        try:
            append_rows(path, rows)
        except StoreError as error:
            self._writes_rows = False
            _logger.warning("free_benchmark: no further rows are written: %s", error)
