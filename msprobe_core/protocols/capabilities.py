"""Optional protocols of a framework. The core checks for each with ``isinstance`` before it uses it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from msprobe_core.manifest.facts import Optimizer, RunFacts, Scalar
from msprobe_core.model import (
    CallScript,
    CompiledResults,
    CompilerPart,
    Digest,
    KernelOptions,
    LinearKind,
    Perturbation,
    RaisedModule,
    ReferenceFormat,
    ReplayCall,
    Replayed,
    Site,
    TensorContent,
)
from msprobe_core.protocols.framework import AttachOptions, NamedModel, Removable
from msprobe_core.protocols.monitoring import BeforeUpdate
from msprobe_core.protocols.recording import CallRecorder

if TYPE_CHECKING:
    from msprobe_core.fingerprint.arrays import Arrays  # brings NumPy, and so does the next
    from msprobe_core.fingerprint.place import Place


class CallWatcher(Protocol):
    """Runs code before and after module calls, including calls that are not recorded. Never raises."""

    def wants(self, path: str, type_name: str) -> bool:
        """Whether to report calls of the module of this class at this path; asked once per module."""
        ...

    def before(self, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Begin a call of the module with this name stem; return replacement arguments, or ``None``."""
        ...

    def after(self, stem: str) -> None:
        """End a call that ``before`` began, even if the call raised."""
        ...


@runtime_checkable
class WatchingFramework(Protocol):
    """Optional; needed by ``token_range`` of ``start`` and by the setting ``load``."""

    def watch(self, models: Sequence[NamedModel], watcher: CallWatcher) -> Removable:
        """Report module calls to ``watcher``. Interceptions attached later see the arguments that it returns."""
        ...

    def load(self, path: Path, like: Any) -> Any:
        """Return the tensor in a file written by ``save``, as a replacement for the tensor ``like``.

        It is on the device of ``like``, and requires a gradient if ``like`` does. Never executes code from the file.

        Raises:
            Exception: of any kind: the file is missing, damaged or not a tensor.
        """
        ...

    def rebuild(self, content: TensorContent, like: Any) -> Any:
        """Return a tensor with these elements, as a replacement for the tensor ``like``, like `load`.

        Args:
            content: The result of `Framework.content`. The caller must not use its memory afterwards.
            like: A tensor of the program.

        Raises:
            Exception: of any kind: the framework does not support the dtype.
        """
        ...


class TrainingState(Protocol):
    """A copy, on the host, of all state that a training step reads and writes."""

    def restore(self) -> None:
        """Copy everything back, bitwise, into the objects that held it."""
        ...

    def complaint(self) -> str | None:
        """Return what the step changed outside of this state; ``None`` if nothing. Called once, after the step."""
        ...


@runtime_checkable
class Fp8Reducer(Protocol):
    """Optional part of a `Reducer`; needed by the summary mode ``fp8``."""

    def fp8(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.fp8``, immediately or at the next ``collect``, as `msprobe_core.fingerprint.fp8` defines it.

        Leaves it unset for a tensor that is not floating point or has no elements.
        """
        ...


@runtime_checkable
class ExtraReducer(Protocol):
    """Optional part of a `Reducer`; needed by the setting ``extra_statistics``."""

    def extra_statistics(self, tensor: Any, digest: Digest, measure: ElementMeasure) -> None:
        """Set ``digest.extra``, immediately or at the next ``collect``: the names and numbers that ``measure`` returns.

        It is called once, with a vector of the tensor's elements as `Statistic` describes them, and their library. A
        tensor without elements, or with elements that are not numbers, has none.
        """
        ...


ElementMeasure: TypeAlias = "Callable[[Any, Arrays], tuple[Sequence[str], Any]]"
"""Returns names, and a vector of as many numbers in the library and on the device of the elements."""


@runtime_checkable
class ShardReducer(Protocol):
    """Optional part of a `Reducer`: digests of parts that do not know where they are, such as those of an engine."""

    def hash_at(self, tensor: Any, digest: Digest, place: Place) -> None:
        """Set ``digest.checksum`` as ``hash`` does, of a tensor whose elements have these positions."""
        ...

    def sketch_at(self, tensor: Any, digest: Digest, place: Place) -> None:
        """Set ``digest.sketch`` as ``sketch`` does, of a tensor whose elements have these positions."""
        ...


@runtime_checkable
class LateReducer(Protocol):
    """Optional part of a `Reducer`: the training monitor then never waits for a device between two steps."""

    def seal(self) -> Callable[[], bool] | None:
        """Let the device copy all results to the host when it has computed them, and wait for nothing.

        Nothing is enqueued between this and ``collect``.

        Returns: a function that says whether ``collect`` would not wait; ``None`` if that cannot be known.
        """
        ...


class ArrivingNumbers(Protocol):
    """Numbers that a device copies to the host."""

    def has_arrived(self) -> bool:
        """Whether all are there."""
        ...

    def floats(self) -> Sequence[float]:
        """Wait for them, and return them in the order in which they were given."""
        ...


@runtime_checkable
class FetchingFramework(Protocol):
    """Optional part of a `MonitoringFramework`, with a `LateReducer`."""

    def fetch(self, numbers: Sequence[Any]) -> ArrivingNumbers | None:
        """Let devices copy 0-d tensors to the host, and wait for nothing; ``None`` if arrival would not be known."""
        ...


@runtime_checkable
class OperatorFramework(Protocol):
    """Optional; needed by the setting ``aten``."""

    @property
    def sees_operators(self) -> bool:
        """Whether operators that run below the framework's APIs can be recorded."""
        ...


@runtime_checkable
class PerturbingFramework(Protocol):
    """Optional; needed by the setting ``perturb`` and by repeated steps."""

    def perturb(self, models: Sequence[NamedModel], perturbation: Perturbation, seed: int) -> Removable:
        """Perturb the last digits of values computed from now on. What attaches later sees the perturbed values.

        Args:
            models: In the mode ``inputs``, the models whose inputs are perturbed; may be empty.
            perturbation: Where to perturb, and by how much. See `msprobe_core.interception.perturbation` for the
                distribution.
            seed: Used instead of ``perturbation.seed``.
        """
        ...

    def training_state(self, models: Sequence[Any], others: Sequence[Any]) -> TrainingState:
        """Copy parameters, buffers, gradients, optimizer states, and the states of random generators.

        Args:
            models: Whole models.
            others: Optimizers, schedulers, scalers: any object with state that a step changes.

        Raises:
            Exception: of any kind: something cannot be copied; the message names it.
        """
        ...


class RaisedModules(Protocol):
    """Has single modules compute in a finer format while a step is repeated, and all else as before.

    A raised module takes its arguments, parameters and buffers in that format, and whatever its own code does is in it,
    casts to coarser formats included. Modules that it calls compute as in the unchanged step unless they are raised
    themselves. Parameters, and the gradients that they get, keep their formats.
    """

    @property
    def modules(self) -> Sequence[RaisedModule]:
        """The modules that the unchanged step has called, in the order of their first call."""
        ...

    @property
    def formats(self) -> Container[str]:
        """Names of the formats that the unchanged step computed in, without the framework's prefix."""
        ...

    @property
    def failed(self) -> str | None:
        """Path of the raised module whose code raised the exception that ended the last step; ``None``: no such."""
        ...

    def watched(self) -> AbstractContextManager[None]:
        """Return the block in which the unchanged step runs, before all others."""
        ...

    def raised(self, modules: Container[str], reference: ReferenceFormat) -> AbstractContextManager[None]:
        """Return the block in which a step runs with the modules of these paths raised; `OUTSIDE` is one, too."""
        ...


@runtime_checkable
class RaisingFramework(Protocol):
    """Optional; needed by ``msprobe free_benchmark bisect``."""

    def raised_modules(self, models: Sequence[NamedModel]) -> RaisedModules:
        """Return what raises modules of these models; nothing is attached yet.

        Raises:
            SessionError: their modules cannot be raised.
        """
        ...

    def has_state(self, value: Any) -> bool:
        """Whether a value is an object whose state `PerturbingFramework.training_state` copies; asked of any value."""
        ...


class ModuleCompiler(Protocol):
    """Runs single modules eagerly, compiled and in float64, from what one step gave them."""

    @property
    def modules(self) -> Sequence[RaisedModule]:
        """The modules that the step has called, in the order of their first call; known after `recorded`."""
        ...

    @property
    def default_backend(self) -> str:
        """Name of the compiler that modules are compiled with if none is named."""
        ...

    def recorded(self) -> AbstractContextManager[None]:
        """Return the block in which the step runs once, without the compiler."""
        ...

    def results(self, path: str, backend: str) -> CompiledResults:
        """Run one module in all ways; it stays as it is.

        Raises:
            ConfigError: there is no such backend.
            ReplayError: the module cannot be judged; the message says why.
        """
        ...

    def part(self, works: Callable[[], bool]) -> CompilerPart | None:
        """Find the part of the compiler that makes a check fail.

        Args:
            works: Compiles and judges; whether the result was right.

        Returns: the part; ``None`` if the check passes, or fails whatever the compiler leaves out.
        """
        ...

    def commands(self, check: str) -> Sequence[str]:
        """Return commands by which users go on: the framework's own bisector, running the command ``check``."""
        ...


@runtime_checkable
class CompileCheckingFramework(Protocol):
    """Optional; needed by ``msprobe compile``."""

    def module_compiler(self, models: Sequence[NamedModel]) -> ModuleCompiler:
        """Return what compiles modules of these models; nothing is attached yet."""
        ...


class CallFixer(Protocol):
    """Chooses calls of APIs whose results are replaced."""

    @property
    def is_backward(self) -> bool:
        """Whether the gradients that calls send to their arguments are replaced, instead of their results."""
        ...

    @property
    def on_host(self) -> bool:
        """Whether calls are computed on the host, instead of in float32 where they take half precision."""
        ...

    def wants(self, prefix: str, name: str) -> bool:
        """Whether to replace the results of the call that begins; asked once for each call."""
        ...

    def fixed(self, prefix: str, name: str) -> None:
        """Note that they were replaced."""
        ...

    def refused(self, prefix: str, name: str, why: str) -> None:
        """Note why they were not."""
        ...

    def say(self, sentence: str) -> None:
        """Inform the user."""
        ...


@runtime_checkable
class FixingFramework(Protocol):
    """Optional; needed by ``handler_type`` ``fix`` of the task ``free_benchmark``, which changes the training."""

    def fix_calls(self, fixer: CallFixer, models: Sequence[NamedModel]) -> Removable:
        """Replace what the calls return that the fixer wants, in their own formats, until it is removed.

        Calls are those of any code; ``models`` are what was given to ``start``, for operators that modules hold. Not
        replaced are calls that write to their arguments, return views of them, or draw random numbers.
        """
        ...


@runtime_checkable
class CompilingFramework(Protocol):
    """Optional, for a framework that compiles whole models and must know them beforehand."""

    def prepare(self, models: Sequence[NamedModel], options: AttachOptions) -> None:
        """Prepare to record calls of these models in this or a later step; called by every ``start``.

        Raises:
            ConfigError: the compiled models cannot be recorded with these options.
        """
        ...


@runtime_checkable
class CheckingFramework(Protocol):
    """Optional, for a framework that cannot record every level in each of its modes."""

    def check(self, options: AttachOptions) -> None:
        """Reject options that cannot be recorded in the framework's current mode; called once, before any ``start``.

        Raises:
            ConfigError: the options cannot be recorded.
        """
        ...


class KernelDump(Protocol):
    """A kernel dump that the framework writes by itself."""

    def begin(self) -> None:
        """Handle a call of ``start``, the first or a later one."""
        ...

    def next_step(self) -> None:
        """Handle a call of ``step``."""
        ...

    def begin_at(self, step: int) -> None:
        """Set the number of the current step.

        Raises:
            SessionError: the framework does not support this.
        """
        ...

    def finish(self) -> None:
        """Report problems at the end of the program; called once."""
        ...


@runtime_checkable
class KernelDumper(Protocol):
    """Optional; needed by level L2."""

    def dump_kernels(self, options: KernelOptions) -> KernelDump:
        """Make the framework dump its kernels, from now to the end of the program.

        Raises:
            ConfigError: the framework cannot dump this.
            SessionError: it is too late to begin.
            StoreError: a file that the framework needs cannot be written.
        """
        ...


@runtime_checkable
class KernelChecker(Protocol):
    """Optional part of a `KernelDumper`: rejects unsupported options even if ``dump_enable`` is false."""

    def check_kernels(self, options: KernelOptions) -> None:
        """Reject unsupported options; called when the debugger is constructed, before ``dump_kernels``.

        Raises:
            ConfigError: the framework cannot dump this.
        """
        ...


@runtime_checkable
class ReplayingFramework(Protocol):
    """Optional, needed by ``msprobe confirm``: replays one recorded call by itself.

    Dumps may be untrusted. Implementations call only functions in a table of their own: numerical functions that use no
    file, network or process. They never look up a name from a dump in the framework.
    """

    def why_not_replayed(self, site: Site) -> str | None:
        """Return why calls of this API are not replayed, as the end of a sentence; ``None`` if they are."""
        ...

    def replay(self, call: ReplayCall, model: object | None = None) -> Replayed:
        """Replay the call on the host and return its result. The global random state is unchanged.

        Args:
            call: The function and its arguments.
            model: The model whose module is called; ``None`` for an API. It is not modified.

        Raises:
            ReplayError: the call is not in the table, is too large, does not fit the model, or failed.
        """
        ...


@runtime_checkable
class LinearFramework(Protocol):
    """Optional, for exact probes: knows which of the functions that it replays are linear."""

    def linear_in(self, site: Site) -> LinearKind | None:
        """Return how the function of a call depends on all of its floating-point tensors.

        The same holds of its gradients, with the incoming gradient as one more tensor.

        Returns: ``None`` if it is not linear in one of them, or not known to be.
        """
        ...


@runtime_checkable
class ReferringFramework(Protocol):
    """Optional, for a `ReplayingFramework` with formulas of functions that do not depend on these functions.

    A function that is wrong in float64 as well is noticed by them. `ReplayCall.by_reference` asks for a replay by one.
    """

    def has_reference(self, site: Site) -> bool:
        """Return whether there is an independent formula of a function; it need not take all arguments."""
        ...


@runtime_checkable
class DeviceReplayingFramework(ReplayingFramework, Protocol):
    """Optional, for a `ReplayingFramework` that replays calls on other devices than the host too."""

    def replay(self, call: ReplayCall, model: object | None = None, device: str | None = None) -> Replayed:
        """Replay the call, and return its result on the host. The random state of host and device is unchanged.

        Args:
            call: The function and its arguments. What it says of the program's devices stands for ``device``.
            model: The model whose module is called; ``None`` for an API. It is not modified.
            device: The framework's name of a device; ``None`` for the host.

        Raises:
            ConfigError: there is no such device here; the message says which there are.
            ReplayError: as without a device, or the device failed.
        """
        ...

    def replay_devices(self) -> Sequence[str]:
        """Return the devices present besides the host, as `replay` takes them."""
        ...


@runtime_checkable
class ScriptingFramework(ReplayingFramework, Protocol):
    """Optional, for scripts that show a wrong call to others: writes one recorded call as source code.

    Dumps may be untrusted: nothing of a call may enter the source code but literals, identifiers, and the names of
    functions that are replayed. `msprobe_core.interception.call_text` writes arguments so.
    """

    def script(self, call: ReplayCall) -> CallScript:
        """Return a call as source code that needs NumPy and the framework only.

        Args:
            call: The function and its arguments; not widened.

        Raises:
            ReplayError: the call is not in the table, or has an argument that cannot be written.
        """
        ...


@runtime_checkable
class MonitoringFramework(Protocol):
    """Optional, for the training monitor; see `msprobe_core.monitor.collector`."""

    def parameters_of(self, model: Any) -> Mapping[str, Any]:
        """Return the parameters of a model by name, each once."""
        ...

    def is_training(self, model: Any) -> bool:
        """Whether a model is in training mode."""
        ...

    def gradient_of(self, parameter: Any, *, is_main: bool) -> Any:
        """Return the gradient that the optimizer will use; ``None`` if there is none.

        Args:
            parameter: A parameter of the model.
            is_main: Whether the trainer keeps gradients in a buffer of its own, if it does: ``main_grad``.
        """
        ...

    def moments_of(self, optimizer: Any, parameter: Any) -> tuple[Any, Any]:
        """Return the first and second moment that the optimizer keeps of a parameter; ``None`` where it has none."""
        ...

    def share_below(self, tensor: Any, eps: float) -> Any:
        """Return the share of elements whose magnitude is below ``eps``, as a 0-d tensor; does not wait for a device.

        ``None`` of a tensor without elements or that cannot be read.
        """
        ...

    def floats(self, numbers: Sequence[Any]) -> Sequence[float]:
        """Return the values of 0-d tensors, in one transfer per device."""
        ...

    def watch_accumulation(self, models: Sequence[NamedModel], recorder: CallRecorder) -> Removable:
        """Report the gradients of parameters as they are accumulated, and no calls."""
        ...

    def watch_updates(self, optimizer: Any, before: BeforeUpdate, after: Callable[[], None]) -> Callable[[], None]:
        """Call functions before and after each step of an optimizer; what they raise is not handled.

        Args:
            optimizer: One, or what a framework accepts in its place.
            before: Called when gradients are what the optimizer is about to use; several times in a step if parameters
                are updated in several parts.
            after: Called once, when all parameters have been updated.

        Returns: a function that ends this.

        Raises:
            SessionError: it is no optimizer.
        """
        ...


@runtime_checkable
class UpdatingFramework(Protocol):
    """Optional part of a `MonitoringFramework`, for the task ``grad_probe``: knows what optimizers update."""

    def updated_by(self, optimizer: Any) -> Mapping[str, Any] | None:
        """Return the parameters that an optimizer updates, by name, each once; ``None`` if it is no optimizer."""
        ...

    def watch_all_updates(
        self, before: Callable[[Sequence[Any]], None], after: Callable[[], None]
    ) -> Callable[[], None]:
        """Call functions before and after each step of any optimizer of this process; what they raise is not handled.

        Args:
            before: Called with the tensors that are about to be updated, when their gradients are there.
            after: Called when they have been updated.

        Returns: a function that ends this.

        Raises:
            SessionError: the framework cannot do this; the message says what to give instead.
        """
        ...


@runtime_checkable
class MeasuringFramework(Protocol):
    """Optional part of a `MonitoringFramework`: what quantities need that are computed from elements.

    Their arithmetic is in `msprobe_core.monitor`, in operators and methods that tensors of all frameworks have. Nothing
    here waits for a device.
    """

    def elements(self, tensor: Any) -> Any:
        """Return what this process has of a tensor's elements, detached, in a dtype with arithmetic.

        Not a copy if possible. ``None`` if there are no elements, or if they are no real numbers.
        """
        ...

    def sampled(self, tensors: Sequence[Any], stride: int) -> Sequence[Any] | None:
        """Return the same elements of several tensors of one shape, each as a vector, and a view if possible.

        Args:
            tensors: Tensors whose `elements` belong together.
            stride: Distance of the elements, in memory if that is known.

        Returns: ``None`` if one cannot be read, or if their shapes differ.
        """
        ...

    def kth_smallest(self, values: Any, ranks: Sequence[int]) -> Sequence[Any]:
        """Return the elements of a vector at some ranks, which count from 1, as 0-d tensors; NaN counts as largest."""
        ...

    def are_on_host(self, numbers: Sequence[Any]) -> bool:
        """Whether `MonitoringFramework.floats` would not wait for a device."""
        ...

    def masters_of(self, optimizer: Any, parameters: Sequence[Any]) -> Sequence[Any]:
        """Return for each parameter the tensor that the optimizer updates, which the parameter is then copied from.

        It is the parameter itself if the optimizer updates that directly, and ``None`` if it is not known.
        """
        ...

    def modules_of(self, model: Any) -> Mapping[str, Any]:
        """Return all modules of a model by path; their matrices are in the attribute ``weight``."""
        ...


@runtime_checkable
class CommunicatingFramework(Protocol):
    """Optional, for ``cc_distribution`` of the training monitor."""

    @property
    def communication_frames(self) -> Sequence[str]:
        """Beginnings of paths of the framework's files that are between a caller and every communication call."""
        ...

    def watch_communication(self, recorder: CallRecorder) -> Removable:
        """Report communication as calls of APIs, also asynchronous ones, and nothing else."""
        ...


class RandomDraw(Protocol):
    """One call of a random function, before it is made."""

    @property
    def name(self) -> str:
        """Name of the function for people, such as ``torch.rand``."""
        ...

    def run(self) -> Any:
        """Make the call and return its result."""
        ...


@runtime_checkable
class RandomFramework(Protocol):
    """Optional, for what observes random functions: ``random_save`` and `ConfigChecker`."""

    def watch_random(
        self, draws: Callable[[RandomDraw], Any], *, has_dropout: bool = False, has_seeding: bool = False
    ) -> Callable[[], None]:
        """Pass the calls of random functions of Python, NumPy and the framework to ``draws``; return what ends it.

        `msprobe_core.interception.RandomWatch` does it. Calls inside of other ones are not passed.

        Args:
            draws: Makes the call, and returns its result.
            has_dropout: Also each active dropout, which may cost more than other functions.
            has_seeding: Also functions that set a seed.
        """
        ...


class PendingRows(Protocol):
    """Hashes of the rows of a tensor, which a device may still compute."""

    def hashes(self) -> Sequence[int] | None:
        """Return the hash of each row, 64 bits without a sign; may wait for a device. ``None`` if it cannot be read."""
        ...


@runtime_checkable
class DescribingFramework(Protocol):
    """Optional, for the manifest of a run. Nothing here changes the program, or waits for a device."""

    def run_facts(self, models: Sequence[NamedModel]) -> RunFacts:
        """Return what the framework knows of the program, read from live objects.

        Called once, when the first recorded step begins, before anything is attached to the program. Generators are
        not advanced. It costs a few milliseconds for 2,000 modules. What cannot be found out is left out.

        `msprobe_core.manifest.flattened` makes settings of any objects. Secrets among settings need no attention: the
        core removes them from everything that is returned.
        """
        ...

    def optimizers_of(self, models: Sequence[NamedModel]) -> Sequence[Optimizer]:
        """Return the optimizers that update the models, as far as they are known.

        Called when windows of the first recorded step end, and when the step ends: programs create them before or
        after ``start``.
        """
        ...

    def row_hashes(self, tensor: Any) -> PendingRows | None:
        """Begin to hash the slices of a tensor along its first dimension.

        The hash of a row is `msprobe_core.fingerprint.hashing.hash_of` of its contiguous elements, so that frameworks
        and dtypes of integers agree; `msprobe_core.fingerprint.hash_rows` computes it with arrays. ``None`` for a
        tensor that has no rows, or cannot be read. The program may overwrite the tensor when this returns.
        """
        ...


@runtime_checkable
class UpdateObservingFramework(Protocol):
    """Optional part of a `DescribingFramework` that learns which optimizers there are when they step."""

    def watch_optimizers(self) -> Removable:
        """Remember, without keeping them alive, the optimizers that step from now on, for `optimizers_of`."""
        ...


@runtime_checkable
class DataWatchingFramework(Protocol):
    """Optional part of a `DescribingFramework` whose models may be compiled whole: hooks would not see their calls."""

    def watch_data(self, models: Sequence[NamedModel], watcher: CallWatcher) -> Removable:
        """Report calls like `WatchingFramework.watch`, but possibly after them: what ``before`` returns is not used."""
        ...


@runtime_checkable
class ForwardDescribingFramework(Protocol):
    """Optional part of a `DescribingFramework` some of whose switches are set around the forward, such as autocast."""

    def forward_switches(self) -> Mapping[str, Scalar]:
        """Return the switches that hold for what this thread calls now, under the names that `run_facts` gives them.

        Called when a model that was given to ``start`` is first called in the first recorded step.
        """
        ...


@runtime_checkable
class DeviceGauge(Protocol):
    """Optional, for ``msprobe estimate``; called at the end of a step, outside of windows."""

    def wait_for_devices(self) -> None:
        """Return when all work that this process enqueued is done, so that a clock measures the whole step."""
        ...

    def peak_device_bytes(self) -> int | None:
        """Return the peak memory of this process's tensors on a device, in bytes; ``None`` if no device is in use."""
        ...
