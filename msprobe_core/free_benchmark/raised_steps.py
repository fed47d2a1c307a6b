"""Runs one step of a training again and again, each time with other modules raised; the training stays as it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from msprobe_core.api_check.online.held_dump import HeldTensor
from msprobe_core.capture.framework_choice import find_framework
from msprobe_core.capture.step_repetition import listed
from msprobe_core.capture.window import Model
from msprobe_core.errors import NoModelError, PluginError, SessionError
from msprobe_core.fingerprint.sketch import SIZE
from msprobe_core.guard import described
from msprobe_core.model import OUTSIDE, Digest, ReferenceFormat
from msprobe_core.protocols.capabilities import (
    MonitoringFramework,
    PerturbingFramework,
    RaisingFramework,
    TrainingState,
    UpdatingFramework,
    WatchingFramework,
)
from msprobe_core.protocols.framework import Framework
from msprobe_core.store.tensor_values import DTYPES

if TYPE_CHECKING:
    from typing_extensions import Self

Array: TypeAlias = NDArray[Any]

LOSS, GRAD_NORM, GRADIENTS = "loss", "grad_norm", "gradients"

_HALVES = frozenset({"bfloat16", "float16"})
_MAX_ELEMENTS = 1 << 26
_MAX_REFUSED = 16


@dataclass(frozen=True)
class TrainingStep:
    """One step of a training that can be run again.

    Attributes:
        run: Runs it, and returns what it computes: a loss, or several values by name.
        models: The models, by name; the name of a single one may be empty.
        others: Optimizers, schedulers, scalers: everything else with a state that the step changes.
    """

    run: Callable[[], Any]
    models: Mapping[str, Any]
    others: Sequence[Any]


@dataclass(frozen=True)
class Value:
    """A value of a step.

    Attributes:
        numbers: Its elements, float64.
        resolution: Norm of half a last digit of each element.
    """

    numbers: Array
    resolution: float


class Trials:
    """The runs of one step; a context, at whose end the training is in the state after the first, unchanged run."""

    def __init__(self, step: TrainingStep, target: str | None, reference: ReferenceFormat | None = None) -> None:
        """Prepare.

        Args:
            step: The step.
            target: Name of its value that counts; by default the gradients if there are any, else the loss.
            reference: Format of raised modules; by default float32 for a step in half precision, else float64.

        Raises:
            PluginError: the framework's plugin cannot do this.
            SessionError: there is no model, or its modules cannot be raised.
        """
        if not step.models:
            raise NoModelError("bisect needs the model of the step")
        framework = find_framework(None, next(iter(step.models.values())))
        for kind in (RaisingFramework, PerturbingFramework, MonitoringFramework, UpdatingFramework, WatchingFramework):
            if not isinstance(framework, kind):
                raise PluginError(f"bisect is not available for {framework.name}: its plugin does not offer it")
        self._framework: Any = framework
        self._step = step
        self._given_target = target
        self.target = target or GRADIENTS
        self.loss: float | None = None
        self._models = [Model(name, model) for name, model in step.models.items()]
        self._raised = cast("RaisingFramework", framework).raised_modules(self._models)
        self._given_reference = reference
        self._before: TrainingState | None = None
        self._after: TrainingState | None = None
        self._inputs: list[_Inputs] = []
        self._last_failure = ""
        self.refused: dict[str, str] = {}
        self.num_steps = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            self._before.complaint()  # ends its watch
        if self._after is not None:
            self._after.restore()

    @property
    def reference(self) -> ReferenceFormat:
        """Format of raised modules."""
        if self._given_reference is not None:
            return self._given_reference
        formats = self._raised.formats
        return ReferenceFormat.FP32 if any(half in formats for half in _HALVES) else ReferenceFormat.FP64

    @property
    def modules(self) -> list[str]:
        """Paths of what can be raised, in the order of their first call; known after `unchanged`."""
        return [path for path in (*(each.path for each in self._raised.modules), OUTSIDE) if path not in self.refused]

    @property
    def labels(self) -> dict[str, str]:
        """What each is called in results."""
        found = {each.path: f"{each.path or 'model'} ({each.type_name})" for each in self._raised.modules}
        return found | {OUTSIDE: "code outside of modules"}

    def unchanged(self) -> Value:
        """Run the step as it is; the first run.

        Raises:
            SessionError: the state of the training cannot be copied, or the step changes other things.
        """
        self._before = self._copied("before the step")
        value = self._run(self._raised.watched(), watches_inputs=True)
        if complaint := self._before.complaint():
            raise SessionError(
                f"{complaint}; make it a variable of the file that has the step, or return model, optimizer and step"
            )
        if not self._raised.modules:
            raise SessionError("the step calls none of the models that were found")
        self._after = self._copied("after the step")
        return value

    def again(self) -> Value:
        """Run the unchanged step again.

        Raises:
            SessionError: it takes other data.
        """
        self._restore()
        value = self._run(self._raised.raised((), self.reference), watches_inputs=True)
        first, second = (inputs.hashes for inputs in self._inputs)
        # A framework may mark what it differentiates by, so that a value is hashed in one of the two runs only.
        if len(first) != len(second) or any(
            None not in pair and pair[0] != pair[1] for pair in zip(first, second, strict=True)
        ):
            raise SessionError(
                "the step takes other data each time it is run; let it train on one batch, which is taken before"
            )
        return value

    def with_raised(self, paths: Container[str]) -> Value | None:
        """Run the step with some modules raised; ``None`` if it fails so, see `refused`."""
        self._restore()
        try:
            return self._run(self._raised.raised(paths, self.reference))
        except MemoryError:
            raise
        except Exception as error:
            if self._raised.failed is None:
                raise SessionError(
                    f"the step fails with modules raised to {self.reference.value} ({described(error)})"
                ) from error
            self._last_failure = described(error)
            return None

    def with_all_raised(self) -> Value:
        """Run the step with everything raised, but for the modules with which that fails.

        Raises:
            SessionError: too many of them fail.
        """
        while len(self.refused) < _MAX_REFUSED:
            value = self.with_raised(frozenset(self.modules))
            if value is not None:
                return value
            assert self._raised.failed is not None
            self.refused[self._raised.failed] = self._last_failure
        first, why = next(iter(self.refused.items()))
        raise SessionError(f"too many modules cannot be raised; the first is {self.labels[first]} ({why})")

    def _copied(self, when: str) -> TrainingState:
        framework: PerturbingFramework = self._framework
        try:
            return framework.training_state(list(self._step.models.values()), self._step.others)
        except Exception as error:
            raise SessionError(
                f"the state of the training {when} cannot be copied, so the step cannot be repeated "
                f"({described(error)})"
            ) from error

    def _restore(self) -> None:
        assert self._before is not None
        self._before.restore()

    def _run(self, around: AbstractContextManager[None], *, watches_inputs: bool = False) -> Value:
        """Run the step, and return the value that counts; `loss` is that of this run."""
        self.num_steps += 1
        gradients = _Gradients(self._framework, self._models)
        with ExitStack() as stack:
            if watches_inputs:
                self._inputs.append(stack.enter_context(_watched_inputs(self._framework, self._models)))
            if self.target in (GRAD_NORM, GRADIENTS):
                stack.enter_context(gradients.watched())
            with around:
                given = self._step.run()
        values = values_of(given, self._framework)
        loss = values.get(LOSS)
        self.loss = None if loss is None or loss.numbers.size != 1 else float(loss.numbers[0])
        if self._given_target is None and self.num_steps == 1 and not gradients.are_there:
            self.target = LOSS
        if self.target in values:
            return values[self.target]
        if self.target in (GRAD_NORM, GRADIENTS):
            if self.num_steps == 1 and not gradients.are_there:
                raise SessionError(
                    f"the step has no gradients, so there is no {self.target!r}; let it call its optimizer, or name "
                    "another target"
                )
            return gradients.norm if self.target == GRAD_NORM else gradients.sketches
        names = ", ".join(values) or "no number or tensor"
        raise SessionError(f"the step returns {names}, but no {self.target!r}; return it, or name another target")


# --- values -----------------------------------------------------------------------------------------------------------


def values_of(given: Any, framework: Framework) -> dict[str, Value]:
    """Return what a step returns, by name: a single value and a tuple's first are the loss, as is ``.loss``."""
    if isinstance(given, Mapping):
        items = cast("Mapping[Any, Any]", given)
        found = {str(name): value_of(item, framework) for name, item in items.items()}
        return {name: value for name, value in found.items() if value is not None}
    first = next(iter(listed(given)), None)
    value = value_of(getattr(first, LOSS, first), framework)
    return {} if value is None else {LOSS: value}


def value_of(item: Any, framework: Framework) -> Value | None:
    """Return a number or a tensor; ``None`` for anything else."""
    if isinstance(item, int | float) and not isinstance(item, bool):
        numbers = np.array([float(item)])
        # A float32 that was made a float of Python has the digits of a float32.
        is_single = np.isfinite(item) and float(np.float32(item)) == float(item)
        return Value(numbers, _resolution(numbers, "float32" if is_single else "float64"))
    if not framework.is_tensor(item):
        return None
    snapshot = framework.snapshot(item)
    content = None if snapshot is None else framework.content(snapshot)
    if content is None or content.dtype not in DTYPES or math.prod(content.shape) > _MAX_ELEMENTS:
        return None
    chunks = [np.asarray(chunk, np.float64) for chunk in HeldTensor(content).chunks(_MAX_ELEMENTS)]
    numbers = np.concatenate(chunks) if chunks else np.zeros(0)
    return Value(numbers, _resolution(numbers, content.dtype))


_BITS = {"bfloat16": 8, "float16": 11, "float32": 24}


def _resolution(numbers: Array, dtype: str) -> float:
    return float(np.linalg.norm(numbers[np.isfinite(numbers)])) * 2.0 ** -_BITS.get(dtype, 53)


class _Gradients:
    """Norms and sketches of gradients when an optimizer is about to use them, or when the step has ended."""

    def __init__(self, framework: Any, models: Sequence[Model]) -> None:
        self._framework = framework
        self._reducer = framework.reducer()
        named = [framework.parameters_of(model.model).values() for model in models]
        self._parameters = [parameter for several in named for parameter in several]
        self._digests: dict[int, Digest] = {}
        self._failure: str | None = None

    @contextmanager
    def watched(self) -> Generator[None, None, None]:
        """Read the gradients of the step in the block."""
        end = self._framework.watch_all_updates(self._read, lambda: None)
        try:
            yield
        finally:
            end()
        self._read(self._parameters)
        self._reducer.collect()
        if self._failure is not None:
            raise SessionError(f"the gradients of the step cannot be read ({self._failure})")

    def _read(self, parameters: Sequence[Any]) -> None:
        with self._framework.quiet(self._note):
            for parameter in parameters:
                gradient = self._framework.gradient_of(parameter, is_main=True)
                if gradient is None or id(parameter) in self._digests:
                    continue
                digest = self._digests[id(parameter)] = Digest()
                self._reducer.statistics(gradient, digest)
                self._reducer.sketch(gradient, digest)

    def _note(self, where: str, error: Exception) -> None:
        self._failure = f"{where}: {described(error)}"

    @property
    def are_there(self) -> bool:
        """Whether there are any."""
        return bool(self._digests)

    @property
    def norm(self) -> Value:
        """The norm of all gradients."""
        norms = [float(each.stats.l2_norm or 0.0) for each in self._digests.values() if each.stats is not None]
        total = np.array([math.fsum(norm * norm for norm in norms) ** 0.5])
        return Value(total, _resolution(total, "float32"))

    @property
    def sketches(self) -> Value:
        """The sketches of all gradients, one after the other: changes have the norms of those of the gradients."""
        # A gradient that does not arrive, as that of an expert without tokens, is zero.
        digests = [self._digests.get(id(parameter), Digest()) for parameter in self._parameters]
        parts = [np.frombuffer(each.sketch or bytes(4 * SIZE), "<f4") for each in digests]
        numbers = np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)
        return Value(numbers, 0.0)


# --- inputs -----------------------------------------------------------------------------------------------------------


@dataclass
class _Inputs:
    """Hashes of what the models take."""

    framework: Any
    roots: frozenset[str]
    reducer: Any
    digests: list[Digest] = field(default_factory=list[Digest])

    @property
    def hashes(self) -> list[str | None]:
        self.reducer.collect()
        return [digest.checksum for digest in self.digests]

    def wants(self, path: str, type_name: str) -> bool:  # noqa: ARG002
        return path in self.roots

    def before(self, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        with self.framework.quiet(_ignore):
            for value in (*args, *kwargs.values()):
                if self.framework.is_tensor(value):
                    self.digests.append(Digest())
                    if not self.framework.takes_gradient(value):
                        self.reducer.hash(value, self.digests[-1])

    def after(self, stem: str) -> None:
        pass


def _ignore(_where: str, _error: Exception) -> None:
    """What cannot be hashed does not count."""


@contextmanager
def _watched_inputs(framework: Any, models: Sequence[Model]) -> Generator[_Inputs, None, None]:
    # Only models that no other one holds: what those pass on may differ from run to run.
    inputs = _Inputs(framework, frozenset(model.name for model in models), framework.reducer())
    watch = framework.watch(models, inputs)
    try:
        yield inputs
    finally:
        watch.detach()
        watch.release()
