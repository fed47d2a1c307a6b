"""Switch recording on in a process of verl."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from msprobe.verl._config import VerlConfig
from msprobe.verl._hooks import HOOK_POINTS, HookPoint, attach_all
from msprobe.verl._import_hooks import AfterImport, ImportWatch, after_import
from msprobe.verl._process_recording import ProcessRecording
from msprobe_core.rl import HookStatus


def switch_on(config: VerlConfig, others: Mapping[str, AfterImport] | None = None) -> ImportWatch:
    """Attach all hooks, now or as soon as their modules are imported.

    Args:
        config: What to record.
        others: Further actions after the import of a module, by its name.
    """
    recording = ProcessRecording.switch_on(config)
    by_module: dict[str, list[HookPoint]] = {}
    for point in HOOK_POINTS:
        by_module.setdefault(point.module, []).append(point)
        recording.note_hook(point.hook, point.target, HookStatus.WAITING, "it has not been imported")
    actions: dict[str, AfterImport] = {module: _attacher(recording, points) for module, points in by_module.items()}
    return after_import({**actions, **(others or {})})


def _attacher(recording: ProcessRecording, points: list[HookPoint]) -> AfterImport:
    def attach(module: ModuleType) -> None:
        attach_all(recording, points, module)
        if recording.role != "process":
            recording.save()

    return attach
