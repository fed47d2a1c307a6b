"""What an alarm opens: a window of recording in one of the next steps, on all ranks of the training.

A window is a session of its own, attached between two steps and removed after the update of its step, so it depends on
no `PrecisionDebugger` of the program; where there is one, the program records by itself, and the alarm says how.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.capture.debugger import controller_of, current_debugger
from msprobe_core.capture.measure import requested_measurement
from msprobe_core.capture.session import Session
from msprobe_core.config import Config
from msprobe_core.config.load import check_config, read_fields
from msprobe_core.errors import ConfigError
from msprobe_core.guard import kept
from msprobe_core.model import EndState, Level, Task
from msprobe_core.monitor.alarm_action import Answer
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.recording_requests import RecordingRequests
from msprobe_core.protocols.framework import Framework

_logger = logging.getLogger(__name__)

DIRECTORY = "alarm_dump"
_DEFAULTS = {"task": Task.STATISTICS.value, "level": Level.MIX.value}


def dump_config(plan: MonitorPlan) -> Config:
    """Return what windows record.

    Raises:
        ConfigError: the settings are wrong, or would change the training.
    """
    given, where = plan.extensions.dump, f"{plan.source}: 'msprobe': 'dump'"
    if isinstance(given, str):
        return window_config(read_fields(Path(given)), given, plan.output)
    return window_config(given, where, plan.output)


def window_config(fields: Mapping[str, Any], where: str, output: Path) -> Config:
    """Return what windows record.

    Args:
        fields: As of a file of `PrecisionDebugger`; level mix and statistics by default.
        where: What says so, for messages.
        output: Directory in which dumps are, unless the fields say another.

    Raises:
        ConfigError: the settings are wrong, or would change the training.
    """
    config = check_config({**_DEFAULTS, "dump_path": str(output / DIRECTORY), **fields}, where)
    if config.level not in (Level.L0, Level.L1, Level.MIX):
        raise ConfigError(f"{where}: 'level' is {config.level.value}, but an alarm records L0, L1 or mix")
    if config.task is Task.OVERFLOW_CHECK or config.perturb is not None or config.load is not None:
        raise ConfigError(f"{where}: an alarm only records; use the task statistics, tensor or structure alone")
    return config


class AlarmDump:
    """Opens and closes windows; nothing that it does raises."""

    def __init__(
        self,
        config: Config,
        framework: Framework,
        models: Sequence[Any],
        on_failure: Callable[[str, Exception], None],
        *,
        most: int,
        cooldown_s: float,
    ) -> None:
        """Begin without a window.

        Args:
            config: What windows record, see `window_config`.
            framework: Of the models.
            models: Those of this process.
            on_failure: Called with what could not be done, and why.
            most: How many windows there may be.
            cooldown_s: Seconds between two of them.
        """
        self._config = config
        self._framework = framework
        self._models = models
        self._on_failure = on_failure
        self._requests = RecordingRequests(
            self._config.directory,
            most=most,
            cooldown_s=cooldown_s,
            is_shared=framework.rank() is not None,
        )
        self._step = 0
        self._due: set[int] = set()
        self._session: Session | None = None
        self._is_watching_forks = False

    @property
    def directory(self) -> Path | None:
        """Directory of the step that is being recorded; ``None`` if none is."""
        return None if self._session is None else self._directory_of(self._step)

    def _directory_of(self, step: int) -> Path:
        return self._config.directory / f"step{step}"

    def ask(self) -> Answer | None:
        """Have one of the next steps recorded because of an alarm in the current one.

        Returns: ``None`` if none will be recorded.

        Raises:
            StoreError: it cannot be created.
        """
        if not self._models or _other_recording() is not None:
            return None
        if not self._due:
            step = self._requests.ask(self._step + 1)
            self._due |= set() if step is None else {step}
        if not self._due:
            return None
        number = min(self._due)
        path = self._directory_of(number)
        told = f"step {number} is recorded: msprobe locate {path} GOLDEN, with a dump of the same step as GOLDEN"
        return Answer(path, told)

    def begin_step(self, step: int) -> None:
        """Begin a step: open a window if it is due."""
        self._step = step
        try:
            self._follow(self._requests.poll())
            if step in self._due:
                self._open(step)
        except Exception as error:  # noqa: BLE001  # the training has nothing to do with it
            self._on_failure(f"the dump of step {step}", kept(error))
        self._due = {each for each in self._due if each > step}

    def _follow(self, asked: Sequence[int]) -> None:
        """Take over what other ranks have asked for."""
        for step in asked:
            if step < self._step:
                _logger.warning(
                    "another rank asked for a dump of step %d, which is over here: it lacks this rank", step
                )
            self._due.add(step)

    def _open(self, step: int) -> None:
        if _other_recording() is not None:
            return
        config = msgspec.structs.replace(self._config, step=(step,), rank=(), dump_enable=True)
        session = Session(config, self._framework)
        session.begin_at(step)
        session.start(self._models, is_list=len(self._models) > 1)
        self._session = session
        if not self._is_watching_forks and hasattr(os, "register_at_fork"):
            self._is_watching_forks = True
            os.register_at_fork(after_in_child=self._abandon)

    def end_step(self) -> None:
        """End a step: close the window."""
        self._close(EndState.COMPLETE)

    def close(self) -> None:
        """End: a window in the middle of a step is cut short."""
        self._close(EndState.STOPPED)

    def _close(self, state: EndState) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.close(state)
        except Exception as error:  # noqa: BLE001  # the training has nothing to do with it
            self._on_failure(f"the dump of step {self._step}", kept(error))
            return
        directory = self._directory_of(self._step)
        _logger.warning(
            "step %d was recorded after an alarm; where it differs from a dump of the same step of a healthy run: "
            "msprobe locate %s GOLDEN",
            self._step, directory,
        )  # fmt: skip

    def _abandon(self) -> None:
        """Leave a forked child, such as a worker of a data loader, without the window of its parent."""
        session, self._session = self._session, None
        if session is not None:
            session.abandon()


def _other_recording() -> str | None:
    """Return why the monitor leaves recording to the program, with the next step; ``None`` if it does not."""
    if requested_measurement() is not None:
        return "msprobe estimate measures this program"
    debugger = current_debugger()
    if debugger is None:
        return None
    watch = controller_of(debugger).settings.watch
    if watch is None:
        return "the program has a PrecisionDebugger: with dump_enable in its configuration, msprobe control switches it"
    return f"the program has a PrecisionDebugger: msprobe control {watch.path} on"


def next_step_without_dump(step: int, name: str) -> str:
    """Return what to do about an alarm that opened no window.

    Args:
        step: Of the alarm.
        name: Of the module, with ``.input`` or ``.output``, or of the parameter.
    """
    other = _other_recording()
    if other is not None:
        return other
    module = name.rpartition(".")[0] or name
    settings = {"level": "mix", "step": [step], "statistics": {"list": [module]}}
    return f"in a run that repeats this step, record it: PrecisionDebugger with {json.dumps(settings)}"
