"""Names and nesting of calls: indices, parents, and the micro-step of a call."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from msprobe_core.capture.recorded_call import MicroSteps, RecordedCall, backward_name_of, name_of
from msprobe_core.capture.step_record import StepRecord
from msprobe_core.model import Entry

MAX_PARENTS = 16384
"""Maximum number of parents kept for calls whose entries are not written yet."""


class CallTree:
    """Numbers the calls of a step and tracks which call encloses which.

    The stack of open module calls is per thread; for all other members the caller holds the record's lock.
    """

    __slots__ = (
        "_counts", "_local", "_num_roots", "_owners", "_record", "micro_step", "parents", "parents_in_pass",
        "tracks_parents", "undecided",
    )  # fmt: skip

    def __init__(self, record: StepRecord, *, tracks_parents: bool) -> None:
        """Begin without calls.

        Args:
            record: The state of the current step.
            tracks_parents: Whether the nesting of calls is recorded.
        """
        self._record = record
        self._local = threading.local()
        self.tracks_parents = tracks_parents
        self.reset()

    def reset(self) -> None:
        """Drop all calls; indices start at 0 again."""
        self.micro_step: int | None = None  # as the trainer counts; ``None``: calls of outermost modules are counted
        self._counts: dict[str, int] = {}
        self._num_roots: dict[str, int] = {}
        self._owners: dict[str, RecordedCall] = {}
        self.parents: dict[str, str | None] = {}  # not written yet
        self.undecided: set[str] = set()  # open calls, which `end` may still discard
        self.parents_in_pass: dict[str, str | None] = {}  # of calls in later passes, all of them

    # --- the stack of a thread --------------------------------------------------------------------------------

    def stack(self) -> list[RecordedCall]:
        """Return the open module calls of this thread, outermost first."""
        stack: list[RecordedCall] | None = getattr(self._local, "stack", None)
        if stack is None or self._local.step != self._record.number:
            stack = self._local.stack = []
            self._local.step = self._record.number
        return stack

    def innermost(self) -> RecordedCall | None:
        """Return the innermost module call that is open on this thread."""
        stack = self.stack()
        return stack[-1] if stack else None

    def leave(self, call: RecordedCall) -> None:
        """Remove a module call from the stack."""
        stack = self.stack()
        if call in stack:
            # An exception may have skipped the ends of calls inside this one.
            while stack.pop() is not call:
                pass

    def nesting(self) -> object:
        """Return the open module calls of this thread."""
        return tuple(self.stack())

    def nest_in(self, nesting: tuple[RecordedCall, ...]) -> None:
        """Nest calls that open on this thread inside the open calls of another thread."""
        self.stack()[:] = nesting

    def micro_steps(self) -> MicroSteps:
        """Return the current micro-steps of this thread."""
        place: MicroSteps | None = getattr(self._local, "micro_steps", None)
        if place is None or place.step != self._record.number:
            place = self._local.micro_steps = MicroSteps(self._record.number)
        return place

    # --- names ------------------------------------------------------------------------------------------------

    def new_call(self, key: str, parent: RecordedCall | None) -> RecordedCall:
        """Return the next call of an API or operator."""
        index = self._counts.get(key, 0)
        self._counts[key] = index + 1
        call = RecordedCall(f"{key}.{index}.forward", key, index, parent, self._record.number)
        call.backward_name = f"{key}.{index}.backward"
        return call

    def new_module_call(self, stem: str, parent: RecordedCall | None) -> RecordedCall:
        """Return the next call of a module."""
        index = self._counts.get(stem, 0)
        self._counts[stem] = index + 1
        call = RecordedCall(f"{stem}.forward.{index}", stem, index, parent, self._record.number)
        call.stem = stem
        call.backward_name = f"{stem}.backward.{index}"
        return call

    def owner(self, other: str | None) -> RecordedCall | None:
        """Return the owner of a call: the innermost open module call or, outside of all modules, ``other``."""
        stack = self.stack()
        if stack or other is None:
            return stack[-1] if stack else None
        owner = self._owners.get(other)
        if owner is None:
            owner = self._owners[other] = RecordedCall(other, "", 0, None, self._record.number)
            owner.backward_name = other
            self.parents.setdefault(other, None)
        return owner

    def place(self, call: RecordedCall, is_recomputed: bool) -> None:
        """Set the micro-step of a call, and whether it is a recompute."""
        place, parent = self.micro_steps(), call.parent
        call.is_recomputed = is_recomputed or (parent is not None and parent.is_recomputed)
        if parent is not None:
            parent.encloses = True
        if parent is not None and parent.key:
            call.micro_step = parent.micro_step
        elif call.is_recomputed:
            call.micro_step = place.in_backward
        elif call.stem is not None:
            # Use the index of the stem only for calls that are not recomputed: recomputed calls take indices too.
            roots = self._num_roots
            place.num_begun += 1
            counted = roots[call.stem] = roots.get(call.stem, -1) + 1
            # A submodule that the program calls twice in a micro-step is no second one, which only a trainer knows.
            call.micro_step = place.in_forward = counted if self.micro_step is None else self.micro_step
        else:
            call.micro_step = place.in_forward if self.micro_step is None else self.micro_step

    # --- parents ----------------------------------------------------------------------------------------------

    def end(self, call: RecordedCall, *, keep: bool) -> None:
        """Note that a call has ended; without ``keep`` it is discarded and its index is reused."""
        self.undecided.discard(call.name)
        if not keep:
            self.parents.pop(call.name, None)
            if self._counts[call.key] == call.index + 1:  # not if another thread has called it since
                self._counts[call.key] = call.index

    def take_parents(self, entries: Sequence[Entry]) -> dict[str, str | None]:
        """Return the parents of calls with these entries; if more than `MAX_PARENTS` remain, all that are certain."""
        waiting = self.parents
        parents = {entry.name: waiting.pop(entry.name) for entry in entries if entry.name in waiting}
        if len(waiting) > MAX_PARENTS:
            undecided = self.undecided
            parents |= {name: parent for name, parent in waiting.items() if name not in undecided}
            self.parents = {name: parent for name, parent in waiting.items() if name in undecided}
        return parents

    def take_all_parents(self, entries: Sequence[Entry]) -> dict[str, str | None]:
        """Return the parents of calls with these entries and all others, and drop those of later passes."""
        parents = self.take_parents(entries) | self.parents
        self.parents = {}
        self.parents_in_pass.clear()
        return parents

    def add_ancestors(self, call: RecordedCall | None, parents: dict[str, str | None]) -> None:
        """Add the parents of a call and of all calls around it."""
        while call is not None and call.name not in parents:
            parents[call.name] = name_of(call.parent)
            call = call.parent

    def add_backward_ancestors(self, call: RecordedCall | None, parents: dict[str, str | None]) -> None:
        """Add the parents of the call's backward and of all backwards around it."""
        while call is not None and call.backward_name not in parents:
            parents[call.backward_name] = backward_name_of(call.parent)
            call = call.parent
