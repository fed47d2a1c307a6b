"""Loaded by verl in each of its processes: puts hooks in place if recording is switched on, and does nothing otherwise.

verl 0.9 and later finds this module by its entry point in the group ``verl.plugins``; earlier ones import it where
``VERL_USE_EXTERNAL_MODULES=msprobe.verl.boot`` is set. Neither torch nor verl is imported here: hooks come behind the
import of the modules that they are for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from msprobe.verl._config import SWITCH, VerlConfig, load_verl_config
from msprobe.verl._files import HookStatus
from msprobe.verl._hooks import HOOK_POINTS, HookPoint, attach_all
from msprobe.verl._imports import AfterImport, ImportWatch, after_import
from msprobe.verl._probe import Probe
from msprobe_core.plugin import MsprobeError

_logger = logging.getLogger(__name__)

_PROFILER = "verl.utils.profiler.precision_debugger_profile"


def boot(environment: Mapping[str, str] = os.environ) -> ImportWatch | None:
    """Switch recording on if the environment says so; otherwise wait for verl's own ``precision_debugger`` alone.

    A file that is wrong is an error on the log, and nothing is recorded: the training goes on.
    """
    path = environment.get(SWITCH, "").strip()
    if not path:
        return after_import({_PROFILER: _take_over_profiler})
    try:
        config = load_verl_config(Path(path))
    except MsprobeError as error:
        _logger.error("msprobe: nothing is recorded: %s", error)  # noqa: TRY400  # the sentence says it all
        return None
    return switch_on(config)


def switch_on(config: VerlConfig) -> ImportWatch:
    """Put all hooks in place, now or as soon as their modules are imported."""
    probe = Probe.switch_on(config)
    by_module: dict[str, list[HookPoint]] = {}
    for point in HOOK_POINTS:
        by_module.setdefault(point.module, []).append(point)
        probe.note_hook(point.hook, point.target, HookStatus.WAITING, "nobody has imported it")
    actions: dict[str, AfterImport] = {module: _attacher(probe, points) for module, points in by_module.items()}
    actions[_PROFILER] = _take_over_profiler
    return after_import(actions)


def _attacher(probe: Probe, points: list[HookPoint]) -> AfterImport:
    def attach(module: ModuleType) -> None:
        attach_all(probe, points, module)
        if probe.role != "process":
            probe.save()

    return attach


def _take_over_profiler(module: ModuleType) -> None:
    from msprobe.verl._profiler import StageProfiler

    module.PrecisionDebuggerProfiler = StageProfiler  # type: ignore[attr-defined]


def inherited_environment() -> dict[str, str]:
    """Return what other processes of the job need to be recorded too."""
    path = os.environ.get(SWITCH, "").strip()
    return {SWITCH: str(Path(path).expanduser().absolute())} if path else {}


_watch = boot()
