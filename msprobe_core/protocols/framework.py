"""What a framework plugin implements: a framework, its tensor arithmetic, and its interception of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from msprobe_core.model import Argument, Digest, Level, TensorContent, TensorMeta
from msprobe_core.protocols.recording import CallRecorder


class Reducer(Protocol):
    """Computes digests of tensors on the tensors' own device.

    Every reduction uses the tensor's current value, before later code can overwrite it, and never waits for a device.
    It fills in the digest immediately if the tensor is on the host; otherwise it enqueues work whose result ``collect``
    fetches. A tensor that cannot be read (meta, fake, sparse, …) leaves its digest unchanged.
    """

    def statistics(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.stats``, immediately or at the next ``collect``."""
        ...

    def checksum(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, immediately or at the next ``collect``: 8 hex digits.

        The CRC-32 of the contiguous bytes.
        """
        ...

    def xor(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, immediately or at the next ``collect``: ``0x`` and 16 hex digits.

        The exclusive or of the contiguous bytes' 64-bit little-endian words, the last one padded with zeros. It can be
        computed on the device. It does not detect words that swap positions.
        """
        ...

    def hash(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, immediately or at the next ``collect``: ``0x`` and 16 hex digits.

        The sum of `msprobe_core.fingerprint.hashing.hash_of`, computed on the tensor's device. It detects words that
        swap positions, and hashes of shards add up to that of the whole.
        """
        ...

    def sketch(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.sketch``, immediately or at the next ``collect``: what a `Sketcher` returns for the tensor.

        See `msprobe_core.fingerprint.sketch`. A tensor without elements, or with elements that are not numbers, has
        none.
        """
        ...

    @property
    def is_complete(self) -> bool:
        """Whether all digests are filled in, so that ``collect`` has nothing to wait for."""
        ...

    def collect(self) -> None:
        """Fetch all results in few transfers per device, and fill in their digests."""
        ...


class Removable(Protocol):
    """Something that is installed for a window."""

    def detach(self) -> None:
        """Remove everything that was installed; called once, also after an error. Later calls are not reported.

        Gradients of reported calls are still reported as they arrive, until ``release``.
        """
        ...

    def release(self) -> None:
        """Stop reporting gradients of parameters; called once, after ``detach``."""
        ...

    def settle(self) -> None:
        """Flush partial sums, for example of a gradient whose last contribution never arrived."""
        ...


class Attachment(Removable, Protocol):
    """The result of ``Framework.attach``."""

    def call(
        self, prefix: str, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call ``function`` and report it as an API, like calls that the plugin intercepts by itself.

        For functions that a user has registered; only at levels with APIs. A call inside another reported call is not
        reported. Returns what the function returns, and raises what it raises.
        """
        ...

    def is_compiling(self) -> bool:
        """Whether the framework is compiling the calling code, which must then see the original functions."""
        ...


class NamedModel(Protocol):
    """One model given to ``start``. ``name`` is empty, or its position if several were given."""

    @property
    def name(self) -> str:
        """First part of the path of all its modules."""
        ...

    @property
    def model(self) -> Any:
        """The framework's own object."""
        ...


class AttachOptions(Protocol):
    """What to intercept."""

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
        """Namespaces of custom operators that are recorded at every risk level."""
        ...

    @property
    def aten(self) -> bool:
        """Whether operators below the APIs are recorded too; true only for an `OperatorFramework`."""
        ...

    @property
    def inside_graphs(self) -> bool:
        """Whether to compile something into graphs, so that calls inside them are recorded too.

        It stays in a graph and makes it slower, so the training monitor does without.
        """
        ...


class Framework(Protocol):
    """A training framework, as far as the core needs it."""

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
        """Prefixes of file paths whose frames are left out of call stacks: those of the interception itself."""
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
        """Begin to report calls to ``recorder``. If it raises, nothing stays installed."""
        ...

    def quiet(self, on_failure: Callable[[str, Exception], None]) -> AbstractContextManager[None]:
        """Return a context manager for the probe's own work in the middle of the user's code.

        The framework's modes (autograd, autocast, tracing, …) are off inside. An exception ends the block, is passed to
        ``on_failure`` with its location, and is then suppressed.
        """
        ...

    def watch_gradient(self, tensor: Any, on_gradient: Callable[[Any], None]) -> Callable[[], None] | None:
        """Call ``on_gradient`` with the gradient with respect to this tensor, in each backward pass that computes it.

        The gradient itself is passed on unchanged. If the tensor is written to in place later, its gradient is still
        the one with respect to its current value.

        Returns: a function that removes the hook; ``None`` if the tensor requires no gradient.

        Raises:
            Exception: the gradient cannot be watched without changing the training; the message says why.
        """
        ...

    def narrow(self, tensor: Any, ranges: Mapping[int, tuple[int, int]]) -> Any:
        """Return the slice of ``tensor`` from begin to end in each dimension of ``ranges``; may be a view.

        ``None`` if there is no such slice, as for sparse or sharded tensors; those are recorded without values.
        """
        ...

    def snapshot(self, tensor: Any) -> Any:
        """Return a copy that later writes to ``tensor`` do not change. Enqueues the copy and does not wait.

        ``None`` if its elements cannot be copied, as those of a sparse tensor, which is then recorded without a file.
        """
        ...

    def content(self, snapshot: Any) -> TensorContent | None:
        """Return the elements of a snapshot on the host. May wait for a device. Runs on the writer's thread.

        ``None`` if they have no plain bytes; ``save`` then writes the snapshot.
        """
        ...

    def save(self, snapshot: Any, path: Path) -> None:
        """Write a snapshot to a new file, readable by its owner only. Runs on the writer's thread."""
        ...


@dataclass(frozen=True)
class FrameworkOffer:
    """A framework that a plugin supports, before the framework is imported.

    Attributes:
        name: Name in dumps and on the command line, for example ``pytorch``.
        package: The package that programs import to use it, for example ``torch``; identifies the framework of a
            process.
        load: Returns the `Framework`; may import the package, and raises what importing it raises.
        demo: A program for ``msprobe demo``; ``None`` if there is none. It trains a tiny model for one step, records
            that to the directory in its first argument, and prints the loss. With the argument ``--fault`` one layer
            of the model is wrong.
    """

    name: str
    package: str
    load: Callable[[], Framework]
    demo: Path | None = None
