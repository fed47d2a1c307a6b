"""Replacement for verl's ``precision_debugger``: its configuration keys switch recording on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, cast

from msprobe.verl._config import check_verl_config
from msprobe.verl._hooks import switch_on
from msprobe.verl._process_recording import ProcessRecording
from msprobe_core.plugin import ConfigError
from msprobe_core.recording import read_fields
from msprobe_core.rl import RLStage

_NOT_OURS = ("dump_path", "step", "rank")
"""Fields of a debugger's file that verl's keys replace: `save_path`, `steps` and `ranks` of `global_profiler`."""

_DEFAULT_OUT = "outputs/profile"


class StageProfiler:
    """Has the interface of verl's ``PrecisionDebuggerProfiler``; our hooks record while it is started.

    ``global_profiler.global_tool_config.precision_debugger.{config_path,stages,strict}`` keep their meaning, and
    ``config_path`` may also be a file of this plugin. Steps are those of ``global_profiler.steps``.
    """

    def __init__(self, precision_cfg: Any, rank: int | None = None, save_path: str | None = None) -> None:  # noqa: ARG002
        settings = _settings(precision_cfg)
        recording = ProcessRecording.current()
        if recording is None:
            config = check_verl_config(_fields(settings, save_path or _DEFAULT_OUT), "precision_debugger")
            switch_on(config)
            recording = ProcessRecording.current()
            assert recording is not None
            recording.is_open = False
        self._recording = recording

    def start(self, **kwargs: Any) -> bool:
        """Begin a step that is to be recorded."""
        step = kwargs.get("profile_step", kwargs.get("global_step"))
        self._recording.trainer_step = None if step is None else int(step)
        self._recording.is_open = True
        return True

    def stop(self, **_: Any) -> None:
        """End the step."""
        self._recording.is_open = False

    def annotate(self, **_: Any) -> Callable[[Any], Any]:
        """Return a decorator that changes nothing: hooks find the stages without it."""
        return lambda function: function


def _settings(given: Any) -> Mapping[str, Any]:
    if given is None:
        return {}
    if is_dataclass(given) and not isinstance(given, type):
        return asdict(given)
    return dict(cast("Mapping[str, Any]", given))


def _fields(settings: Mapping[str, Any], save_path: str) -> dict[str, Any]:
    """Convert verl's keys to the fields of our configuration.

    Raises:
        ConfigError: the file cannot be read, or a stage is unknown.
    """
    path = settings.get("config_path")
    fields = read_fields(Path(str(path))) if path else {}
    fields = {name: value for name, value in fields.items() if name not in _NOT_OURS}
    known = {stage.value for stage in RLStage}
    stages = settings.get("stages")
    if stages:
        unknown = [stage for stage in stages if stage not in known]
        if unknown:
            raise ConfigError(f"precision_debugger: 'stages' has {unknown[0]!r}; known: {', '.join(sorted(known))}")
        fields["stages"] = list(stages)
    fields.setdefault("out", save_path)
    fields.setdefault("strict", bool(settings.get("strict")))
    return fields
