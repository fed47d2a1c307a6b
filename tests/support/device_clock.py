"""When things happen on a simulated device: streams, events, copies that arrive late, and when the host waits."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Wait(NamedTuple):
    """The host has waited for the device."""

    reason: str
    thread: str
    stack: str


class _Copy(NamedTuple):
    """A copy to the host that is on its way."""

    due: int
    target: Tensor
    values: Tensor


class Clock:
    """The time of the device, which passes only when a test says so.

    Attributes:
        lag: How much later work is done than it is enqueued.
        waits: When the host has waited.
        unordered: Operators that read what another stream has written, with nothing between that orders them.
        captured: Operators of the graph that is captured; ``None`` if none is.
    """

    def __init__(self) -> None:
        self.lag, self._now = 0, 0
        self.waits: list[Wait] = []
        self.unordered: list[str] = []
        self.captured: list[str] | None = None
        self._copies: list[_Copy] = []
        self._lock = threading.RLock()
        self.default_stream = Stream(self)
        self._streams = [self.default_stream]
        self._current = threading.local()
        self._written: dict[int, tuple[Stream, int]] = {}
        self.known: Mapping[Stream, int] = {}  # to be done, before all that the host enqueues from now on

    @property
    def now(self) -> int:
        """The time."""
        return self._now

    @now.setter
    def now(self, time: int) -> None:
        self._now = time
        self._deliver(time)

    # --- the host ---------------------------------------------------------------------------------------------------

    def wait(self, reason: str, after: Mapping[Stream, int] | None = None) -> None:
        """Have the host wait for work: by default, that of the current stream so far."""
        self.refuse_in_capture(reason)
        self.waits.append(Wait(reason, threading.current_thread().name, "".join(traceback.format_stack(limit=14)[:-1])))
        self._deliver(None)
        self.learn(self.current_stream().snapshot() if after is None else after)

    def synchronize(self) -> None:
        """Have the host wait for all work on all streams."""
        self.wait("synchronize", {stream: stream.num_enqueued for stream in self._streams})

    @contextmanager
    def capture(self) -> Generator[list[str], None, None]:
        """Note the operators of a block, as ``torch.cuda.graph`` does; their results are there nevertheless."""
        self.captured = []
        try:
            yield self.captured
        finally:
            self.captured = None

    def refuse_in_capture(self, what: str) -> None:
        """Fail as a device does for what is no work that could be repeated."""
        if self.captured is not None:
            raise RuntimeError(f"{what}: operation not permitted when stream is capturing")

    def learn(self, done: Mapping[Stream, int]) -> None:
        """Let the host know that work is done: what it enqueues from now on comes after it."""
        self.known = {
            **self.known,
            **{stream: max(moment, self.known.get(stream, 0)) for stream, moment in done.items()},
        }

    def send(self, target: Tensor) -> None:
        """Take the elements of a tensor on the host back until they arrive."""
        with self._lock, torch._C.DisableTorchFunction(), torch.no_grad():
            values = target.clone()
            # Every bit is set: not a number, and an implausible one where all bits are numbers.
            target.copy_(torch.full((target.nbytes,), 255, dtype=torch.uint8).view(target.dtype).view(target.shape))
            self._copies.append(_Copy(self._now + self.lag, target, values))
        self._deliver(self._now)

    def _deliver(self, time: int | None) -> None:
        with self._lock, torch._C.DisableTorchFunction(), torch.no_grad():
            arrived = [copy for copy in self._copies if time is None or copy.due <= time]
            self._copies = [copy for copy in self._copies if not (time is None or copy.due <= time)]
            for copy in arrived:
                copy.target.copy_(copy.values)

    # --- streams ----------------------------------------------------------------------------------------------------

    def new_stream(self) -> Stream:
        """Return a further stream."""
        self._streams.append(Stream(self))
        return self._streams[-1]

    def current_stream(self) -> Stream:
        """Return the stream that this thread enqueues into."""
        return getattr(self._current, "stream", self.default_stream)

    @contextmanager
    def on(self, stream: Stream) -> Generator[None, None, None]:
        """Enqueue into a stream for a block."""
        before, self._current.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._current.stream = before

    def enqueue(self, operator: str, read: Iterable[Tensor], written: Iterable[Tensor]) -> None:
        """Note which stream runs an operator, and whether what it reads is there by then."""
        if self.captured is not None:
            self.captured.append(operator)
        if len(self._streams) == 1:
            return
        stream = self.current_stream()
        stream.enqueue(self.known)
        for tensor in read:
            writer, moment = self._written.get(_memory_of(tensor), (stream, 0))
            if writer is not stream and stream.seen.get(writer, 0) < moment:
                self.unordered.append(operator)
        self.write(written)

    def write(self, tensors: Iterable[Tensor]) -> None:
        """Note what the operator that was enqueued last has written."""
        if len(self._streams) > 1:
            stream = self.current_stream()
            self._written.update((_memory_of(tensor), (stream, stream.num_enqueued)) for tensor in tensors)

    def forget(self, memory: int) -> None:
        """Forget who has written to memory that is free again."""
        self._written.pop(memory, None)


class Stream:
    """A queue of work, as ``torch.cuda.Stream``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.num_enqueued = 0
        self.seen: dict[Stream, int] = {}
        """How much of the work of other streams is done before the work that is enqueued next."""

    def enqueue(self, known: Mapping[Stream, int]) -> None:
        """Add a piece of work."""
        self.num_enqueued += 1
        self._see(known)

    def snapshot(self) -> dict[Stream, int]:
        """Return what is done once all work so far is."""
        return {**self.seen, self: self.num_enqueued}

    def wait_stream(self, stream: Stream) -> None:
        """Do later work after that of another stream, so far."""
        self._see(stream.snapshot())

    def wait_event(self, event: Event) -> None:
        """Do later work after an event."""
        self._see(event.after)

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that happens when all work so far is done."""
        event = event or Event(self._clock)
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Have the host wait."""
        self._clock.wait("Stream.synchronize", self.snapshot())

    def _see(self, seen: Mapping[Stream, int]) -> None:
        for stream, moment in seen.items():
            self.seen[stream] = max(moment, self.seen.get(stream, 0))


class Event:
    """A moment in a stream, as ``torch.cuda.Event``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = 0
        self.after: dict[Stream, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        """Happen when all work so far of a stream is done."""
        self.after = (stream or self._clock.current_stream()).snapshot()
        self._due = self._clock.now + self._clock.lag

    def query(self) -> bool:
        """Whether it has happened."""
        self._clock.refuse_in_capture("Event.query")
        has_happened = self._clock.now >= self._due
        if has_happened:
            self._clock.learn(self.after)
        return has_happened

    def synchronize(self) -> None:
        """Have the host wait, unless it has happened."""
        if not self.query():
            self._clock.wait("Event.synchronize", self.after)

    def wait(self, stream: Stream | None = None) -> None:
        """Have a stream wait."""
        (stream or self._clock.current_stream()).wait_event(self)


def _memory_of(tensor: Any) -> int:
    return tensor.held.untyped_storage()._cdata
