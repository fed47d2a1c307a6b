"""The flight recorder for MindSpore's dynamic graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Tensor

from msprobe.mindspore._cells import PREFIX
from msprobe.mindspore._device import FLOATING, is_host
from msprobe.mindspore._framework import MindSporeFramework
from msprobe.mindspore._reduce import MindSporeReducer
from msprobe.mindspore.graph.attachment import check_calls
from msprobe_core.plugin import Digest, Framework, Stats
from msprobe_core.recording import FlightRecorder as AnyFlightRecorder
from msprobe_core.recording import Tape


class MindSporeTape:
    """See `msprobe_core.capture.ring_recorder.Tape`: statistics, of which the extremes are taken.

    Those on a device arrive with `fetch`, which waits for it.
    """

    def __init__(self, *, defers: bool) -> None:
        """Begin empty.

        Args:
            defers: Whether tensors are on a device.
        """
        self._reducer = MindSporeReducer(defers=defers)
        self._digests: list[Digest] = []
        self._is_sealed = False

    def put(self, tensor: Any) -> int | None:
        """Reduce a tensor, or enqueue it; ``None`` for one without floating-point elements that can be read."""
        if self._is_sealed or not isinstance(tensor, Tensor) or tensor.dtype not in FLOATING:
            return None
        if not tensor.size:
            return None
        digest = Digest()
        self._reducer.statistics(tensor, digest)
        if digest.stats is not None and digest.stats.max is None:
            return None
        self._digests.append(digest)
        return len(self._digests) - 1

    def seal(self) -> None:
        """Take no more tensors."""
        self._is_sealed = True

    def fetch(self) -> None:
        """Wait for what is on a device."""
        self._reducer.collect()

    def extremes(self, *, waits: bool) -> Sequence[tuple[float, float]] | None:
        """Return maximum and minimum by place, if they have been fetched."""
        if waits:
            self.fetch()
        if not self._reducer.is_complete:
            return None
        return [_extremes_of(digest.stats) for digest in self._digests]


def _extremes_of(stats: Stats | None) -> tuple[float, float]:
    if stats is None or stats.max is None or stats.min is None:
        return 0.0, 0.0
    return stats.max, stats.min


class FlightRecorder(AnyFlightRecorder):
    """See `msprobe_core.capture.flight_recorder.FlightRecorder`.

    Gradients of weights are those of each backward pass, as MindSpore accumulates none.
    """

    prefix = PREFIX

    def _new_framework(self) -> Framework:
        return MindSporeFramework()

    def _new_tape(self) -> Tape:
        return MindSporeTape(defers=not is_host())

    def _attach(self, model: Any, *, has_weights: bool) -> Callable[[], None]:
        check_calls("the flight recorder follows calls of Cells")
        return super()._attach(model, has_weights=has_weights)

    def step(self) -> None:
        """End a step: call it after the optimizer's step. On a device, this waits until the step has been computed."""
        with self._framework.quiet(self._ring.note_failure):
            tape = self._ring.step.tape
            assert isinstance(tape, MindSporeTape)
            tape.fetch()
        super().step()
