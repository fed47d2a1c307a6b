"""From reported calls to entries: names, parents, order, gradients; what a framework's interception talks to."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import takewhile
from typing import Any, cast

import msgspec

from msprobe_core import names
from msprobe_core.capture.order import drop_empty_places, in_execution_order
from msprobe_core.capture.recorder_adapters import ForwardWindow
from msprobe_core.capture.reference_check import BenchCheck
from msprobe_core.capture.selection import Selection
from msprobe_core.capture.slices import Slices, narrowed_shape
from msprobe_core.capture.stacks import StackCache
from msprobe_core.capture.values import ValueBuilder, reason_of
from msprobe_core.errors import UnwrittenError
from msprobe_core.guard import kept
from msprobe_core.model import (
    Batch,
    Digest,
    Entry,
    Failure,
    GradientSlot,
    Phase,
    Role,
    Stats,
    TensorValue,
    Value,
)
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.storage import Processor

_logger = logging.getLogger(__name__)


TensorSink = Callable[[Any, str, TensorValue], None]
"""Keeps a whole tensor under a file stem, in the background, and sets the value's ``file_name``; if it can."""

_MAX_KINDS_OF_FAILURES = 20

BACKLOG_ENTRIES, BACKLOG_SECONDS = 4096, 1.0
"""How much may be recorded, and for how long, before it is offered for writing: what a killed process loses."""

_MAX_PARENTS = 16384
"""Parents of calls wait for the records of these calls until there are so many of them."""

MAX_WAITING = 16384
"""So many complete entries may wait for one that stands before them; then they are written out of order."""


_NOTHING = Digest(Stats())
"""Stands for values that could not be read."""

_UNSET = Digest(Stats())
"""Stands for the values of memory that has not been set: they are arbitrary, and would differ between equal runs."""


class _MicroSteps:
    """Which micro-batch a thread is at, forward and backward."""

    __slots__ = ("in_backward", "in_forward", "num_begun", "step")

    def __init__(self, step: int) -> None:
        self.step = step
        self.num_begun = 0  # forwards of outermost modules, outside of backward passes
        self.in_forward: int | None = None
        self.in_backward: int | None = None


class Slot(GradientSlot, gc=False):
    """A gradient slot that knows its place in the entry."""

    category: str = ""
    path: str = ""


class _Call:
    """A call being recorded: implements `msprobe_core.plugin.Call`."""

    __slots__ = (
        "backward", "backward_name", "covers_backward", "covers_forward", "encloses", "entry", "index",
        "is_in_backward", "is_recomputed", "key", "last_pass", "micro_step", "name", "num_later", "parent", "stem",
        "step", "wants_forward", "wants_gradients",
    )  # fmt: skip

    def __init__(self, name: str, key: str, index: int, parent: _Call | None, step: int) -> None:
        self.name = name
        self.key = key
        self.index = index
        self.parent = parent
        self.step = step
        self.stem: str | None = None
        self.entry: Entry | None = None
        self.backward: _Backward | None = None
        self.num_later = 0  # passes that have come to the call again
        self.last_pass: int | None = None  # the last of these
        self.backward_name = ""
        self.wants_forward = False
        self.wants_gradients = False
        self.covers_forward = False
        self.covers_backward = False
        self.encloses = False  # other calls
        self.micro_step: int | None = None
        self.is_recomputed = False
        self.is_in_backward = False  # an operator that computes gradients of ``parent``


_PASSED_OVER = _Call("", "", 0, None, -1)
"""Stands for every call that is not looked at and not counted; it wants nothing and belongs to no step."""


_Places = tuple[list[Value] | None, list[Value] | None, dict[str, Value] | None]
"""Inputs, outputs and keyword outputs of a backward entry."""


_NO_SLOTS: dict[int, Slot] = {}

_UNKNOWN = {""}
"""Stands for the parameters of a module of which nobody has said which report gradients; none has an empty name."""


class _Backward:
    """The backward entry of one call in one pass while its gradients arrive."""

    __slots__ = (
        "around", "backward_pass", "begun", "begun_after", "encloses", "entry", "last_tick", "num_expected",
        "num_filled", "place", "places", "slots", "written",
    )  # fmt: skip

    def __init__(self, entry: Entry, around: _Call | None) -> None:
        self.entry = entry
        self.around = around  # the call that encloses this one
        self.place: _MicroSteps | None = None  # of the thread that recorded the first gradient
        self.begun_after = 0  # how many forwards that thread had begun by then
        self.encloses = False  # the backward entries of other calls
        self.num_expected = 0
        self.num_filled = 0
        self.last_tick = 0
        self.begun = False
        self.written = False
        self.backward_pass: int | None = None  # as the framework numbers them
        self.slots: dict[int, Slot] = _NO_SLOTS  # of a later pass: what stands in the place of each slot of the first
        self.places: _Places | None = None  # those of the entry before empty ones were dropped

    def begin(self, place: _MicroSteps) -> None:
        """Note which thread runs the backward pass, and when."""
        self.begun = True
        self.place, self.begun_after = place, place.num_begun

    @property
    def is_complete(self) -> bool:
        """Whether all gradients are there, and everything inside has run that has to stand before it."""
        if self.num_filled >= self.num_expected:
            return not self.encloses or self._is_pass_over
        # Where passes cannot be told apart, another one may fill the places that this one has left empty.
        return self._is_pass_over and self.backward_pass != -1

    @property
    def _is_pass_over(self) -> bool:
        # A thread that begins a forward outside of every backward pass has come to the end of those that it ran.
        return self.place is not None and self.place.num_begun > self.begun_after


_Finished = tuple[int, Entry, _Call | None]
"""An entry that is complete, when it was, and the call that encloses its own."""


class Recorder:
    """Collects the entries of one step; implements `msprobe_core.plugin.CallRecorder`.

    All methods may be called from any thread: the module stack is per thread, everything else is behind a lock.
    """

    def __init__(
        self,
        framework: Framework,
        processor: Processor,
        selection: Selection,
        *,
        stacks: StackCache | None,
        tracks_parents: bool,
        expands_modules: bool,
        keeps_values: bool = True,
        keep_tensor: TensorSink | None,
        slices: Slices | None = None,
    ) -> None:
        """Begin with nothing recorded.

        Args:
            framework: Describes tensors and makes the reducer.
            processor: What is kept of each tensor.
            selection: Which calls are recorded.
            stacks: Formats where a forward call came from; ``None`` leaves stacks out.
            tracks_parents: Whether the nesting of calls is recorded.
            expands_modules: Whether a module kept by ``list`` brings everything called inside it (level mix).
            keeps_values: Whether tensors and arguments are looked at; if not, only calls, stacks and nesting are kept.
            keep_tensor: Keeps whole tensors; ``None`` keeps digests only.
            slices: Which part of a tensor takes its place; ``None`` records the whole.
        """
        self._framework = framework
        self._reducer = framework.reducer()
        self._describe = framework.describe
        self._processor = processor
        self._selection = selection
        self._stacks = stacks
        self._tracks_parents = tracks_parents
        self._expands = expands_modules and selection.has_patterns
        self._keeps_values = keeps_values
        self._keep_tensor = keep_tensor
        self._slices = slices
        self._values = ValueBuilder(framework, self.note_failure)
        self._takes_inputs, self._takes_parameters, self._takes_outputs = (
            self._takes(Phase.FORWARD, side) for side in (Role.INPUT, Role.PARAMETERS, Role.OUTPUT)
        )
        self._skeletons = ValueBuilder(framework, self.note_failure, tensors_only=True)
        self._failures_said: set[str] = set()
        self.num_failures = 0
        self._lock = threading.RLock()
        self._local = threading.local()
        self._step = 0
        self._is_open = True
        self._last_offer = time.monotonic()
        self._num_since_offer = 0
        self._floor: int | None = None
        self.on_backlog: Callable[[], None] | None = None
        self.check: BenchCheck | None = None  # compares each call with an earlier run, and decides what is kept whole
        self.forwards: ForwardWindow | None = None  # the forwards of the models that are recorded; None: all, and more
        self.has_sole = False  # whether one module only is recorded, which reports through `SingleModuleRecorder`
        self._reset()

    def _reset(self) -> None:
        self._counts: dict[str, int] = {}
        self._num_roots: dict[str, int] = {}
        self._finished: list[_Finished] = []
        self._backwards: list[_Backward] = []
        self._later: dict[tuple[_Call, int], _Backward] = {}
        self._gradients: dict[str, _Finished] = {}
        self._expected: dict[str, set[str]] = {}
        self._gradient_counts: dict[tuple[str, str], int] = {}
        self._gradients_written: dict[str, int] = {}
        self._covered: set[str] = set()
        self._parents: dict[str, str | None] = {}  # those that have not been written
        self._parents_in_pass: dict[str, str | None] = {}  # of calls in later passes, all of them
        self._undecided: set[str] = set()  # calls that may turn out not to count
        self._owners: dict[str, _Call] = {}
        self._tick = 0
        self._num_written = 0
        self._num_late = 0
        self._max_waiting = MAX_WAITING

    # --- calls ------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether values are still taken."""
        return self._is_open

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while entries are taken out and handed over; no hook of another thread hands any over meanwhile."""
        return self._lock

    @property
    def is_outside_modules(self) -> bool:
        """Whether the nesting is recorded and no module call of this thread is open."""
        return self._tracks_parents and not self._stack()

    def open_api(self, prefix: str, name: str, owner: str | None = None, *, is_recomputed: bool = False) -> _Call:
        """Begin a call of an API; ``owner`` is what it belongs to where that is no module."""
        if self._passes_over():
            return _PASSED_OVER
        key = f"{prefix}.{name}"
        with self._lock:
            call = self._numbered(key, self._owner(owner))
            self._place(call, is_recomputed)
            self._select(call)
            if self._tracks_parents:
                self._undecided.add(call.name)
        return call

    def _numbered(self, key: str, parent: _Call | None) -> _Call:
        index = self._counts.get(key, 0)
        self._counts[key] = index + 1
        call = _Call(f"{key}.{index}.forward", key, index, parent, self._step)
        call.backward_name = f"{key}.{index}.backward"
        return call

    def open_operator(self, prefix: str, name: str, around: _Call | None, *, is_in_backward: bool = False) -> _Call:
        """Begin an operator below the APIs; it belongs to ``around``, in a backward pass to the backward of that."""
        key = f"{names.operator_prefix(prefix, is_in_backward=is_in_backward)}.{name}"
        if self._passes_over() or around is _PASSED_OVER or (around is not None and around.key == key):
            return _PASSED_OVER  # an operator that is called by its name is recorded as an API
        with self._lock:
            if around is not None and around.step != self._step:
                around = None
            call = self._numbered(key, around if around is not None or is_in_backward else self._owner(None))
            call.is_in_backward = is_in_backward
            self._place(call, is_recomputed=False)
            if is_in_backward:
                call.is_recomputed = False  # what it computes is new, also where ``around`` was computed again
                if around is None:
                    call.micro_step = self._micro_steps().in_backward
            self._select_operator(call)
            if self._tracks_parents:
                self._undecided.add(call.name)
        return call

    def open_call(self) -> _Call | None:
        """Return the innermost module call that is open on this thread."""
        stack = self._stack()
        return stack[-1] if stack else None

    def pass_over_call(self) -> _Call:
        """Begin a call that is not recorded, not counted and nobody's parent."""
        return _PASSED_OVER

    def _passes_over(self, *, is_sole: bool = False) -> bool:
        if not self._is_open or (self.has_sole and not is_sole):
            return True
        return self.forwards is not None and not self.forwards.is_inside

    def open_module(
        self, prefix: str, path: str, type_name: str, *, is_recomputed: bool = False, is_sole: bool = False
    ) -> _Call:
        """Begin a call of a module; ``is_sole`` says that it is the one that is recorded if ``has_sole``."""
        if self._passes_over(is_sole=is_sole):
            return _PASSED_OVER
        stem = names.module_stem(prefix, path, type_name)
        stack = self._stack()
        parent = stack[-1] if stack else None
        with self._lock:
            index = self._counts.get(stem, 0)
            self._counts[stem] = index + 1
            call = _Call(f"{stem}.forward.{index}", stem, index, parent, self._step)
            call.stem = stem
            call.backward_name = f"{stem}.backward.{index}"
            self._place(call, is_recomputed)
            self._select(call)
            if call.wants_gradients:
                self._covered.add(stem)
        stack.append(call)
        return call

    def _place(self, call: _Call, is_recomputed: bool) -> None:
        """Note which micro-batch of the step a call belongs to, and whether it computes something again."""
        place, parent = self._micro_steps(), call.parent
        call.is_recomputed = is_recomputed or (parent is not None and parent.is_recomputed)
        if parent is not None:
            parent.encloses = True
        if parent is not None and parent.key:
            call.micro_step = parent.micro_step
        elif call.is_recomputed:
            call.micro_step = place.in_backward
        elif call.stem is not None:
            # Recomputed calls of an outermost module have taken indices too.
            roots = self._num_roots
            place.num_begun += 1
            call.micro_step = place.in_forward = roots[call.stem] = roots.get(call.stem, -1) + 1
        else:
            call.micro_step = place.in_forward

    def _micro_steps(self) -> _MicroSteps:
        place: _MicroSteps | None = getattr(self._local, "micro_steps", None)
        if place is None or place.step != self._step:
            place = self._local.micro_steps = _MicroSteps(self._step)
        return place

    def _select(self, call: _Call) -> None:
        selection = self._selection
        selection.begin(call.name)
        forward = backward = True
        if selection.has_patterns:
            forward, backward = selection.matches(call.name), selection.matches(call.backward_name)
        if self._expands:
            # A module that `list` keeps brings everything inside it, for each direction by its own name.
            parent = call.parent
            forward = call.covers_forward = forward or (parent is not None and parent.covers_forward)
            backward = call.covers_backward = backward or (parent is not None and parent.covers_backward)
        else:
            call.covers_forward, call.covers_backward = forward, backward
        call.wants_forward = forward and selection.is_inside and selection.takes_phase(Phase.FORWARD)
        # Whether the window of `scope` is open is asked again when the gradient arrives.
        call.wants_gradients = backward and selection.takes_phase(Phase.BACKWARD)
        if call.wants_forward:
            call.entry = Entry(
                name=call.name,
                phase=Phase.FORWARD,
                parent=_name_of(call.parent),
                micro_step=call.micro_step,
                is_recomputed=call.is_recomputed,
            )
            if self._stacks is not None:
                call.entry.stack = self._stacks.capture()
        if self._tracks_parents:
            self._parents[call.name] = _name_of(call.parent)

    def _select_operator(self, call: _Call) -> None:
        """Take an operator if ``list`` keeps it or the call that it is part of."""
        selection, parent, is_in_backward = self._selection, call.parent, call.is_in_backward
        selection.begin(call.name)
        covers = not selection.has_patterns or selection.matches(call.name)
        if not covers and parent is not None:
            covers = parent.covers_backward if is_in_backward else parent.covers_forward
        phase = Phase.BACKWARD if is_in_backward else Phase.FORWARD
        call.wants_forward = covers and selection.is_inside and selection.takes_phase(phase)
        parent_name = _name_of(parent)
        if is_in_backward and parent is not None:
            parent_name = _name_in_pass(parent, parent.num_later) if parent.num_later else parent.backward_name
        if call.wants_forward:
            call.entry = Entry(
                name=call.name,
                phase=Phase.FORWARD,
                parent=parent_name,
                micro_step=call.micro_step,
                is_recomputed=call.is_recomputed,
            )
            if parent is not None and parent.entry is not None:
                call.entry.stack = parent.entry.stack
        if self._tracks_parents:
            self._parents[call.name] = parent_name
            if is_in_backward and parent is not None and parent_name not in self._parents and not parent.num_later:
                self._parents[parent.backward_name] = None if parent.parent is None else parent.parent.backward_name

    def record_inputs(
        self, call: _Call, args: Sequence[Any], kwargs: Mapping[str, Any], unset: Sequence[Any] = ()
    ) -> None:
        """Take the arguments as they are now."""
        entry = call.entry
        if entry is None or not (self._takes_inputs if not call.is_in_backward else self._takes_backward(Role.INPUT)):
            return
        entry.inputs = self._values.positional(args, self._taker(call.name, "input", unset))
        entry.input_kwargs = self._values.named(kwargs, self._taker(call.name, "kwargs", unset)) if kwargs else {}

    def record_parameters(self, call: _Call, parameters: Mapping[str, Any]) -> None:
        """Take a module's own parameters."""
        if call.entry is not None and self._takes_parameters:
            call.entry.parameters = self._values.named(parameters, self._taker(call.name, "parameters"))

    def record_outputs(self, call: _Call, output: Any, unset: Sequence[Any] = ()) -> None:
        """Take the result of the call."""
        if call.entry is None:
            return
        if self._takes_backward(Role.OUTPUT) if call.is_in_backward else self._takes_outputs:
            call.entry.outputs = self._values.positional(_as_results(output), self._taker(call.name, "output", unset))

    def close(self, call: _Call, *, keep: bool = True) -> None:
        """End the call."""
        if call.stem is not None:
            self._leave(call)
        with self._lock:
            if call.step != self._step:
                return
            self._selection.end(call.name)
            self._undecided.discard(call.name)
            if not keep:
                self._parents.pop(call.name, None)
                if self.check is not None:
                    self.check.forget(call.name)
                if self._counts[call.key] == call.index + 1:  # not if another thread has called it since
                    self._counts[call.key] = call.index
                return
            if call.entry is not None:
                self._finished.append((self._next_tick(), call.entry, call.parent))
                call.entry = None
                self._judge(call.name)
            self._offer_backlog()

    def _takes_backward(self, side: Role) -> bool:
        return self._takes(Phase.BACKWARD, side)

    def _takes(self, phase: Phase, side: Role) -> bool:
        return self._keeps_values and self._selection.takes(phase, side)

    def _stack(self) -> list[_Call]:
        """Return the open module calls of this thread, outermost first."""
        stack: list[_Call] | None = getattr(self._local, "stack", None)
        if stack is None or self._local.step != self._step:
            stack = self._local.stack = []
            self._local.step = self._step
        return stack

    def nesting(self) -> object:
        """Return the open module calls of this thread."""
        return tuple(self._stack())

    def nest_in(self, nesting: tuple[_Call, ...]) -> None:
        """Let calls that open on this thread be inside of those of another."""
        self._stack()[:] = nesting

    def _owner(self, other: str | None) -> _Call | None:
        stack = self._stack()
        if stack or other is None:
            return stack[-1] if stack else None
        owner = self._owners.get(other)
        if owner is None:
            owner = self._owners[other] = _Call(other, "", 0, None, self._step)
            owner.backward_name = other
            self._parents.setdefault(other, None)
        return owner

    def _leave(self, call: _Call) -> None:
        stack = self._stack()
        if call in stack:
            # An exception may have skipped the ends of calls inside this one.
            while stack.pop() is not call:
                pass

    # --- gradients --------------------------------------------------------------------------------------------

    def input_gradients(
        self, call: _Call, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor among the arguments that takes a gradient."""
        if not self._selection.takes(Phase.BACKWARD, Role.OUTPUT):
            return []
        slots: list[tuple[GradientSlot, Any]] = []
        entry = self._backward_entry(call)
        entry.outputs = self._skeletons.positional(args, self._slot_maker("output", slots))
        entry.output_kwargs = self._skeletons.named(kwargs, self._slot_maker("output", slots)) if kwargs else None
        return slots

    def output_gradients(self, call: _Call, output: Any) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor in the result that takes a gradient."""
        if not self._selection.takes(Phase.BACKWARD, Role.INPUT):
            return []
        slots: list[tuple[GradientSlot, Any]] = []
        entry = self._backward_entry(call)
        entry.inputs = self._skeletons.positional(_as_results(output), self._slot_maker("input", slots))
        return slots

    def expect_gradients(self, call: _Call, num_outputs: int, num_inputs: int) -> None:
        """Say how many slots will be filled if the whole graph is run."""
        if call.backward is not None:
            call.backward.num_expected = num_outputs + num_inputs
            call.backward.encloses = call.encloses
            if self._tracks_parents and call.backward.num_expected:
                with self._lock:
                    self._parents[call.backward_name] = call.backward.entry.parent

    def record_gradient(self, call: _Call, slot: GradientSlot, gradient: Any, backward_pass: int = -1) -> None:
        """Fill in one slot."""
        assert isinstance(slot, Slot)
        backward = call.backward
        assert backward is not None
        if not self._keeps_values:
            return
        with self._lock:
            if not self._is_open:
                return
            if call.step != self._step:
                self._note_late(call.backward_name)
                return
            if backward.backward_pass != backward_pass:
                if backward.backward_pass is None:
                    backward.backward_pass = backward_pass
                elif (later := self._later_pass(call, backward, backward_pass)) is not None:
                    backward, slot = later, later.slots[id(slot)]
                else:
                    self._note_late(_name_in_pass(call, call.num_later))
                    return
            name = backward.entry.name
            if backward.written or slot.value is not None:
                self._note_late(name)
                return
            place = self._micro_steps()
            place.in_backward = call.micro_step
            self._selection.begin(name)
            if self._selection.is_inside:
                if not backward.begun:
                    backward.begin(place)
                    self._backwards.append(backward)
                slot.value = self._take(gradient, name, slot.category, slot.path)
            backward.last_tick = self._next_tick()
            backward.num_filled += 1
            if backward.num_filled == backward.num_expected:
                self._selection.end(name)
                self._judge(name)
            self._offer_backlog()

    def _later_pass(self, call: _Call, first: _Backward, backward_pass: int) -> _Backward | None:
        """Return what takes the gradients of a pass that comes through the same graph again.

        It may come to a part of the call alone, and then that is what its entry has. ``None`` if its entry has been
        written before it was over.
        """
        known = self._later.get((call, backward_pass))
        if known is not None:
            return known
        if call.last_pass == backward_pass:
            return None
        call.num_later += 1
        call.last_pass = backward_pass
        entry = Entry(
            name=_name_in_pass(call, call.num_later),
            phase=Phase.BACKWARD,
            parent=self._parent_in_pass(call.parent, call.num_later, backward_pass),
            micro_step=call.micro_step,
        )
        later = self._later[call, backward_pass] = _Backward(entry, call.parent)
        later.num_expected, later.encloses, later.slots = first.num_expected, first.encloses, {}
        own = first.entry
        inputs, outputs, output_kwargs = first.places or (own.inputs, own.outputs, own.output_kwargs)
        entry.inputs, entry.outputs = _emptied(inputs, later.slots), _emptied(outputs, later.slots)
        entry.output_kwargs = _emptied(output_kwargs, later.slots)
        if self._tracks_parents:
            self._parents[entry.name] = self._parents_in_pass[entry.name] = entry.parent
        return later

    def _parent_in_pass(self, parent: _Call | None, number: int, backward_pass: int) -> str | None:
        """Return the backward of an enclosing call in a pass that is the call's own number ``number``."""
        if parent is None:
            return None
        first = parent.backward
        if first is None:  # it is not recorded, so nobody knows which passes come to it
            return _name_in_pass(parent, number)
        if first.backward_pass is None or first.backward_pass == backward_pass:
            return parent.backward_name
        later = self._later_pass(parent, first, backward_pass)
        return _name_in_pass(parent, parent.num_later) if later is None else later.entry.name

    def expect_parameter_gradients(self, stem: str, parameters: Collection[str]) -> None:
        """Say which parameters of a module report gradients in this window."""
        with self._lock:
            self._expected.setdefault(stem, set()).update(parameters)

    def record_parameter_gradient(
        self, stem: str, name: str, gradient: Any, contribution: Any = None, *, is_sole: bool = False
    ) -> None:
        """Take the gradient of one parameter, as it has been accumulated so far, and what was added just now."""
        if (self.has_sole and not is_sole) or (self.forwards is not None and not self.forwards.covers_parameters):
            return
        with self._lock:
            if not self._is_open or not self._wants_parameter_gradient(stem):
                return
            index = max(self._gradient_counts.get((stem, name), 0), self._gradients_written.get(stem, 0))
            self._gradient_counts[stem, name] = index + 1
            entry_name = f"{stem}.{Phase.PARAMETERS_GRAD.value}.{index}"
            _, entry, _ = self._gradients.pop(entry_name, (0, None, None))
            if entry is None:
                micro_step = self._micro_steps().in_backward
                entry = Entry(name=entry_name, phase=Phase.PARAMETERS_GRAD, parameters={}, micro_step=micro_step)
            assert entry.parameters is not None
            entry.parameters[name] = self._take(gradient, entry_name, "", name)
            if contribution is not None:
                added = f"{name}.{names.CONTRIBUTION}"
                entry.parameters[added] = self._take(contribution, entry_name, "", added)
            taken: _Finished = (self._next_tick(), entry, None)
            if self._expected.get(stem, _UNKNOWN) <= entry.parameters.keys():
                self._finished.append(taken)
            else:
                self._gradients[entry_name] = taken

    def _wants_parameter_gradient(self, stem: str) -> bool:
        selection = self._selection
        # A tied parameter may belong to a module that is never called, so being called is no condition.
        selected = not selection.has_patterns or stem in self._covered
        return selected and selection.is_inside and self._takes(Phase.PARAMETERS_GRAD, Role.PARAMETERS_GRAD)

    def _backward_entry(self, call: _Call) -> Entry:
        if call.backward is None:
            parent = call.parent.backward_name if call.parent is not None else None
            entry = Entry(name=call.backward_name, phase=Phase.BACKWARD, parent=parent, micro_step=call.micro_step)
            call.backward = _Backward(entry, call.parent)
        return call.backward.entry

    def _slot_maker(self, category: str, slots: list[tuple[GradientSlot, Any]]) -> Callable[[Any, str], Value]:
        takes_gradient = self._framework.takes_gradient

        def make(tensor: Any, path: str) -> Value:
            if not takes_gradient(tensor):
                return None
            slot = Slot(category=category, path=path)
            slots.append((slot, tensor))
            return slot

        return make

    def _note_late(self, entry: str) -> None:
        self._num_late += 1
        if self._num_late == 1:
            _logger.warning(
                "%s: a gradient came a second time in one backward pass or after its step was over, and is not "
                "recorded; this is said once a step, whatever the number of such gradients",
                entry,
            )

    # --- tensors ----------------------------------------------------------------------------------------------

    def _taker(self, entry: str, category: str, unset: Sequence[Any] = ()) -> Callable[[Any, str], Value]:
        if not unset:
            return lambda tensor, path: self._take(tensor, entry, category, path)
        arbitrary = {id(tensor) for tensor in unset}
        return lambda tensor, path: self._take(tensor, entry, category, path, is_unset=id(tensor) in arbitrary)

    def _take(
        self, tensor: Any, entry: str, category: str, path: str, *, is_unset: bool = False
    ) -> TensorValue | Failure:
        try:
            value = TensorValue(self._describe(tensor), _NOTHING)
        except BaseException as caught:  # noqa: BLE001  # a plugin's failure must not reach the training
            error = kept(caught)
            self.note_failure(f"{entry} {category} {path}", error)
            return Failure(reason_of(error))
        try:
            part = tensor if self._slices is None else self._part_of(tensor, value)
            if part is None:
                return value
            value.digest = _UNSET if is_unset else self._digest(part)
            if self.check is not None:
                self.check.hold(part, entry, category, path, value)
            elif self._keep_tensor is not None and not is_unset and self._selection.keeps_tensors(entry):
                self._keep_tensor(part, names.tensor_file_stem(entry, category, path), value)
        except UnwrittenError as error:  # no failure: there are no values
            value.failure = str(error)
        except BaseException as caught:  # noqa: BLE001  # likewise; what is known of the tensor is kept
            error = kept(caught)
            self.note_failure(f"{entry} {category} {path}", error)
            value.failure = reason_of(error)
        return value

    def _part_of(self, tensor: Any, value: TensorValue) -> Any:
        """Return what is recorded of a tensor, and say in ``value`` if that is a part; ``None`` if none can be had."""
        ranges = None if self._slices is None else self._slices.ranges(value.meta.shape)
        if not ranges:
            return tensor
        part = self._framework.narrow(tensor, ranges)
        if part is not None:
            value.sliced_from = value.meta.shape
            value.meta = msgspec.structs.replace(value.meta, shape=narrowed_shape(value.meta.shape, ranges))
        return part

    def _judge(self, entry: str) -> None:
        if self.check is None or not self._reducer.is_complete:
            return
        try:
            self.check.judge(entry)
        except BaseException as caught:  # noqa: BLE001  # of a framework or a disk
            self.note_failure(entry, kept(caught))

    def _digest(self, tensor: Any) -> Digest:
        # For each record anew: no version shows what a kernel outside of the framework has written in between.
        digest = Digest()
        self._processor.reduce(tensor, digest, self._reducer)
        return digest

    def note_failure(self, where: str, error: Exception) -> None:
        """Say what could not be recorded: once for each kind of failure, and how many there were at the step's end."""
        self.num_failures += 1
        kind = reason_of(error)[: len(type(error).__name__) + 42]
        if kind not in self._failures_said and len(self._failures_said) < _MAX_KINDS_OF_FAILURES:
            self._failures_said.add(kind)
            _logger.warning("%s: not recorded, or not wholly (%s); training goes on", where, reason_of(error))

    # --- flush ------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> int:
        """How far the order of reports has come."""
        return self._tick

    def set_clock(self, moment: int, floor: int | None = None) -> None:
        """Let what is reported next stand elsewhere in the order; see `CallRecorder`."""
        self._tick, self._floor = moment, floor

    def _next_tick(self) -> int:
        self._tick += 1
        return self._tick

    def drain(self) -> Batch:
        """Return what has been recorded since the last call, complete and in execution order, and forget it."""
        with self._lock:
            self._reducer.collect()
            for (stem, _), count in self._gradient_counts.items():
                self._gradients_written[stem] = max(count, self._gradients_written.get(stem, 0))
            entries = self._take_out([*self._finished, *self._gradients.values()], self._backwards)
            parents = self._take_parents(entries) | self._parents
            self._finished, self._backwards, self._gradients, self._parents = [], [], {}, {}
            self._expected.clear()
            self._parents_in_pass.clear()
            self._later.clear()
            return Batch(entries, parents)

    def drain_complete(self) -> Batch:
        """Return the beginning of what ``drain`` would return, as far as it is certain.

        The order of entries thus does not depend on when this is called. An entry is certain if it precedes every
        backward entry that waits for gradients or for calls inside, and every module that lacks gradients of some
        parameters. If `MAX_WAITING` entries follow such a one, all complete entries are returned. Nothing is returned
        while results are on a device.
        """
        with self._lock:
            if not self._reducer.is_complete:
                return Batch([], {})
            entries = self._take_early(*self._certain())
            if len(self._finished) >= MAX_WAITING:
                held_back = self._around_incomplete()
                complete = [one for one in self._backwards if one.is_complete and one.entry.name not in held_back]
                entries += self._take_early(self._finished, complete)
            return Batch(entries, self._take_parents(entries))

    def _certain(self) -> tuple[Sequence[_Finished], Sequence[_Backward]]:
        """Return what stands before everything that may still move or come."""
        uncertain = {one.entry.name for one in self._backwards if not one.is_complete} | self._gradients.keys()
        if self._floor is not None:
            uncertain |= {entry.name for moment, entry, _ in self._finished if moment > self._floor}
            uncertain |= {one.entry.name for one in self._backwards if one.last_tick > self._floor}
        if not uncertain:
            return self._finished, self._backwards
        ordered = self._in_order([*self._finished, *self._gradients.values()], self._backwards)
        certain = {entry.name for entry in takewhile(lambda entry: entry.name not in uncertain, ordered)}
        return (
            [one for one in self._finished if one[1].name in certain],
            [one for one in self._backwards if one.entry.name in certain],
        )

    def _take_early(self, finished: Sequence[_Finished], backwards: Sequence[_Backward]) -> list[Entry]:
        entries = self._take_out(finished, backwards)
        taken = {entry.name for entry in entries}
        self._finished = [one for one in self._finished if one[1].name not in taken]
        self._backwards = [backward for backward in self._backwards if not backward.written]
        if self._later:
            self._later = {key: later for key, later in self._later.items() if not later.written}
        return entries

    def _take_parents(self, entries: Sequence[Entry]) -> dict[str, str | None]:
        """Return the parents of calls with these entries; if very many wait, all that are certain."""
        waiting = self._parents
        parents = {entry.name: waiting.pop(entry.name) for entry in entries if entry.name in waiting}
        if len(waiting) > _MAX_PARENTS:
            undecided = self._undecided
            parents |= {name: parent for name, parent in waiting.items() if name not in undecided}
            self._parents = {name: parent for name, parent in waiting.items() if name in undecided}
        return parents

    def _around_incomplete(self) -> set[str]:
        """Return the backward entries of calls around those that wait, after which they stand."""
        around: set[str] = set()
        waiting = [backward for backward in self._backwards if not backward.is_complete]
        parents = self._parents_around([], waiting)
        for backward in waiting:
            parent = backward.entry.parent
            while parent is not None and parent not in around:
                around.add(parent)
                parent = parents.get(parent)
        return around

    def _parents_around(
        self, finished: Sequence[_Finished], backwards: Sequence[_Backward]
    ) -> Mapping[str, str | None]:
        """Return the parents of all calls around those that the entries are of."""
        parents: dict[str, str | None] = {}
        if not self._tracks_parents:
            return parents
        in_backward = [backward.around for backward in backwards]
        for _, entry, around in finished:
            call = around
            if call is not None and entry.parent == call.backward_name:  # an operator of a backward pass
                in_backward.append(call)
                continue
            while call is not None and call.name not in parents:
                parents[call.name] = _name_of(call.parent)
                call = call.parent
        for around in in_backward:
            call = around
            while call is not None and call.backward_name not in parents:
                parents[call.backward_name] = call.parent.backward_name if call.parent is not None else None
                call = call.parent
        return parents | self._parents_in_pass

    def _take_out(self, finished: Sequence[_Finished], backwards: Sequence[_Backward]) -> list[Entry]:
        for backward in backwards:
            backward.written = True
            entry = backward.entry
            backward.places = (entry.inputs, entry.outputs, entry.output_kwargs)
        entries = self._in_order(finished, backwards)
        for entry in entries:
            self._judge(entry.name)
            entry.sequence = self._num_written
            self._num_written += 1
            drop_empty_places(entry)
        return entries

    def _in_order(self, finished: Sequence[_Finished], backwards: Sequence[_Backward]) -> list[Entry]:
        timed = [(time, entry) for time, entry, _ in finished]
        timed += [(backward.last_tick, backward.entry) for backward in backwards]
        return in_execution_order(timed, self._parents_around(finished, backwards))

    def _offer_backlog(self) -> None:
        if self.on_backlog is None:
            return
        self._num_since_offer += 1
        if (
            self._num_since_offer >= BACKLOG_ENTRIES
            or len(self._finished) >= self._max_waiting
            or time.monotonic() - self._last_offer >= BACKLOG_SECONDS
        ):
            self._num_since_offer = 0
            self.on_backlog()
            self._last_offer = time.monotonic()
            # What waits for a device is not offered again with each call.
            num_waiting = len(self._finished)
            self._max_waiting = MAX_WAITING if num_waiting < MAX_WAITING else num_waiting + BACKLOG_ENTRIES

    def next_step(self) -> None:
        """Begin a new step: all indices begin at 0 again, and gradients of the old step are no longer taken."""
        with self._lock:
            self._step += 1
            self._reset()
            self._selection.restart()

    def shut(self) -> None:
        """Take nothing any more."""
        self._is_open = False


def _name_of(call: _Call | None) -> str | None:
    return call.name if call is not None else None


def _name_in_pass(call: _Call, number: int) -> str:
    """Return the name of the backward of a call in a later pass."""
    if not call.key:  # no call, but what one belongs to
        return call.backward_name
    stem, phase = names.stem_in_pass(call.key, number), Phase.BACKWARD.value
    return f"{stem}.{call.index}.{phase}" if call.stem is None else f"{stem}.{phase}.{call.index}"


def _emptied(value: Any, slots: dict[int, Slot]) -> Any:
    """Return a tree of gradients without them: new slots, which ``slots`` gets by those that they stand for."""
    if isinstance(value, Slot):
        slot = slots[id(value)] = Slot(category=value.category, path=value.path)
        return slot
    if isinstance(value, list):
        return [_emptied(item, slots) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _emptied(item, slots) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _as_results(output: Any) -> Sequence[Any]:
    """Return the results of a call as a sequence: a plain tuple or list is several, anything else one."""
    return output if type(output) in (tuple, list) else (output,)
