"""What a framework can do besides: optional protocols, each looked for with ``isinstance`` where it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msprobe_core.model import Digest, KernelOptions, Perturbation, ReplayCall, Replayed, Site, TensorContent
from msprobe_core.protocols.framework import AttachOptions, NamedModel, Removable


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
class Fp8Reducer(Protocol):
    """What a `Reducer` may offer besides: the summary mode ``fp8`` needs it."""

    def fp8(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.fp8``, now or at the next ``collect``: what `msprobe_core.fingerprint.fp8` computes.

        A tensor that is not floating point, or has no elements, has none.
        """
        ...


@runtime_checkable
class OperatorFramework(Protocol):
    """What a framework may offer besides: the setting ``aten`` needs it."""

    @property
    def sees_operators(self) -> bool:
        """Whether operators that run below its APIs can be seen."""
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
class KernelChecker(Protocol):
    """What a `KernelDumper` may offer besides: it says what it cannot dump, also where ``dump_enable`` is false."""

    def check_kernels(self, options: KernelOptions) -> None:
        """Refuse what cannot be dumped; called when the debugger is made, before ``dump_kernels``.

        Raises:
            ConfigError: it cannot dump that.
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
