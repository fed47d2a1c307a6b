"""What to monitor, and when: one plan, whichever configuration it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from msprobe_core.monitoring.quantities import Op, Quantity

DEFAULT_OUTPUT = "./monitor_output"

FEATURES = (Quantity.LINEAR, Quantity.ATTENTION, Quantity.ROUTER_WEIGHT, Quantity.ROUTER_LOGIT)
"""Quantities that ``l2_targets`` names layers of."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """An alarm: see `msprobe_core.monitor.alarms`.

    Attributes:
        rule_name: Which one.
        threshold: Of ``AnomalyTurbulence``, the relative rise above the running mean; of ``AnomalyNan``, a magnitude.
        false_alarms: Of ``AnomalyUnusual``, the probability that a healthy training has any; ``None`` is 0.001.
    """

    rule_name: Literal["AnomalyTurbulence", "AnomalyNan", "AnomalyUnusual"]
    threshold: float | None = None
    false_alarms: float | None = None


class Communication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to collect of communication.

    Attributes:
        enable: Collect it.
        cc_codeline: Parts of ``file[line]`` of callers, one of which a call must have; empty for all calls.
        cc_pre_hook: Also collect what an operation is given, before it runs.
        cc_log_only: Only list the callers.
    """

    enable: bool = False
    cc_codeline: tuple[str, ...] = ()
    cc_pre_hook: bool = False
    cc_log_only: bool = False


class Extensions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that the established monitor does not have: the field ``msprobe`` of a configuration.

    Attributes:
        writers: Names of what receives the values; see the hook ``msprobe_register_monitor_writers``.
        sketch: Of which gradients to keep sketches, for ``msprobe monitor reduction-check``.
        dump: What windows after an alarm record: settings of a `PrecisionDebugger`, or the path of a file with them.
        max_windows: How many windows alarms open in a training.
        cooldown_s: Seconds between two of them.
        max_overhead: Largest share of the training's time; intervals are widened to keep it. ``None`` for no bound.
        alarm_action: What an alarm does besides being logged: ``dump`` opens a window of recording in the next step,
            ``flight`` has the program's flight recorders write the last steps.
        async_write: Whether writers run in a thread of their own.
    """

    writers: tuple[str, ...] = ("csv",)
    sketch: Literal["none", "grad"] = "none"
    max_overhead: float | None = None
    alarm_action: Literal["none", "dump", "flight"] = "none"
    async_write: bool = False
    dump: Mapping[str, Any] | str = {}
    max_windows: int = 3
    cooldown_s: float = 300.0


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What to collect of one quantity, where a configuration says so for each.

    Attributes:
        targets: Parts of names, one of which a name must have; empty for all.
        ops: Operations, in the order of the files' columns.
    """

    targets: tuple[str, ...] = ()
    ops: tuple[Op, ...] = ()

    def selects(self, name: str) -> bool:
        """Whether to collect a module or parameter of this name."""
        return not self.targets or any(part in name for part in self.targets)


class MonitorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a monitor collects.

    Attributes:
        targets: Names of parameters (as prefixes) and modules (whole), with or without ``stage:`` in front; empty for
            all.
        module_ranks: Ranks that collect; empty for all.
        ops: Operations, in the order of the files' columns.
        eps: Magnitude below which an element counts as zero, for the operation ``zeros``.
        ndigits: Decimals of numbers in files, 0 to 20.
        step_count_per_record: Steps in one file.
        start_step: First step to collect.
        step_interval: Distance between steps to collect.
        collect_times: Number of steps to collect.
        xy_distribution: Collect what modules are given and make, and its gradients.
        forward_only: Of these, the values alone.
        backward_only: Of these, the gradients alone.
        all_xy: Collect all modules although ``targets`` names some.
        wg_distribution: Collect gradients of parameters as each rank accumulates them, and as the optimizer uses them.
        monitor_mbs_grad: Collect what each micro-batch leaves of the former, instead of the last alone.
        mv_distribution: Collect the optimizer's moments.
        param_distribution: Collect parameters before and after the update.
        ur_distribution: Collect sizes of updates, relative to the parameters too.
        mg_direction: Collect the share of elements in which gradient and momentum agree in sign.
        cc_distribution: What to collect of communication.
        recording_l2_features: Collect features of layers that statistics of one tensor do not show.
        l2_targets: Of which modules, by the name of the feature.
        sa_order: Order of the dimensions of queries and keys, of ``s`` sequence, ``b`` batch, ``h`` head, ``d`` width.
        stack_info: Write one call stack of each module.
        print_struct: Write the structure of the modules.
        append_output: Beginning and end of the time in which the directories to continue began; empty for new ones.
        dynamic_on: Collect; with the variable ``DYNAMIC_MONITOR``, editing this field switches a running training.
        squash_name: Leave out what wrappers add to names.
        rules: Alarms, the first of which that holds is reported.
        writes_alarms: Whether alarms go to ``anomaly.json``.
        extensions: Settings that the established monitor does not have.
        output: Directory of the results.
        source: File of the configuration; ``None`` without one.
        selections: Of the quantities that have targets and operations of their own.
        stop_step: The first step after those to collect; ``None`` for no end.
        named_by: What names the directory of a rank's results: the time at which the training began, or the rank.
        single_stage: Stage of the only model of a training.
    """

    targets: tuple[str, ...] = ()
    module_ranks: tuple[int, ...] = ()
    ops: tuple[Op, ...] = (Op.NORM,)
    eps: float = 1e-8
    ndigits: int = 6
    step_count_per_record: int = 1
    start_step: int = 0
    step_interval: int = 1
    collect_times: int = 100_000_000
    xy_distribution: bool = False
    forward_only: bool = False
    backward_only: bool = False
    all_xy: bool = False
    wg_distribution: bool = False
    monitor_mbs_grad: bool = False
    mv_distribution: bool = False
    param_distribution: bool = False
    ur_distribution: bool = False
    mg_direction: bool = False
    cc_distribution: Communication = Communication()
    recording_l2_features: bool = False
    l2_targets: Mapping[str, tuple[str, ...]] = {}
    sa_order: Literal["s,b,h,d", "b,s,h,d"] = "s,b,h,d"
    stack_info: bool = False
    print_struct: bool = False
    append_output: tuple[str, ...] = ()
    dynamic_on: bool = False
    squash_name: bool = False
    rules: tuple[Rule, ...] = ()
    writes_alarms: bool = False
    extensions: Extensions = Extensions()
    output: Path = Path(DEFAULT_OUTPUT)
    source: Path | None = None
    selections: Mapping[Quantity, Selection] = {}
    stop_step: int | None = None
    named_by: Literal["time", "rank"] = "time"
    single_stage: int = 0

    @property
    def quantities(self) -> frozenset[Quantity]:
        """What is collected."""
        chosen: list[Quantity] = []
        if self.xy_distribution:
            chosen += [] if self.backward_only else [Quantity.ACTIVATION]
            chosen += [] if self.forward_only else [Quantity.ACTIVATION_GRADIENT]
        if self.wg_distribution or self.extensions.sketch == "grad":
            chosen += [Quantity.GRADIENT_UNREDUCED, Quantity.GRADIENT_REDUCED]
        if self.mv_distribution:
            chosen += [Quantity.EXP_AVG, Quantity.EXP_AVG_SQ]
        if self.param_distribution:
            chosen += [Quantity.PARAM_ORIGIN, Quantity.PARAM_UPDATED]
        chosen += [Quantity.UPDATE] if self.ur_distribution else []
        chosen += [Quantity.DIRECTION] if self.mg_direction else []
        if self.recording_l2_features:
            chosen += [quantity for quantity in FEATURES if quantity.value in self.l2_targets]
        if self.cc_distribution.enable and not self.cc_distribution.cc_log_only:
            chosen.append(Quantity.COMMUNICATION)
        return frozenset(chosen)

    def ops_of(self, quantity: Quantity) -> tuple[Op, ...]:
        """Return the operations of a quantity, in the order of the files' columns."""
        selection = self.selections.get(quantity)
        return self.ops if selection is None else selection.ops

    def selects(self, quantity: Quantity, name: str) -> bool:
        """Whether a quantity's own targets, if it has any, select a name."""
        selection = self.selections.get(quantity)
        return selection is None or selection.selects(name)

    def selects_rank(self, rank: int) -> bool:
        """Whether to collect on a rank."""
        return not self.module_ranks or rank in self.module_ranks
