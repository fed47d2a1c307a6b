"""Stages of a trainer's step, each recorded as a separate run, for trainers whose source the user does not edit.

A trainer of reinforcement learning generates, scores and updates within one step, with several models, in several
processes. Each stage has a directory that `msprobe compare` accepts. Its `samples.json` identifies the sample of each
row, so that stages with different orders and batch sizes can be aligned.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.capture.manifests import Manifests
from msprobe_core.capture.session import Session
from msprobe_core.config.stages import StageConfig
from msprobe_core.errors import MsprobeError, PluginError
from msprobe_core.guard import kept
from msprobe_core.plugins import registry
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.trainers import TrainerStages
from msprobe_core.store import layout
from msprobe_core.store.samples import (
    VERSION,
    BatchLayout,
    CallPhase,
    MicroBatch,
    Row,
    StageSamples,
    readable,
    save_samples,
)
from msprobe_core.store.training_metrics import MicroLoss, StageUpdates, Update, save_updates

_logger = logging.getLogger(__name__)


def trainer_stages(name: str) -> TrainerStages:
    """Return the stages that a plugin registered for a trainer.

    Raises:
        PluginError: no plugin did.
    """
    offers = registry().trainer_stages()
    if name not in offers:
        known = ", ".join(sorted(offers)) or "none"
        raise PluginError(f"no plugin offers the stages of the trainer {name!r}; known: {known}; see `msprobe plugins`")
    return offers[name]


@dataclass
class _Step:
    """Everything recorded of one stage in one step so far."""

    stage: str
    number: int
    rank: int
    session: Session
    policy_version: int | None = None
    num_mini: int = 0
    num_micro: int = 0
    micro_batches: list[MicroBatch] = field(default_factory=list[MicroBatch])
    losses: list[MicroLoss] = field(default_factory=list[MicroLoss])
    updates: list[Update] = field(default_factory=list[Update])


class Stage:
    """One pass through a stage; created by `StageRecorder.stage`. Its methods never raise, unless ``strict`` is set."""

    def __init__(self, recorder: StageRecorder, name: str, *, has_fixed_parameters: bool = False) -> None:
        self._recorder = recorder
        self._has_fixed_parameters = has_fixed_parameters
        self.name = name
        """Name of the stage; may be changed before ``begin``."""
        self._step: _Step | None = None
        self._has_begun = False

    @property
    def has_begun(self) -> bool:
        """Whether ``begin`` has been called, even if nothing is recorded."""
        return self._has_begun

    @property
    def is_recording(self) -> bool:
        """Whether calls are recorded: this stage, step and rank are selected, and no error occurred."""
        return self._step is not None

    def begin(
        self, models: Sequence[Any], *, step: int, policy_version: int | None = None, rank: int | None = None
    ) -> None:
        """Begin to record calls of ``models``, if the step is selected; further calls have no effect.

        Args:
            models: The models of this stage.
            step: Step number of the trainer.
            policy_version: Number of weight updates, if it differs from ``step``.
            rank: Overrides the framework's rank: the replica number of a serving engine.
        """
        if self._has_begun:
            return
        self._has_begun = True
        with self._recorder.guard(f"{self.name}, step {step}"):
            found = self._recorder.step_of(self.name, step, rank)
            if found is not None:
                found.policy_version = policy_version
                found.session.fix_parameters(are_fixed=self._has_fixed_parameters)
                found.session.start(list(models), rank_id=found.rank)
                self._step = found

    def mini_batch(self) -> None:
        """Begin a mini-batch; the following micro-batches belong to it."""
        step = self._step
        if step is not None and step.num_micro:
            step.num_mini += 1
            step.num_micro = 0

    def micro_batch(self, rows: Sequence[Row], layout: BatchLayout, phase: CallPhase = CallPhase.TRAIN) -> None:
        """Set the samples of the models' next call."""
        step = self._step
        if step is None:
            return
        call = len(step.micro_batches)
        micro = MicroBatch(
            call=call, mini=step.num_mini, micro=step.num_micro, layout=BatchLayout.PADDED, phase=CallPhase.TRAIN
        )
        with self._recorder.guard(f"{self.name}, samples of micro-batch {call}"):
            micro = readable(msgspec.structs.replace(micro, layout=layout, phase=phase, rows=tuple(rows)))
        step.session.begin_micro_step(call)
        step.micro_batches.append(micro)  # without samples too: those that follow belong to calls with later indices
        step.num_micro += 1

    def loss(self, value: float) -> None:
        """Record the loss of the last micro-batch; ``value`` has to be on the host already."""
        step = self._step
        if step is not None and step.num_micro:
            with self._recorder.guard(f"{self.name}, loss"):
                step.losses.append(MicroLoss(mini=step.num_mini, micro=step.num_micro - 1, loss=float(value)))

    def update(self, grad_norm: float | None) -> None:
        """Record the gradient norm before clipping that the optimizer was given."""
        step = self._step
        if step is not None:
            with self._recorder.guard(f"{self.name}, update"):
                norm = None if grad_norm is None else float(grad_norm)
                step.updates.append(Update(mini=step.num_mini, grad_norm=norm))

    def pause(self) -> None:
        """Record no calls until ``resume``, for example calls that do not belong to the stage."""
        if self._step is not None:
            with self._recorder.guard(self.name):
                self._step.session.set_aside()

    def resume(self, models: Sequence[Any]) -> None:
        """Record calls again after ``pause``."""
        if self._step is not None:
            with self._recorder.guard(self.name):
                self._step.session.start(list(models), rank_id=self._step.rank)

    def break_off(self, reason: str) -> None:
        """Record that the stage was interrupted; the end mark of its dump contains the reason."""
        if self._step is not None:
            self._step.session.break_off(reason)

    def name_samples(self, name: Callable[[Row], Row]) -> None:
        """Replace rows whose samples were unknown when they were recorded."""
        step = self._step
        if step is None:
            return
        with self._recorder.guard(f"{self.name}, names of samples"):
            step.micro_batches = [
                readable(msgspec.structs.replace(micro, rows=tuple(name(row) for row in micro.rows)))
                for micro in step.micro_batches
            ]

    def end(self) -> None:
        """Stop and write; when this returns, everything is on disk."""
        step, self._step = self._step, None
        self._recorder.forget(self)
        if step is not None:
            with self._recorder.guard(f"{self.name}, step {step.number}"):
                self._recorder.write(step)


class StageRecorder:
    """Records the stages of one process, with a session per stage that ends when the stage's next step begins."""

    def __init__(
        self, config: StageConfig, framework: Framework, *, on_failure: Callable[[str], None] | None = None
    ) -> None:
        """Prepare; nothing is created before a stage begins.

        Args:
            config: The configuration.
            framework: Framework of the models.
            on_failure: Called once for each kind of failure, with a sentence.
        """
        self._config = config
        self._framework = framework
        self._on_failure = on_failure
        self.manifests = Manifests()
        """The manifests of the stages."""
        self._steps: dict[str, _Step] = {}
        self._current: Stage | None = None
        self._opened: list[Stage] = []
        self._failures: set[str] = set()
        atexit.register(self.close)

    @property
    def config(self) -> StageConfig:
        """The configuration."""
        return self._config

    @property
    def current(self) -> Stage | None:
        """The running stage."""
        return self._current

    @contextmanager
    def stage(self, name: str) -> Generator[Stage | None, None, None]:
        """Yield the stage for the block; ``None`` inside another stage, which then includes the block."""
        if self._current is not None:
            yield None
            return
        stage = self._current = Stage(self, name)
        try:
            yield stage
        except BaseException as error:
            stage.break_off(f"{type(error).__name__} has left the stage")
            raise
        finally:
            self._current = None
            stage.end()

    def open(self, name: str, *, has_fixed_parameters: bool = False) -> Stage:
        """Return a stage that ends when its ``end`` is called: for engines without a block around their work.

        Args:
            name: Name of the stage.
            has_fixed_parameters: Whether no parameter changes while it runs: then those of a module are recorded with
                its first call only, not with each token that is decoded.
        """
        stage = Stage(self, name, has_fixed_parameters=has_fixed_parameters)
        self._opened.append(stage)
        return stage

    @contextmanager
    def guard(self, where: str) -> Generator[None, None, None]:
        """Keep an error of ours from the training: it is logged once and passed to ``on_failure``."""
        try:
            yield
        except BaseException as caught:
            error = kept(caught)
            if self._config.strict:
                raise
            self.note_failure(where, error)

    def _take_failure(self, where: str, error: Exception) -> None:
        if self._config.strict:
            raise error
        self.note_failure(where, error)

    def note_failure(self, where: str, error: Exception) -> None:
        """Log a failure, each kind once: the first of a process as a warning, others as info."""
        kind = str(error) if isinstance(error, MsprobeError) else f"{type(error).__name__}: {error}"
        if kind in self._failures:
            return
        self._failures.add(kind)
        message = f"{where}: not recorded, the training goes on: {kind}"
        log = _logger.warning if len(self._failures) == 1 else _logger.info
        log("msprobe: %s", message)
        if self._on_failure is not None:
            try:
                self._on_failure(message)
            except BaseException as failure:  # noqa: BLE001  # reporting a failure must not raise
                _logger.warning("msprobe: the failure cannot be noted: %s", kept(failure))

    def step_of(self, name: str, number: int, rank: int | None) -> _Step | None:
        """Return the recording of a stage in a step, ``None`` if it is not selected."""
        rank = self._framework.rank() or 0 if rank is None else rank
        step = self._steps.get(name)
        if step is not None and (step.number, step.rank) == (number, rank):
            return step
        if step is not None:
            del self._steps[name]
            step.session.close()
        if not self._config.selects(name, number, rank):
            self._config.refuse_unknown(name)
            return None
        session = Session(
            self._config.configs[name], self._framework, manifests=self.manifests, unwraps=True,
            on_failure=lambda _, error: self._take_failure(f"{name}, step {number}", error),
        )  # fmt: skip
        session.begin_at(number)
        self._steps[name] = step = _Step(name, number, rank, session)
        return step

    def write(self, step: _Step) -> None:
        """Write everything that a pass through a stage has recorded."""
        step.session.set_aside()
        step.session.conclude()  # trainers often kill their processes at the end
        directory = step.session.directory or layout.unit_directory(
            Path(self._config.out / step.stage), step.number, step.rank
        )
        layout.make_unit_directory(directory)
        samples = StageSamples(
            version=VERSION, stage=step.stage, step=step.number, rank=step.rank, policy_version=step.policy_version,
            micro_batches=tuple(step.micro_batches),
        )  # fmt: skip
        save_samples(directory, samples)
        if step.updates or step.losses:
            save_updates(directory, StageUpdates(updates=tuple(step.updates), losses=tuple(step.losses)))
        step.num_mini += bool(step.num_micro)  # another pass through the stage in this step has new mini-batches
        step.num_micro = 0

    def forget(self, stage: Stage) -> None:
        """Remove an opened stage that has ended."""
        if stage in self._opened:
            self._opened.remove(stage)

    def close(self) -> None:
        """Stop permanently."""
        atexit.unregister(self.close)
        if self._current is not None:
            self._current.end()
        for stage in list(self._opened):
            stage.end()
        steps, self._steps = self._steps, {}
        for step in steps.values():
            with self.guard(step.stage):
                step.session.close()
