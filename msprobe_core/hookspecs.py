"""Every hook of the project and the protocols of the objects that hooks return.

A hook is called once, when a session or a command starts, and offers objects; the objects then do the work.
Nothing that happens once per tensor or once per step goes through pluggy. ``docs/hooks.md`` has an example of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import pluggy

from msprobe_core.model import (
    Argument,
    Batch,
    Digest,
    Ending,
    ExecutorOptions,
    GradientSlot,
    KernelOptions,
    Level,
    Perturbation,
    ReplayCall,
    Replayed,
    RunHeader,
    Site,
    TaskLost,
    TensorContent,
    TensorMeta,
)

if TYPE_CHECKING:
    import click
    import polars as pl
    from numpy.typing import NDArray

PROJECT = "msprobe"

_T = TypeVar("_T")
_R = TypeVar("_R")

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# --- What a framework plugin offers -----------------------------------------------------------------------------


class Reducer(Protocol):
    """Does the arithmetic on tensors, where they live.

    All reductions take the tensor's value now, before anybody overwrites it, and never wait for a device: they
    fill in the digest at once where the tensor is on the host, and otherwise enqueue work whose result ``collect``
    fetches. A tensor that cannot be read (meta, fake, sparse, …) leaves its digest as it is.
    """

    def statistics(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.stats``, now or at the next ``collect``."""
        ...

    def checksum(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``: 8 hex digits, CRC-32 of the contiguous bytes."""
        ...

    def xor(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``: ``0x`` and 16 hex digits.

        The exclusive or of the contiguous bytes' 64-bit little-endian words, the last filled up with zeros. Devices can
        compute it where the tensor lives; it does not see words that change places.
        """
        ...

    def hash(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``: ``0x`` and 16 hex digits.

        The sum of `msprobe_core.fingerprint.hashing.hash_of`, computed where the tensor lives. It sees words that
        change places, and hashes of shards add up to that of the whole.
        """
        ...

    def sketch(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.sketch``, now or at the next ``collect``: what a `Sketcher` returns for the tensor.

        See `msprobe_core.fingerprint.sketch`. A tensor without elements, or whose elements are no numbers, has none.
        """
        ...

    @property
    def is_complete(self) -> bool:
        """Whether all digests are filled in, so that there is nothing to wait for."""
        ...

    def collect(self) -> None:
        """Fetch all results in few transfers per device, and fill in their digests."""
        ...


class Call(Protocol):
    """One call that is being recorded; made by `CallRecorder`, kept by the interception until it ends."""

    @property
    def wants_forward(self) -> bool:
        """Whether inputs or outputs of the forward are to be recorded."""
        ...

    @property
    def wants_gradients(self) -> bool:
        """Whether gradients of this call are to be recorded."""
        ...


class CallRecorder(Protocol):
    """What an interception reports to. Each method returns fast and raises nothing.

    For every call: ``open_api`` or ``open_module``, ``record_inputs``, then the call itself, then either
    ``record_outputs`` and ``close`` or, when the call raised, only ``close``. The object that opened the call is
    handed back as it came.
    """

    def open_api(self, prefix: str, name: str, owner: str | None = None, *, is_recomputed: bool = False) -> Call:
        """Begin a call of an API: ``prefix`` as ``Functional``, ``name`` as ``linear``.

        ``owner`` is what a call outside of every module belongs to, such as ``optimizer``: its parent in that case.
        ``is_recomputed``: the call runs inside a backward pass, to compute again what was not kept.
        """
        ...

    @property
    def is_outside_modules(self) -> bool:
        """Whether an ``owner`` is of use: the nesting is recorded, and no module call of this thread is open."""
        ...

    def open_module(self, prefix: str, path: str, type_name: str, *, is_recomputed: bool = False) -> Call:
        """Begin a call of a module; calls that open before it closes become its children."""
        ...

    def record_inputs(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any], unset: Sequence[Any] = ()
    ) -> None:
        """Take the arguments as they are now, before the call can overwrite them.

        ``unset`` are the tensors among them whose values are not read: their memory has not been set yet, so the
        values are arbitrary and would differ between equal runs.
        """
        ...

    def record_parameters(self, call: Any, parameters: Mapping[str, Any]) -> None:
        """Take a module's own parameters."""
        ...

    def record_outputs(self, call: Any, output: Any, unset: Sequence[Any] = ()) -> None:
        """Take the result of the call; see ``record_inputs`` for ``unset``."""
        ...

    def close(self, call: Any, *, keep: bool = True) -> None:
        """End the call; with ``keep=False`` as though it had never been counted."""
        ...

    def input_gradients(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor among the arguments that takes a gradient."""
        ...

    def output_gradients(self, call: Any, output: Any) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor in the result that takes a gradient."""
        ...

    def expect_gradients(self, call: Any, num_outputs: int, num_inputs: int) -> None:
        """Say how many slots of either kind will be filled if the whole graph is run."""
        ...

    def record_gradient(self, call: Any, slot: GradientSlot, gradient: Any, backward_pass: int = -1) -> None:
        """Fill in one slot.

        Gradients of another ``backward_pass`` than the first that came to the call make an entry of their own; -1: it
        is not known which pass it is. A second gradient for one slot in one pass is counted and dropped.
        """
        ...

    def nesting(self) -> object:
        """Return the module calls that are open on this thread, for ``nest_in``."""
        ...

    def nest_in(self, nesting: Any) -> None:
        """Let calls that open on this thread be inside of those that are open on another."""
        ...

    @property
    def clock(self) -> int:
        """How far the order of reports has come: what is reported next stands behind it."""
        ...

    def set_clock(self, moment: int) -> None:
        """Let what is reported next stand elsewhere in the order: for who hears of things out of order."""
        ...

    def note_failure(self, where: str, error: Exception) -> None:
        """Take note that something could not be recorded, and why; it is said once for each kind of failure."""
        ...

    def record_parameter_gradient(self, stem: str, name: str, gradient: Any, contribution: Any = None) -> None:
        """Take the gradient of the parameter ``name`` of the module with the given name stem, as accumulated so far.

        ``contribution`` is what has been added just now; ``None`` where that is all there is.
        """
        ...

    @property
    def is_open(self) -> bool:
        """Whether values are still taken: false once the step that a hook was set in is over."""
        ...


class Removable(Protocol):
    """Something that was put in place for a window."""

    def detach(self) -> None:
        """Take everything out again; called once, also after an error. New calls are no longer seen.

        Gradients of calls that were seen are reported as they come, until ``release``.
        """
        ...

    def release(self) -> None:
        """Report no gradient of a parameter any more; called once, after ``detach``."""
        ...

    def settle(self) -> None:
        """Hand over what is still being added up, for example a gradient whose last part never came."""
        ...


class Attachment(Removable, Protocol):
    """What ``Framework.attach`` put in place."""

    def call(
        self, prefix: str, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call ``function`` and report it as an API, as the calls that the plugin sees by itself.

        For functions that a user has registered; only at levels with APIs. A call inside of another one that is being
        reported is not reported. Returns what the function returns, and raises what it raises.
        """
        ...

    def is_compiling(self) -> bool:
        """Whether the framework is compiling the calling code, which then is to see the original functions."""
        ...


class NamedModel(Protocol):
    """One model given to ``start``. ``name`` is empty, or its position where several were given."""

    @property
    def name(self) -> str:
        """First part of the path of all its modules."""
        ...

    @property
    def model(self) -> Any:
        """The framework's own object."""
        ...


class AttachOptions(Protocol):
    """How to intercept."""

    @property
    def level(self) -> Level:
        """Modules, APIs or both."""
        ...

    @property
    def risk_level(self) -> str:
        """Which APIs: ``CORE``, ``FOCUS`` or ``ALL``."""
        ...

    @property
    def custom_op_namespaces(self) -> Sequence[str]:
        """Namespaces of custom operators that are recorded whatever the risk level."""
        ...


class Framework(Protocol):
    """A training framework: everything of it that the core needs."""

    @property
    def name(self) -> str:
        """Name in dumps and on the command line, for example ``pytorch``."""
        ...

    @property
    def tensor_suffix(self) -> str:
        """Suffix of the files that ``save`` writes, for example ``.pt``."""
        ...

    @property
    def hidden_frames(self) -> Sequence[str]:
        """Starts of file paths whose frames are left out of call stacks: the interception's own."""
        ...

    def is_tensor(self, value: object) -> bool:
        """Whether ``value`` is a tensor of this framework."""
        ...

    def is_model(self, value: object) -> bool:
        """Whether ``value`` can be given to ``start``."""
        ...

    def rank(self) -> int | None:
        """This process's rank in the job; ``None`` outside of a job."""
        ...

    def describe(self, tensor: Any) -> TensorMeta:
        """Describe a tensor without reading it."""
        ...

    def takes_gradient(self, tensor: Any) -> bool:
        """Whether a backward pass will compute a gradient with respect to this tensor."""
        ...

    def describe_argument(self, value: Any) -> Argument | None:
        """Describe a value of one of the framework's own types (dtype, device, …); ``None`` for any other."""
        ...

    def reducer(self) -> Reducer:
        """Return a new reducer, for one session."""
        ...

    def attach(self, models: Sequence[NamedModel], options: AttachOptions, recorder: CallRecorder) -> Attachment:
        """Begin to report calls to ``recorder``. Leaves nothing behind when it raises."""
        ...

    def quiet(self, on_failure: Callable[[str, Exception], None]) -> AbstractContextManager[None]:
        """Return a block for our own work in the middle of the user's code.

        The framework's modes (autograd, autocast, tracing, …) are off in it. An exception ends the block and goes to
        ``on_failure``, with where it was, and no further.
        """
        ...

    def watch_gradient(self, tensor: Any, on_gradient: Callable[[Any], None]) -> Callable[[], None] | None:
        """Call ``on_gradient`` with the gradient with respect to this tensor, in each backward pass that computes it.

        The gradient is handed on as it is. If the tensor is written to in place later, its gradient is still that
        with respect to the value that it has now.

        Returns: what takes the hook out; ``None`` if the tensor takes no gradient.

        Raises:
            Exception: the gradient cannot be watched without a change to the training; says why.
        """
        ...

    def narrow(self, tensor: Any, ranges: Mapping[int, tuple[int, int]]) -> Any:
        """Return the part of ``tensor`` from begin to end in each dimension that ``ranges`` names: a view will do.

        ``None`` if no such part can be had, as of sparse or sharded tensors; those are recorded without values.
        """
        ...

    def snapshot(self, tensor: Any) -> Any:
        """Return a copy that later writes to ``tensor`` do not change; enqueued, not waited for.

        ``None`` if its elements cannot be copied, as those of a sparse tensor; it is then recorded without a file.
        """
        ...

    def content(self, snapshot: Any) -> TensorContent | None:
        """Return the elements of a snapshot on the host; may wait for a device. Runs on the writer's thread.

        ``None`` if they have no plain bytes; the snapshot is then written by ``save``.
        """
        ...

    def save(self, snapshot: Any, path: Path) -> None:
        """Write a snapshot to a new file, readable by its owner only. Runs on the writer's thread."""
        ...


@dataclass(frozen=True)
class FrameworkOffer:
    """A framework that a plugin stands for, before anybody has imported it.

    Attributes:
        name: Name in dumps and on the command line, for example ``pytorch``.
        package: What a program imports that uses it, for example ``torch``: tells which framework a process is of.
        load: Returns the `Framework`; may import the package, and raises what importing it raises.
    """

    name: str
    package: str
    load: Callable[[], Framework]


class CallWatcher(Protocol):
    """Stands before and behind calls of modules, also of such as are not recorded. Raises nothing."""

    def wants(self, path: str, type_name: str) -> bool:
        """Whether calls of the module at this path, of this class, are reported; asked once for each module."""
        ...

    def before(self, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Begin a call of a module with the given name stem; return other arguments for it, or ``None``."""
        ...

    def after(self, stem: str) -> None:
        """End a call that ``before`` has begun, also one that raised."""
        ...


@runtime_checkable
class WatchingFramework(Protocol):
    """What a framework may offer besides: ``token_range`` of ``start`` and the setting ``load`` need it."""

    def watch(self, models: Sequence[NamedModel], watcher: CallWatcher) -> Removable:
        """Report calls of modules to ``watcher``. What is attached later sees the arguments that it returns."""
        ...

    def load(self, path: Path, like: Any) -> Any:
        """Return the tensor in a file that ``save`` has written, in place of the tensor ``like``.

        On its device, and taking a gradient if it takes one. Never executes code out of the file.

        Raises:
            Exception: of any kind: the file is missing, damaged or holds something else.
        """
        ...

    def rebuild(self, content: TensorContent, like: Any) -> Any:
        """Return a tensor with these elements, in place of the tensor ``like``, as `load` does.

        Args:
            content: What `Framework.content` has given; its memory is the caller's no more.
            like: A tensor of the program's.

        Raises:
            Exception: of any kind: the framework lacks the dtype.
        """
        ...


class TrainingState(Protocol):
    """What a training step reads and writes, as it was at one moment; a copy of it, on the host."""

    def restore(self) -> None:
        """Put everything back, bit for bit, into the objects that held it."""
        ...

    def complaint(self) -> str | None:
        """Return what the step has changed that is not part of this; asked once, behind the step. ``None``: nothing."""
        ...


@runtime_checkable
class PerturbingFramework(Protocol):
    """What a framework may offer besides: the setting ``perturb`` and repeated steps need it."""

    def perturb(self, models: Sequence[NamedModel], perturbation: Perturbation, seed: int) -> Removable:
        """Change the last digits of what is computed from now on; what is attached later sees the changed values.

        Args:
            models: Their inputs are changed, in the mode ``inputs``; may be empty.
            perturbation: Where, and by how much. See `msprobe_core.capture.perturbation` for the distribution.
            seed: To be taken in the place of ``perturbation.seed``.
        """
        ...

    def training_state(self, models: Sequence[Any], others: Sequence[Any]) -> TrainingState:
        """Copy parameters, buffers, gradients, optimizer states, and the states of random generators.

        Args:
            models: Models, whole.
            others: Optimizers, schedulers, scalers: whatever has a state that a step changes.

        Raises:
            Exception: of any kind: it cannot be copied; says what.
        """
        ...


@runtime_checkable
class CompilingFramework(Protocol):
    """What a framework may offer besides that compiles whole models: it has to know of them before it does."""

    def prepare(self, models: Sequence[NamedModel], options: AttachOptions) -> None:
        """Take note that calls of these models are to be recorded in this or a later step; called by each ``start``.

        Raises:
            ConfigError: as they are compiled, what the options ask for cannot be recorded.
        """
        ...


@runtime_checkable
class CheckingFramework(Protocol):
    """What a framework may offer besides that cannot record every level in each of its modes."""

    def check(self, options: AttachOptions) -> None:
        """Refuse options that cannot be recorded in the framework's current mode; called once, before any ``start``.

        Raises:
            ConfigError: they cannot.
        """
        ...


class KernelDump(Protocol):
    """A dump of kernels that a framework makes by itself."""

    def begin(self) -> None:
        """Take note that the program has called ``start``, for the first time or again."""
        ...

    def next_step(self) -> None:
        """Take note that the program has called ``step``."""
        ...

    def begin_at(self, step: int) -> None:
        """Let the current step have this number.

        Raises:
            SessionError: the framework cannot be told.
        """
        ...

    def finish(self) -> None:
        """Say what there is to say at the end of the program; called once."""
        ...


@runtime_checkable
class KernelDumper(Protocol):
    """What a framework may offer besides: level L2 needs it."""

    def dump_kernels(self, options: KernelOptions) -> KernelDump:
        """Have the framework dump its kernels, from now to the end of the program.

        Raises:
            ConfigError: it cannot dump that.
            SessionError: it is too late for it.
            StoreError: a file that it needs cannot be written.
        """
        ...


@runtime_checkable
class ReplayingFramework(Protocol):
    """What a `Framework` may offer besides, for ``msprobe confirm``: makes one recorded call again, by itself.

    Dumps may come from anybody. Only functions that stand in a table of the plugin's own are ever called: numerical
    ones, which touch no file, no network and no process; a name from a dump is never looked up in the framework.
    """

    def why_not_replayed(self, site: Site) -> str | None:
        """Return why calls of this API are not replayed, as the end of a sentence; ``None`` if they are."""
        ...

    def replay(self, call: ReplayCall, model: object | None = None) -> Replayed:
        """Make the call on the host, and return what it gives; the global random state is left as it was.

        Args:
            call: What to call, and with what.
            model: The model that a module's call is of; ``None`` for an API. It is left as it was.

        Raises:
            ReplayError: the call is not in the table, is too large, does not fit the model, or failed.
        """
        ...


@runtime_checkable
class DeviceGauge(Protocol):
    """What a `Framework` may offer besides, for ``msprobe estimate``; asked at the end of a step, outside windows."""

    def wait_for_devices(self) -> None:
        """Return when all work is done that this process has enqueued, so that a clock shows what a step takes."""
        ...

    def peak_device_bytes(self) -> int | None:
        """Return the most bytes that tensors of this process have taken on a device; ``None`` where none is in use."""
        ...


# --- What other plugins offer -----------------------------------------------------------------------------------


class Processor(Protocol):
    """A way to reduce a tensor to what is kept of it."""

    @property
    def name(self) -> str:
        """Value of ``summary_mode`` that selects it."""
        ...

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest``, through ``reducer``; called once per distinct tensor of a step."""
        ...


class Writer(Protocol):
    """Stores the entries of one step of one rank."""

    def write(self, batch: Batch) -> None:
        """Append entries, in execution order. When it returns, the files are valid and hold them."""
        ...

    def close(self) -> None:
        """Finish the files; called once."""
        ...


@runtime_checkable
class EndingWriter(Protocol):
    """A `Writer` that says in its files how the recording ended, which keeps half a step from looking whole."""

    def end(self, ending: Ending) -> None:
        """Write the mark behind everything else; ``EARLY`` without a reason takes an earlier mark back.

        Called after each window, at the end of the step, and before a further window begins. A ``write`` that follows
        takes the mark back, too.

        Args:
            ending: What is known; how many calls have been written is the writer's to say.

        Raises:
            StoreError: it cannot be written; the files are then as they were, without a mark.
        """
        ...


class WriterFactory(Protocol):
    """A format that runs can be stored in."""

    @property
    def name(self) -> str:
        """Value of the setting ``writer`` that selects it."""
        ...

    def check(self) -> None:
        """Raise if this format cannot be written here; called when a session is made, long before the first step.

        Raises:
            PluginError: something that it needs is not installed; the message says how to install it.
        """
        ...

    def open(self, directory: Path, header: RunHeader) -> Writer:
        """Begin a dump in ``directory``, which exists; replaces one that is already there.

        Raises:
            StoreError: a file cannot be created.
        """
        ...


class TensorSource(Protocol):
    """A stored tensor whose elements are read when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""
        ...

    @property
    def dtype(self) -> str:
        """What it was stored as, without a framework's name, for example ``bfloat16``; ``text`` if it is no numbers."""
        ...

    def chunks(self, num_elements: int) -> Iterator[NDArray[Any]]:
        """Yield the elements in C order, as vectors of at most ``num_elements``; can be called more than once.

        bfloat16 and float8 are widened to float32, which holds them exactly. An empty tensor yields no elements.

        Raises:
            DumpError: the tensor cannot be read, or not to its end.
        """
        ...


class Dump(Protocol):
    """A dump that has been read: the columns that compare works on, and what belongs to them.

    ``frame`` has one row per value, in execution order, with the columns of `msprobe_core.store.frame.COLUMNS`.
    """

    @property
    def path(self) -> Path:
        """The file or directory that was read."""
        ...

    @property
    def header(self) -> RunHeader:
        """Task, level and framework."""
        ...

    @property
    def stacks(self) -> Mapping[str, Sequence[str]]:
        """Frames by entry name, innermost first; empty if none were kept."""
        ...

    @property
    def parents(self) -> Mapping[str, str | None]:
        """Enclosing call by entry name; empty if the nesting was not kept."""
        ...

    def open_tensor(self, file_name: str) -> TensorSource:
        """Return a stored tensor; its elements are read when they are asked for.

        Args:
            file_name: As the column ``file_name`` has it.

        Raises:
            DumpError: it is missing, damaged, no tensor, or lies outside of the dump.
        """
        ...

    @property
    def frame(self) -> pl.DataFrame:
        """One row per value."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What the reader had to do to read it, for people: for example how much it recovered."""
        ...


@runtime_checkable
class MarkedDump(Protocol):
    """A `Dump` that knows whether it holds all of its step; others are judged as if they did."""

    @property
    def ending(self) -> Ending:
        """How the recording ended."""
        ...


class Reader(Protocol):
    """A format that dumps can be read from."""

    @property
    def name(self) -> str:
        """Name of the format."""
        ...

    def recognises(self, path: Path) -> bool:
        """Whether ``path``, a file or a rank's directory, looks like this format; must not raise."""
        ...

    def read(self, path: Path) -> Dump:
        """Read it.

        Raises:
            DumpError: the file is missing, truncated beyond recovery, or something else.
        """
        ...


class Executor(Protocol):
    """A place where units of work run, for example the comparison of one rank of one step."""

    @property
    def name(self) -> str:
        """Value of ``--executor`` that selects it."""
        ...

    def check(self, options: ExecutorOptions) -> None:
        """Raise if nothing can be run here; called before any work is done.

        Raises:
            PluginError: something that it needs is missing; the message says what to do.
        """
        ...

    def run(
        self, function: Callable[[_T], _R], tasks: Sequence[_T], options: ExecutorOptions
    ) -> Iterator[tuple[int, _R | TaskLost]]:
        """Yield number and result of each task, in any order, as they are finished.

        Closing the iterator ends what is still under way.

        Args:
            function: At the top of a module, so that it can be found again elsewhere; raises nothing.
            tasks: Can be pickled, and so can what ``function`` returns.
            options: How.
        """
        ...


class Metric(Protocol):
    """A column of one's own in the table of compared tensors."""

    @property
    def name(self) -> str:
        """Title of the column."""
        ...

    def compare(self, target: NDArray[Any], golden: NDArray[Any]) -> float | int | str:
        """Return the cell of one pair. May be called by several threads at once.

        Args:
            target: In float32 if it was stored in no wider float, else in float64 or complex128. NaN and Inf are as
                they were stored.
            golden: Likewise, with as many elements; sizes of 1 may be missing in either shape.

        Raises:
            Exception: of any kind: the cell then is ``unsupported``, and a note says why.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ModuleMap:
    """What a backend of training calls modules that a serving engine has too, and which of them the engine fuses.

    Attributes:
        name: The backend, a value of ``msprobe compare --consistent_check --backend``.
        segments: By a part of a module's path, what the engine calls it: ``{"self_attention": "self_attn"}``.
        wrappers: Parts of paths that stand for nothing, such as ``_fsdp_wrapped_module``.
        fused: By the last part of the path of a module of the engine, those that it is made of, in their order:
            ``{"gate_up_proj": ("gate_proj", "up_proj")}``.
        reordered: Modules, by the last part of the engine's path, whose elements lie in another order in training: of
            these, statistics are compared alone.
        merges_heads: Whether outputs of training may have heads and their size in two dimensions, where the engine has
            one.
    """

    name: str
    segments: Mapping[str, str] = field(default_factory=dict[str, str])
    wrappers: Sequence[str] = ()
    fused: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    reordered: Sequence[str] = ()
    merges_heads: bool = False


@dataclass(frozen=True, kw_only=True)
class ApiMap:
    """What a framework calls things, in canonical names, so that dumps of two frameworks can be compared.

    Canonical names are those of PyTorch. What a map does not mention has its canonical name already. Between two
    frameworks, spellings of one operation are one: ``Torch.add``, ``Tensor.add_`` and ``Tensor.__add__`` are ``add``.

    Attributes:
        name: The framework, as the field ``framework`` of a dump has it.
        apis: Canonical name by own name, both with prefix and without index: ``{"Functional.dense":
            "Functional.linear"}``. ``Primitive.MatMul`` stands for ``Primitive.matmul.MatMul``, whatever is in between.
        prefixes: Canonical prefix by own prefix, for modules and for APIs that ``apis`` does not mention:
            ``{"Mint": "Torch", "Cell": "Module"}``.
        module_types: Canonical class by own class: ``{"Dense": "Linear"}``. Modules are paired by their path; classes
            tell whether two that are paired are of one kind.
        parameters: By own class of the module, the canonical name by a parameter's own name: ``{"LayerNorm": {"gamma":
            "weight"}}``; those of the class ``""`` are for all classes.
        arguments: By own name of the API, or by operation, the canonical place of an argument by its own place, each a
            position or a keyword: ``{"Functional.gather": {"1": "2", "2": "1", "axis": "1"}}``. Positions are canonical
            where PyTorch takes the argument by position too. ``"*"`` is the position from which on a list stands for
            the rest, as in ``x.reshape((2, 3))``. Gradients of arguments follow.
        buffers: Canonical names of parameters that other frameworks may keep without recording them.
        unit_dimensions: By own class, the parameters that are stored with further dimensions of size 1.
        inexact: Functions that the framework approximates by more than a digit or two, by the canonical name of the
            operation in lower case without ``_``: up to which magnitude of the argument they are off by no more than
            how much, ascending. An absolute error of what is bounded, a relative one of exponentials.
    """

    name: str
    apis: Mapping[str, str] = field(default_factory=dict[str, str])
    prefixes: Mapping[str, str] = field(default_factory=dict[str, str])
    module_types: Mapping[str, str] = field(default_factory=dict[str, str])
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    arguments: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    buffers: Sequence[str] = ()
    unit_dimensions: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    inexact: Mapping[str, Sequence[tuple[float, float]]] = field(
        default_factory=dict[str, Sequence[tuple[float, float]]]
    )


@dataclass(frozen=True)
class TrainerStages:
    """The stages of a trainer's step, which are recorded one by one; see `msprobe_core.capture.stages`.

    Attributes:
        name: Of the trainer, for example ``verl``.
        stages: What each stage holds, in a few words, by name; in the order in which they run. A name is a directory
            of the run.
    """

    name: str
    stages: Mapping[str, str]


class HookSpecs:
    """The hooks. A plugin implements those it wants, as functions of its entry point's module."""

    @hookspec
    def msprobe_register_frameworks(self) -> Sequence[FrameworkOffer]:  # pyright: ignore[reportReturnType]
        """Offer training frameworks.

        Called: once, when a debugger is constructed or a command needs a framework, on the calling thread.
        Cost: start-up. Neither the hook nor its module may import the framework: ``load`` does, when it is needed.
        Returns: offers; each ``name`` appears in dumps as the field ``framework``.
        Order: none. Of two plugins that offer one name the later is left out, with a warning that names both.
        Errors: any exception disables the plugin, with a warning that names it.
        Since: 0.1.
        """

    @hookspec
    def msprobe_register_processors(self) -> Sequence[Processor]:  # pyright: ignore[reportReturnType]
        """Offer ways to reduce a tensor to what is kept of it.

        Called: once, when a session opens, on the thread that called ``start``.
        Cost: start-up; the returned objects are then called for every selected tensor, so they
            enqueue work on the tensor's device and never wait for it.
        Returns: `Processor` objects; each ``name`` is a value of ``summary_mode``.
        Order: none. Of two plugins that offer one name the later is left out, with a warning that names both.
        Errors: any exception disables the plugin, with a warning that names it.
        Since: 0.1.
        """

    @hookspec
    def msprobe_register_writers(self) -> Sequence[WriterFactory]:  # pyright: ignore[reportReturnType]
        """Offer formats that runs can be stored in.

        Called: once, when a session opens, on the thread that called ``start``.
        Cost: start-up; writers then work on the session's background thread.
        Returns: `WriterFactory` objects; each ``name`` is a value of the setting ``writer``.
        Order: none. Of two plugins that offer one name the later is left out, with a warning that names both.
        Errors: any exception disables the plugin, with a warning that names it.
        Since: 0.1.
        """

    @hookspec
    def msprobe_register_readers(self) -> Sequence[Reader]:  # pyright: ignore[reportReturnType]
        """Offer formats that dumps can be read from.

        Called: once, when a command opens its first dump, on the main thread.
        Cost: start-up; must not import a framework, because dumps are read where none is installed.
        Returns: `Reader` objects. The first that recognises a path reads it.
        Order: plugins of third parties before the core's own.
        Errors: any exception disables the plugin, with a warning that names it.
        Since: 0.1.
        """

    @hookspec
    def msprobe_register_metrics(self) -> Sequence[Metric]:  # pyright: ignore[reportReturnType]
        """Offer columns for the table of compared tensors.

        Called: once for each pair of dumps of whole tensors, before the first tensor is read.
        Cost: each pair of tensors is read once more, and held in memory whole; pairs of more than 1 GiB are left out.
        Returns: `Metric` objects; each ``name`` is the title of a column, behind the core's own.
        Order: that of the plugins. Of two plugins that offer one name the later is left out, with a warning that names
            both; the name of a column of the core's is an error.
        Errors: any exception disables the plugin, with a warning that names it.
        Since: 0.1.
        """

    @hookspec
    def msprobe_register_api_maps(self) -> Sequence[ApiMap]:  # pyright: ignore[reportReturnType]
        """Offer canonical names for what a framework calls its APIs, module classes, parameters and arguments.

        Called: when dumps whose names need translating are compared: of two frameworks, or with ``-am``.
        Cost: start-up; must not import a framework, because dumps are compared where none is installed.
        Returns: `ApiMap` objects; each ``name`` is a framework as dumps name it. One plugin may know several.
        Order: none. Of two plugins that offer one name the later is left out, with a warning that names both.
        Errors: any exception disables the plugin, with a warning that names it.
        Since: 0.1.
        """

    @hookspec
    def msprobe_register_module_maps(self) -> Sequence[ModuleMap]:  # pyright: ignore[reportReturnType]
        """Offer what a backend of training calls modules, for comparing it with a serving engine.

        Called: when ``msprobe compare --consistent_check`` is given.
        Cost: start-up; must not import a framework, because dumps are compared where none is installed.
        Returns: `ModuleMap` objects; each ``name`` is a value of ``--backend``.
        Order: none. Of two plugins that offer one name the later is left out, with a warning that names both.
        Errors: any exception disables the plugin, with a warning that names it.
        Since: 0.1.
        """

    @hookspec
    def msprobe_register_commands(self) -> Sequence[click.Command]:  # pyright: ignore[reportReturnType]
        """Offer subcommands of ``msprobe``.

        Called: once, when the command line starts, on the main thread.
        Cost: start-up of every command; import what a command needs inside it.
        Returns: `click.Command` objects; each ``name`` is what the user types.
        Order: as listed by ``msprobe --help``: sorted by name. A name that two plugins offer is an error.
        Errors: any exception disables the plugin, with a warning that names it.
        Since: 0.1.
        """

    @hookspec
    def msprobe_register_executors(self) -> Sequence[Executor]:  # pyright: ignore[reportReturnType]
        """Offer places where units of work run.

        Called: once, when a command has work to distribute, on the main thread.
        Cost: start-up; import what an executor needs in its ``check`` and ``run``.
        Returns: `Executor` objects; each ``name`` is a value of ``--executor``.
        Order: none. Of two plugins that offer one name the later is left out, with a warning that names both.
        Errors: any exception disables the plugin, with a warning that names it.
        Since: 0.1.
        """

    @hookspec
    def msprobe_register_stages(self) -> Sequence[TrainerStages]:  # pyright: ignore[reportReturnType]
        """Offer the stages of a trainer whose steps have several.

        Called: once in a process, when the trainer's plugin begins to record, or a command lists the stages.
        Cost: start-up; must not import the trainer.
        Returns: `TrainerStages` objects; by ``name`` the trainer's plugin, and a user's configuration, find them.
        Order: none. Of two plugins that offer one name the later is left out, with a warning that names both.
        Errors: any exception disables the plugin, with a warning that names it.
        Since: 0.1.
        """
