"""The recording in one process of a job: its configuration, recorder, hooks and errors."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

from msprobe.verl._config import VerlConfig
from msprobe_core.plugin import Framework, PluginError, registry
from msprobe_core.recording import Stage as OpenStage
from msprobe_core.recording import StageRecorder
from msprobe_core.rl import Capability, HookStatus, ProcessInfo, RunInfo, Sampling, save_process, save_run

_logger = logging.getLogger(__name__)

STEP_KEY = "msprobe_step"
"""Key of the trainer's step in the data for workers: verl's own ``global_steps`` is the policy's version."""

_PACKAGES = ("verl", "torch", "ray", "transformers", "tensordict", "vllm", "sglang", "megatron-core", "torch-npu",
             "msprobe-core", "msprobe-verl")  # fmt: skip


class ProcessRecording:
    """The recording in this process; each recording process has one."""

    _instance: ClassVar[ProcessRecording | None] = None

    def __init__(self, config: VerlConfig, framework: Framework | None = None) -> None:
        """Prepare; nothing is created until a stage begins.

        Args:
            config: What to record.
            framework: Framework of the models; if not given, PyTorch, loaded when first needed.
        """
        self.config = config
        self._framework = framework
        self.role = "process"
        self.rank: int | None = None
        self.is_open = True
        """Whether stages are recorded now; verl's profiler closes it between the steps that it selects."""
        self.trainer_step: int | None = None
        """The trainer's step, where something other than the data determines it."""
        self.workers: dict[str, Any] = {}
        """Configurations of the workers in this process, by role."""
        self._capabilities: dict[tuple[str, str], Capability] = {}
        self._errors: list[str] = []
        self._recorder: StageRecorder | None = None
        self._steps_seen: dict[str, int] = {}
        self._has_described = False

    @classmethod
    def current(cls) -> ProcessRecording | None:
        """Return the recording of this process; ``None`` if there is none."""
        return cls._instance

    @classmethod
    def switch_on(cls, config: VerlConfig, framework: Framework | None = None) -> ProcessRecording:
        """Return the recording of this process; create it from these arguments if there is none."""
        if cls._instance is None:
            cls._instance = cls(config, framework)
        return cls._instance

    @classmethod
    def switch_off(cls) -> None:
        """Stop recording in this process."""
        recording, cls._instance = cls._instance, None
        if recording is not None and recording._recorder is not None:
            recording._recorder.close()

    @property
    def out(self) -> Path:
        """Directory of the run."""
        return self.config.stages.out

    @property
    def recorder(self) -> StageRecorder:
        """The recorder; created when first needed."""
        if self._recorder is None:
            self._recorder = StageRecorder(self.config.stages, self.framework, on_failure=self._note_failure)
        return self._recorder

    @property
    def framework(self) -> Framework:
        """Framework of the models.

        Raises:
            PluginError: the PyTorch plugin is not installed.
        """
        if self._framework is not None:
            return self._framework
        offers = registry().frameworks()
        if "pytorch" not in offers:
            raise PluginError("the plugin msprobe-pytorch is missing; `msprobe plugins` says why")
        self._framework = offers["pytorch"].load()
        return self._framework

    @contextmanager
    def stage(self, name: str) -> Generator[OpenStage | None, None, None]:
        """Open a stage for the block; yields ``None`` inside another stage, or while nothing is recorded."""
        recorder: StageRecorder | None = None
        if self.is_open:
            with self.guard(name):
                recorder = self.recorder
        if recorder is None:
            yield None
            return
        with recorder.stage(name) as stage:
            yield stage

    @property
    def open_stage(self) -> OpenStage | None:
        """The current stage."""
        return None if self._recorder is None else self._recorder.current

    @contextmanager
    def guard(self, where: str) -> Generator[None, None, None]:
        """Keep our own failures from the training; see `StageRecorder.guard`."""
        try:
            yield
        except Exception as error:
            if self.config.stages.strict:
                raise
            if self._recorder is not None:
                self._recorder.note_failure(where, error)
                return
            message = f"{where}: not recorded, the training goes on: {type(error).__name__}: {error}"
            if not self._errors:
                _logger.warning("msprobe: %s", message)
            if message not in self._errors:
                self._note_failure(message)

    def act_as(self, role: str, rank: int | None = None) -> None:
        """Set the role and rank of this process."""
        if (self.role, self.rank) != (role, rank):
            self.role, self.rank = role, rank
            self.save()

    def note_worker(self, worker: Any) -> None:
        """Remember the configuration of a worker, whose stage begins."""
        config = getattr(worker, "config", None)
        if config is not None:
            role = getattr(worker, "role", None) or getattr(config, "model_type", None) or type(worker).__name__
            self.workers.setdefault(str(role), config)

    def next_step(self, stage: str) -> int:
        """Return a step number, counted from 1 for each stage, for use when nothing determines the step."""
        self._steps_seen[stage] = self._steps_seen.get(stage, 0) + 1
        return self._steps_seen[stage]

    def note_hook(self, hook: str, target: str, status: HookStatus, reason: str | None = None) -> None:
        """Record the status of a hook."""
        self._capabilities[hook, target] = Capability(hook=hook, target=target, status=status, reason=reason)
        if status is HookStatus.FAILED:
            _logger.warning("msprobe: the hook '%s' at %s is not in place: %s", hook, target, reason)

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """All hooks of this process."""
        return tuple(self._capabilities.values())

    def save(self) -> None:
        """Write the record of this process."""
        try:
            info = ProcessInfo(
                host=platform.node() or "host", pid=os.getpid(), role=self.role, rank=self.rank,
                capabilities=self.capabilities, errors=tuple(self._errors),
            )  # fmt: skip
            save_process(self.out, info)
        except Exception as error:  # noqa: BLE001  # for example a full disk; the training continues
            _logger.warning("msprobe: %s", error)

    def describe_run(self, config: Mapping[str, Any], sampling: Sampling) -> None:
        """Write ``run.json``, once."""
        if not self._has_described:
            self._has_described = True
            info = RunInfo(
                versions=installed_versions(_PACKAGES),
                config=_plain(config),
                sampling=sampling,
                stages=self.config.stages.stages,
            )
            save_run(self.out, info)

    def _note_failure(self, message: str) -> None:
        self._errors.append(message)
        self.save()


def _plain(value: Any) -> Any:
    """Convert a value of the trainer's configuration to JSON's types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in cast("list[Any]", value)]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed, by name."""
    return {name: version for name in distributions if (version := _version_of(name)) is not None}


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
