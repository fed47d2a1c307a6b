"""The stages of a trainer's step, each recorded as a run of its own: for trainers that are not ours to edit.

A trainer of reinforcement learning generates, scores and updates within one step, with several models, in several
processes. Each stage has a directory that `msprobe compare` takes as it is; in it, `samples.json` says which sample
each row is, so that stages that order and cut their batches differently can be put beside each other.
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

from msprobe_core.capture.session import Session
from msprobe_core.config.stages import StageConfig
from msprobe_core.errors import MsprobeError, PluginError
from msprobe_core.plugins import registry
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.trainers import TrainerStages
from msprobe_core.store import layout
from msprobe_core.store.samples import VERSION, BatchLayout, CallPhase, MicroBatch, Row, StageSamples, save_samples
from msprobe_core.store.training_metrics import MicroLoss, StageUpdates, Update, save_updates

_logger = logging.getLogger(__name__)


def trainer_stages(name: str) -> TrainerStages:
    """Return the stages that a plugin has registered for a trainer.

    Raises:
        PluginError: none has.
    """
    offers = registry().trainer_stages()
    if name not in offers:
        known = ", ".join(sorted(offers)) or "none"
        raise PluginError(f"no plugin offers the stages of the trainer {name!r}; known: {known}; see `msprobe plugins`")
    return offers[name]


@dataclass
class _Step:
    """What one stage has recorded of one step so far."""

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
    """One pass through a stage; made by `StageRecorder.stage`. Nothing here raises, unless ``strict`` is set."""

    def __init__(self, recorder: StageRecorder, name: str) -> None:
        self._recorder = recorder
        self.name = name
        """The stage; may be corrected before ``begin``."""
        self._step: _Step | None = None
        self._has_begun = False

    @property
    def has_begun(self) -> bool:
        """Whether ``begin`` has been called, whatever came of it."""
        return self._has_begun

    @property
    def is_recording(self) -> bool:
        """Whether calls are recorded: this stage, step and rank are selected, and nothing has failed."""
        return self._step is not None

    def begin(
        self, models: Sequence[Any], *, step: int, policy_version: int | None = None, rank: int | None = None
    ) -> None:
        """Begin to record calls of ``models``, if the step is selected; later calls of it do nothing.

        Args:
            models: The models of this stage.
            step: The trainer's.
            policy_version: How often the weights have been updated, where that is another number.
            rank: In the place of the framework's: the number of the replica of a serving engine.
        """
        if self._has_begun:
            return
        self._has_begun = True
        with self._recorder.guard(f"{self.name}, step {step}"):
            found = self._recorder.step_of(self.name, step, rank)
            if found is not None:
                found.policy_version = policy_version
                found.session.start(list(models), rank_id=found.rank)
                self._step = found

    def mini_batch(self) -> None:
        """Say that a mini-batch begins: the micro-batches that follow are of it."""
        step = self._step
        if step is not None and step.num_micro:
            step.num_mini += 1
            step.num_micro = 0

    def micro_batch(self, rows: Sequence[Row], layout: BatchLayout, phase: CallPhase = CallPhase.TRAIN) -> None:
        """Say which samples the next call of the models holds."""
        step = self._step
        if step is None:
            return
        micro = MicroBatch(
            call=len(step.micro_batches), mini=step.num_mini, micro=step.num_micro, layout=layout, phase=phase,
            rows=tuple(rows),
        )  # fmt: skip
        step.micro_batches.append(micro)
        step.num_micro += 1

    def loss(self, value: float) -> None:
        """Take the loss of the micro-batch that has just been computed; a number that is on the host already."""
        step = self._step
        if step is not None and step.num_micro:
            step.losses.append(MicroLoss(mini=step.num_mini, micro=step.num_micro - 1, loss=float(value)))

    def update(self, grad_norm: float | None) -> None:
        """Take the norm of the gradients before clipping, which the optimizer has been given."""
        step = self._step
        if step is not None:
            norm = None if grad_norm is None else float(grad_norm)
            step.updates.append(Update(mini=step.num_mini, grad_norm=norm))

    def pause(self) -> None:
        """Record no calls until ``resume``: what follows is not of interest, or no call of the models."""
        if self._step is not None:
            with self._recorder.guard(self.name):
                self._step.session.set_aside()

    def resume(self, models: Sequence[Any]) -> None:
        """Record calls again."""
        if self._step is not None:
            with self._recorder.guard(self.name):
                self._step.session.start(list(models), rank_id=self._step.rank)

    def break_off(self, reason: str) -> None:
        """Take note that the stage is not done to its end; what was recorded of it then says so."""
        if self._step is not None:
            self._step.session.break_off(reason)

    def name_samples(self, name: Callable[[Row], Row]) -> None:
        """Replace rows whose identity was not known yet when they were recorded."""
        step = self._step
        if step is not None:
            step.micro_batches = [
                msgspec.structs.replace(micro, rows=tuple(name(row) for row in micro.rows))
                for micro in step.micro_batches
            ]

    def end(self) -> None:
        """Stop and write; when it returns everything is on disk."""
        step, self._step = self._step, None
        self._recorder.forget(self)
        if step is not None:
            with self._recorder.guard(f"{self.name}, step {step.number}"):
                self._recorder.write(step)


class StageRecorder:
    """Records the stages of one process: a session for each stage, which ends when the stage's next step begins."""

    def __init__(
        self, config: StageConfig, framework: Framework, *, on_failure: Callable[[str], None] | None = None
    ) -> None:
        """Prepare; nothing is created before a stage begins.

        Args:
            config: What to record.
            framework: What the models are of.
            on_failure: Is told of each kind of failure once, in a sentence.
        """
        self._config = config
        self._framework = framework
        self._on_failure = on_failure
        self._steps: dict[str, _Step] = {}
        self._current: Stage | None = None
        self._opened: list[Stage] = []
        self._failures: set[str] = set()
        atexit.register(self.close)

    @property
    def config(self) -> StageConfig:
        """What is recorded."""
        return self._config

    @property
    def current(self) -> Stage | None:
        """The stage that runs."""
        return self._current

    @contextmanager
    def stage(self, name: str) -> Generator[Stage | None, None, None]:
        """Give the stage for the block; ``None`` inside of another stage, whose part this is."""
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

    def open(self, name: str) -> Stage:
        """Return a stage that ends when ``end`` is called: for engines whose work has no block around it."""
        stage = Stage(self, name)
        self._opened.append(stage)
        return stage

    @contextmanager
    def guard(self, where: str) -> Generator[None, None, None]:
        """Keep a failure of ours from the training: it is logged once, and told to ``on_failure``."""
        try:
            yield
        except Exception as error:
            if self._config.strict:
                raise
            self.note_failure(where, error)

    def _take_failure(self, where: str, error: Exception) -> None:
        if self._config.strict:
            raise error
        self.note_failure(where, error)

    def note_failure(self, where: str, error: Exception) -> None:
        """Take note of something that could not be recorded; the first of a process is a warning, others are told."""
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
            except Exception as failure:  # noqa: BLE001  # what takes note of failures must not be one
                _logger.warning("msprobe: the failure cannot be noted: %s", failure)

    def step_of(self, name: str, number: int, rank: int | None) -> _Step | None:
        """Return what records a stage in a step, ``None`` if that is not selected."""
        rank = self._framework.rank() or 0 if rank is None else rank
        step = self._steps.get(name)
        if step is not None and (step.number, step.rank) == (number, rank):
            return step
        if step is not None:
            del self._steps[name]
            step.session.close()
        if not self._config.selects(name, number, rank):
            return None
        found = registry()
        session = Session(
            self._config.configs[name], self._framework, found.processors(), found.writers(), unwraps=True,
            on_failure=lambda _, error: self._take_failure(f"{name}, step {number}", error),
        )  # fmt: skip
        session.begin_at(number)
        self._steps[name] = step = _Step(name, number, rank, session)
        return step

    def write(self, step: _Step) -> None:
        """Write what a pass through a stage has recorded."""
        step.session.set_aside()
        step.session.conclude()  # processes of trainers are often killed when their work is done
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
        step.num_mini += bool(step.num_micro)  # another pass through the stage in this step has other mini-batches
        step.num_micro = 0

    def forget(self, stage: Stage) -> None:
        """Take note that an opened stage has ended."""
        if stage in self._opened:
            self._opened.remove(stage)

    def close(self) -> None:
        """Stop for good."""
        atexit.unregister(self.close)
        if self._current is not None:
            self._current.end()
        for stage in list(self._opened):
            stage.end()
        steps, self._steps = self._steps, {}
        for step in steps.values():
            with self.guard(step.stage):
                step.session.close()
