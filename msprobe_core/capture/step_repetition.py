"""Repetition of a training step: each run is recorded separately, and the training is not affected.

The step first runs unchanged. Then, for each repetition, all state that the step read or wrote is restored to what it
was before the step, and the step runs again with a change. At the end the state after the first run is restored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.capture.debugger import PrecisionDebugger, controller_of
from msprobe_core.capture.features.reference_check import CHECKSUM_MODES
from msprobe_core.capture.framework_choice import listed
from msprobe_core.capture.session import Session
from msprobe_core.config import Config
from msprobe_core.config.repetition import REPEATS_DIRECTORY, SHADOW_DIRECTORY, repetition_of
from msprobe_core.errors import ConfigError, NoModelError, PluginError, SessionError
from msprobe_core.model import Perturbation, PerturbMode, RoundingUnit, Task
from msprobe_core.protocols.capabilities import PerturbingFramework, TrainingState
from msprobe_core.protocols.framework import Framework
from msprobe_core.store import layout

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a repeated step.

    Attributes:
        number: 0 for the unchanged run, which comes first; repetitions count from 1.
    """

    number: int

    @property
    def is_golden(self) -> bool:
        """Whether this is the unchanged run: the one whose results the program may log and use."""
        return self.number == 0


@dataclass(frozen=True)
class Variant:
    """The change of one repetition.

    Attributes:
        config: Configuration of its recording, with its directory.
        around: Returns the context manager in which it runs.
    """

    config: Config
    around: Callable[[], AbstractContextManager[None]] = nullcontext


@contextmanager
def calibration(
    debugger: PrecisionDebugger,
    model: Any,
    optimizer: Any = None,
    repeats: int = 3,
    *,
    mode: str = PerturbMode.EVERYWHERE.value,
    dtype: str | None = None,
) -> Generator[Iterator[Run], None, None]:
    """Record a step and, if it is selected, repetitions of it with perturbed last digits.

    ::

        for batch in loader:
            with calibration(debugger, model, optimizer) as runs:
                for run in runs:
                    loss = train_one_step(batch)  # forward, backward, optimizer
                    if run.is_golden:
                        log(loss)
            debugger.step()

    The first run is the unchanged step. Repetitions are recorded to ``{dump_path}/calibration/run{k}/step{s}/rank{r}``.
    Before each of them, parameters, buffers, gradients, optimizer states and random states are restored to their values
    before the step; after the last one, to their values after the first run. The cost is ``repeats`` further steps, and
    two
    copies of that state in host memory. All ranks of a job have to do it together.

    Args:
        debugger: Started and stopped for each run by this function.
        model: The model, or several.
        optimizer: Everything with a state that the step changes: an optimizer, or a list of optimizers, schedulers,
            scalers, etc.
        repeats: Number of repetitions.
        mode: ``everywhere`` perturbs the result of each operation, ``inputs`` only the inputs of the model.
        dtype: Dtype whose rounding unit sets the size of the perturbation if it is coarser than the tensor's own, such
            as ``bfloat16``.

    Raises:
        ConfigError: an argument is wrong.
        SessionError: no debugger was created, or it is recording already.
    """
    perturbation = checked_perturbation(repeats, mode, dtype)

    def variants(config: Config) -> list[Variant]:
        return perturbed_variants(config, repeats, perturbation)

    with repeated(debugger, model, optimizer, variants, what="calibration") as runs:
        yield runs


@contextmanager
def repeats(
    debugger: PrecisionDebugger, model: Any, optimizer: Any = None, number: int = 2
) -> Generator[Iterator[Run], None, None]:
    """Record a step and, if it is selected, unchanged repetitions of it, whose results should be bitwise the same.

    Used like `calibration`; ``msprobe twin repeats`` then names the first call that gives two results for one input.
    Repetitions are recorded to ``{dump_path}/repeats/run{k}/step{s}/rank{r}``.

    Args:
        debugger: Started and stopped for each run by this function; its ``summary_mode`` is one of checksums.
        model: The model, or several.
        optimizer: Everything with a state that the step changes; see `calibration`.
        number: Number of repetitions.

    Raises:
        ConfigError: an argument is wrong, or values of the runs would not be recorded bit by bit.
        SessionError: no debugger was created, or it is recording already.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"repeats: 'number' is {number!r}, but must be an integer from 1")
    mode = controller_of(debugger).config.options.summary_mode
    if mode not in CHECKSUM_MODES:
        raise ConfigError(
            f"repeats: 'summary_mode' is {mode!r}, which does not show every difference; take one of "
            f"{', '.join(sorted(CHECKSUM_MODES))}"
        )

    def variants(config: Config) -> list[Variant]:
        places = (config.directory / REPEATS_DIRECTORY / f"run{k}" for k in range(1, number + 1))
        return [Variant(msgspec.structs.replace(config, dump_path=str(place), twin=None)) for place in places]

    with repeated(debugger, model, optimizer, variants, what="repeats") as runs:
        yield runs


def perturbed_variants(config: Config, repeats: int, perturbation: Perturbation) -> list[Variant]:
    """Return the variants for repetitions of the run of ``config``, each with another seed of the perturbation."""
    return [
        Variant(
            repetition_of(config, config.directory, msgspec.structs.replace(perturbation, seed=number), number)
        )
        for number in range(1, repeats + 1)
    ]  # fmt: skip


def shadow_variant(config: Config, around: Callable[[], AbstractContextManager[None]]) -> Variant:
    """Return a repetition that runs inside ``around`` and is recorded to a subdirectory of the run."""
    directory = str(config.directory / SHADOW_DIRECTORY)
    return Variant(msgspec.structs.replace(config, dump_path=directory, twin=None), around)


def checked_perturbation(repeats: object, mode: object, dtype: object) -> Perturbation:
    """Return the perturbation for the arguments of ``calibration``.

    Raises:
        ConfigError: one of them is wrong.
    """
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise ConfigError(f"calibration: 'repeats' is {repeats!r}, but must be an integer from 1")
    try:
        return msgspec.convert({"mode": mode, "dtype": dtype}, Perturbation)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"calibration: {error}; modes: {', '.join(PerturbMode)}, dtypes: {', '.join(RoundingUnit)}"
        ) from error


@contextmanager
def repeated(
    debugger: PrecisionDebugger,
    model: Any,
    others: Any,
    make_variants: Callable[[Config], Sequence[Variant]],
    *,
    what: str,
) -> Generator[Iterator[Run], None, None]:
    """Yield the runs of one step: the unchanged one and, if this step is recorded, one for each variant.

    Args:
        debugger: The debugger; it must not be recording.
        model: The model or models.
        others: Optimizer and other objects with a state that the step changes: one, a list, or ``None``.
        make_variants: Returns the repetitions for a configuration.
        what: Name of the feature in messages.

    Raises:
        SessionError: there is no such debugger, or it is recording already.
    """
    repetitions = _Repetitions(debugger, model, listed(others), make_variants, what)
    runs = repetitions.runs()
    try:
        with closing(runs):
            yield runs
    except Exception as error:
        if not repetitions.is_repeating:
            raise
        # The step itself is complete, so the training can continue after this error.
        _logger.warning("%s ends: a repetition has failed (%s: %s)", what, type(error).__name__, error)
    finally:
        repetitions.end()


class _Repetitions:
    def __init__(
        self,
        debugger: PrecisionDebugger,
        model: Any,
        others: Sequence[Any],
        make_variants: Callable[[Config], Sequence[Variant]],
        what: str,
    ) -> None:
        self._models = listed(model)
        if not self._models:
            raise NoModelError(f"{what} needs the model: call {what}(debugger, model)")
        self._debugger = debugger
        self._controller = controller_of(debugger)
        self._given = model
        self._others = others
        self._make_variants = make_variants
        self._what = what
        session = self._controller.opened(self._models[0])
        if isinstance(session, Session) and session.is_running:
            raise SessionError(f"{what} records by itself: use it between stop() and start(), not inside of a window")
        self._before: TrainingState | None = None
        self._after: TrainingState | None = None
        self.is_repeating = False

    def runs(self) -> Generator[Run, None, None]:
        debugger = self._debugger
        variants: Sequence[Variant] = []
        step = 0
        try:
            debugger.start(self._given)
            session = self._controller.opened()  # an edited configuration may have replaced it
            if isinstance(session, Session) and (variants := self._variants(session)):
                self._before = self._copy(session.framework, "before the step")
            step = session.step_number if isinstance(session, Session) else 0
            yield Run(0)
        finally:
            self._end_run(step)
        before, session = self._before, self._controller.opened()
        if before is None or not isinstance(session, Session):
            return
        session.set_aside()
        if complaint := before.complaint():
            _logger.warning("%s: %s; it runs once", self._what, complaint)
            return
        self._after = self._copy(session.framework, "after the step")
        if self._after is None:
            return
        self.is_repeating = True
        for number, variant in enumerate(variants, 1):
            before.restore()
            directory: Path | None = None
            try:
                with self._controller.diverted(variant.config, step), variant.around():
                    debugger.start(self._given)
                    try:
                        yield Run(number)
                    finally:
                        directory = debugger.directory
                    self._end_run(step)
                    directory = None
            finally:
                if directory is not None:  # a partial repetition would be mistaken for a complete one
                    layout.remove_dump(directory)

    def _end_run(self, first_step: int) -> None:
        """Stop. A final ``debugger.step()`` in the run has opened a next step, whose empty dump is discarded."""
        debugger = self._debugger
        debugger.stop()
        session = self._controller.opened()
        if isinstance(session, Session) and session.step_number != first_step:
            session.discard_if_empty()

    def _variants(self, session: Session) -> Sequence[Variant]:
        config = self._controller.config
        # Decide from settings that are equal on all ranks, not from the rank selection: all ranks repeat a step
        # together.
        if (
            not self._controller.can_repeat
            or not config.selects_step(session.step_number)
            or config.perturb is not None
        ):
            return []
        if config.task not in {Task.STATISTICS, Task.TENSOR} or config.load is not None:
            _logger.warning(
                "%s: runs with the task '%s'%s are not repeated", self._what, config.task.value,
                " and with 'load'" if config.load is not None else "",
            )  # fmt: skip
            return []
        return self._make_variants(config)

    def _copy(self, framework: Framework, when: str) -> TrainingState | None:
        try:
            if not isinstance(framework, PerturbingFramework):
                raise PluginError(f"the plugin of {framework.name} does not offer it")  # noqa: TRY301
            return framework.training_state(self._models, self._others)
        except Exception as error:  # noqa: BLE001  # raised by a framework, or by objects of the user
            _logger.warning(
                "%s: the state of the training %s cannot be copied (%s: %s); it runs once",
                self._what, when, type(error).__name__, error,
            )  # fmt: skip
            return None

    def end(self) -> None:
        """Restore the state after the first run."""
        if self._before is not None:
            self._before.complaint()  # ends its watch, also if the step itself has raised
        if self._after is not None:
            self._after.restore()
            self._after = None
