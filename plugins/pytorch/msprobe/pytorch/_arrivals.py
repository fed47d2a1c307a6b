"""Results on their way from a device to the host, which does not wait for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

_logger = logging.getLogger("msprobe")


class Queue(NamedTuple):
    """Where work is enqueued: a device and one of its streams, ``None`` if it has none."""

    device: torch.device
    stream: Any


def queue_of(device: torch.device) -> Queue:
    """Return the queue into which this thread's work on a device goes."""
    streams: Any = _streams_of(device)
    return Queue(device, streams.current_stream(device) if hasattr(streams, "current_stream") else None)


def on(queue: Queue) -> AbstractContextManager[Any]:
    """Return what enqueues the work of a block into a queue."""
    return nullcontext() if queue.stream is None else _streams_of(queue.device).stream(queue.stream)


def _streams_of(device: torch.device) -> Any:
    """Return what has the streams of a device: ``torch.cuda``, and what other devices have like it."""
    return None if device.type == "cpu" else getattr(torch, device.type, None)


def is_captured(device: torch.device) -> bool:
    """Whether what this thread enqueues becomes part of a graph (``torch.cuda.graph``) instead of being done.

    Reductions there would be repeated by every replay, into memory of the graph, and a wait for them would end the
    capture of the program with an error.
    """
    ask: Callable[[], bool] | None = getattr(_streams_of(device), "is_current_stream_capturing", None)
    if ask is None or not ask():
        return False
    _say_captured()
    return True


@cache
def _say_captured() -> None:
    _logger.warning(
        "calls are recorded without values while a graph is captured; replays of a graph call nothing that could be "
        "recorded"
    )


class HostCopy:
    """A tensor whose elements a device copies to the host as soon as it has computed them."""

    def __init__(self, values: Tensor, *, starts: bool = True) -> None:
        """Enqueue the copy, if the device has events and memory can be pinned; else keep the tensor.

        Args:
            values: On a device, or on the host.
            starts: Whether to copy before the elements are asked for.
        """
        self._values = values
        self._event: Any = None
        streams = _streams_of(values.device)
        if not starts or not hasattr(streams, "Event"):
            return
        try:
            host = pinned_like(values)
        except RuntimeError:  # the device has no such memory, or there is no more of it
            return
        host.copy_(values, non_blocking=True)
        event = streams.Event()
        event.record(streams.current_stream(values.device))
        self._values, self._event = host, event

    @property
    def is_watched(self) -> bool:
        """Whether it is known when the elements have arrived; `values` waits for the device otherwise."""
        return self._event is not None

    def has_arrived(self) -> bool:
        """Whether the elements are there, as far as that is known."""
        return self._event is None or bool(self._event.query())

    def values(self) -> Tensor:
        """Wait for the elements, and return them."""
        if self._event is not None:
            self._event.synchronize()
        return self._values


def pinned_like(values: Tensor) -> Tensor:
    """Return memory of the host to which a device can copy by itself.

    Raises:
        RuntimeError: there is none.
    """
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True)


def note_stream(copy: Tensor) -> Tensor:
    """Note on a copy on a device when its elements are there, for a thread that enqueues into another stream.

    Each thread begins with the device's default stream, which runs ahead of the stream of a program that has its own.
    """
    streams = _streams_of(copy.device)
    if hasattr(streams, "Event"):
        event = streams.Event()
        event.record(streams.current_stream(copy.device))
        vars(copy)[_COPIED] = event
    return copy


def wait_for(copy: Tensor) -> Tensor:
    """Wait until the elements of a copy are there."""
    event: Any = vars(copy).pop(_COPIED, None)  # what a tensor has of its own would be saved with it
    if event is not None:
        event.synchronize()
    return copy


_COPIED = "_msprobe_copied"


class ArrivingNumbers:
    """0-d tensors that are copied together; see `msprobe_core.plugin.ArrivingNumbers`."""

    def __init__(self, numbers: Sequence[Tensor], *, copies: bool = True) -> None:
        """Enqueue a copy for each device.

        Args:
            numbers: On any devices.
            copies: Whether to copy before they are asked for.
        """
        self._size = len(numbers)
        by_device: dict[torch.device, list[int]] = {}
        for place, number in enumerate(numbers):
            by_device.setdefault(number.device, []).append(place)
        self._copies = [
            (places, HostCopy(torch.stack([numbers[place] for place in places]), starts=copies))
            for places in by_device.values()
        ]
        self.is_watched = all(
            copy.is_watched for device, (_, copy) in zip(by_device, self._copies, strict=True) if device.type != "cpu"
        )

    def has_arrived(self) -> bool:
        """Whether all are there, as far as that is known."""
        return all(copy.has_arrived() for _, copy in self._copies)

    def floats(self) -> Sequence[float]:
        """Wait for all, and return them in their order."""
        found = [0.0] * self._size
        for places, copy in self._copies:
            values: list[float] = copy.values().tolist()
            for place, value in zip(places, values, strict=True):
                found[place] = value
        return found
