"""What a framework plugin implements: a framework, its arithmetic on tensors, and what it attaches to models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from msprobe_core.model import Argument, Digest, Level, TensorContent, TensorMeta
from msprobe_core.protocols.recording import CallRecorder


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

    @property
    def aten(self) -> bool:
        """Whether operators below the APIs are recorded too; true only for an `OperatorFramework`."""
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
