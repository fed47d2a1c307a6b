"""One recorded call: its name, parent and micro-step, its entries, and the gradients that it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msprobe_core import names
from msprobe_core.model import Entry, GradientSlot, Phase, Value


class MicroSteps:
    """The current micro-steps of a thread, in forward and backward."""

    __slots__ = ("in_backward", "in_forward", "num_begun", "step")

    def __init__(self, step: int) -> None:
        self.step = step
        self.num_begun = 0  # forwards of outermost modules, outside of backward passes
        self.in_forward: int | None = None
        self.in_backward: int | None = None


class Slot(GradientSlot, gc=False):
    """A gradient slot that knows its position in the entry."""

    category: str = ""
    path: str = ""


class RecordedCall:
    """A call that is being recorded: implements `msprobe_core.plugin.Call`."""

    __slots__ = (
        "backward", "backward_name", "covers_backward", "covers_forward", "encloses", "entry", "index",
        "is_in_backward", "is_recomputed", "key", "last_pass", "micro_step", "name", "num_later", "parent", "stem",
        "step", "wants_forward", "wants_gradients",
    )  # fmt: skip

    def __init__(self, name: str, key: str, index: int, parent: RecordedCall | None, step: int) -> None:
        self.name = name
        self.key = key
        self.index = index
        self.parent = parent
        self.step = step
        self.stem: str | None = None
        self.entry: Entry | None = None
        self.backward: BackwardEntry | None = None
        self.num_later = 0  # number of further backward passes through the call
        self.last_pass: int | None = None  # number of the last of these
        self.backward_name = ""
        self.wants_forward = False
        self.wants_gradients = False
        self.covers_forward = False
        self.covers_backward = False
        self.encloses = False  # other calls
        self.micro_step: int | None = None
        self.is_recomputed = False
        self.is_in_backward = False  # an operator that computes gradients of ``parent``

    def name_in_pass(self, number: int) -> str:
        """Return the name of the call's backward entry in a later pass."""
        if not self.key:  # not a call but an owner, see `CallTree.owner`
            return self.backward_name
        stem, phase = names.stem_in_pass(self.key, number), Phase.BACKWARD.value
        return f"{stem}.{self.index}.{phase}" if self.stem is None else f"{stem}.{phase}.{self.index}"


PASSED_OVER = RecordedCall("", "", 0, None, -1)
"""Placeholder for calls that are neither recorded nor numbered; it wants nothing and belongs to no step."""

_Places = tuple[list[Value] | None, list[Value] | None, dict[str, Value] | None]
"""Inputs, outputs and keyword outputs of a backward entry."""

_NO_SLOTS: dict[int, Slot] = {}


class BackwardEntry:
    """The backward entry of one call in one pass, while its gradients arrive."""

    __slots__ = (
        "around", "backward_pass", "begun", "begun_after", "encloses", "entry", "last_tick", "num_expected",
        "num_filled", "place", "places", "slots", "written",
    )  # fmt: skip

    def __init__(self, entry: Entry, around: RecordedCall | None) -> None:
        self.entry = entry
        self.around = around  # the call that encloses this one
        self.place: MicroSteps | None = None  # of the thread that recorded the first gradient
        self.begun_after = 0  # number of forwards that this thread had begun then
        self.encloses = False  # the backward entries of other calls
        self.num_expected = 0
        self.num_filled = 0
        self.last_tick = 0
        self.begun = False
        self.written = False
        self.backward_pass: int | None = None  # as the framework numbers them
        self.slots: dict[int, Slot] = _NO_SLOTS  # in a later pass: its slot for each slot of the first
        self.places: _Places | None = None  # those of the entry before empty ones were dropped

    def begin(self, place: MicroSteps) -> None:
        """Note which thread runs the backward pass, and when it began."""
        self.begun = True
        self.place, self.begun_after = place, place.num_begun

    def take_places_of(self, first: BackwardEntry) -> None:
        """Expect the gradients that the first pass expected, in new slots."""
        self.num_expected, self.encloses, self.slots = first.num_expected, first.encloses, {}
        own, entry = first.entry, self.entry
        inputs, outputs, output_kwargs = first.places or (own.inputs, own.outputs, own.output_kwargs)
        entry.inputs, entry.outputs = _emptied(inputs, self.slots), _emptied(outputs, self.slots)
        entry.output_kwargs = _emptied(output_kwargs, self.slots)

    @property
    def is_complete(self) -> bool:
        """Whether all gradients have arrived, and all inner calls whose entries have to precede this one have run."""
        if self.num_filled >= self.num_expected:
            return not self.encloses or self._is_pass_over
        # Without pass numbers, another pass may fill the slots that this one left empty.
        return self._is_pass_over and self.backward_pass != -1

    @property
    def _is_pass_over(self) -> bool:
        # A thread that begins a forward outside of all backward passes has finished the passes that it ran.
        return self.place is not None and self.place.num_begun > self.begun_after


def name_of(call: RecordedCall | None) -> str | None:
    """Return the name of a call's forward entry."""
    return call.name if call is not None else None


def backward_name_of(call: RecordedCall | None) -> str | None:
    """Return the name of a call's backward entry."""
    return call.backward_name if call is not None else None


def as_results(output: Any) -> Sequence[Any]:
    """Return the results of a call as a sequence: a plain tuple or list as it is, anything else as its only item."""
    return output if type(output) in (tuple, list) else (output,)


def _emptied(value: Any, slots: dict[int, Slot]) -> Any:
    """Return a tree of gradients with new, empty slots; ``slots`` maps the id of each old slot to its new one."""
    if isinstance(value, Slot):
        slot = slots[id(value)] = Slot(category=value.category, path=value.path)
        return slot
    if isinstance(value, list):
        return [_emptied(item, slots) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _emptied(item, slots) for key, item in cast("dict[str, Any]", value).items()}
    return value
