"""Which calls are recorded: the configured selection, and modules that include the calls inside them."""

from __future__ import annotations

from msprobe_core.capture.call_tree import CallTree
from msprobe_core.capture.recorded_call import RecordedCall, backward_name_of, name_of
from msprobe_core.capture.selection import Selection
from msprobe_core.interception.stacks import StackCache
from msprobe_core.model import Entry, Phase


class CallSelector:
    """Decides what is recorded of a call that begins, and creates its forward entry."""

    __slots__ = ("_expands", "_selection", "_stacks", "_tree")

    def __init__(
        self, selection: Selection, tree: CallTree, stacks: StackCache | None, *, expands_modules: bool
    ) -> None:
        """Begin; see `Recorder` for the arguments."""
        self._selection = selection
        self._tree = tree
        self._stacks = stacks
        self._expands = expands_modules and selection.has_patterns

    def select(self, call: RecordedCall) -> None:
        """Decide about a call of a module or an API."""
        selection = self._selection
        selection.begin(call.name)
        forward = backward = True
        if selection.has_patterns:
            forward, backward = selection.matches(call.name), selection.matches(call.backward_name)
        if self._expands:
            # A module that `list` selects includes everything inside it, for each direction by its own name.
            parent = call.parent
            forward = call.covers_forward = forward or (parent is not None and parent.covers_forward)
            backward = call.covers_backward = backward or (parent is not None and parent.covers_backward)
        else:
            call.covers_forward, call.covers_backward = forward, backward
        call.wants_forward = forward and selection.is_inside and selection.takes_phase(Phase.FORWARD)
        # Gradients may arrive after `scope` closes, so the collector checks `scope` again when they do.
        call.wants_gradients = backward and selection.takes_phase(Phase.BACKWARD)
        parent_name = name_of(call.parent)
        if call.wants_forward:
            call.entry = _forward_entry(call, parent_name)
            if self._stacks is not None:
                call.entry.stack = self._stacks.capture()
        if self._tree.tracks_parents:
            self._tree.parents[call.name] = parent_name

    def select_operator(self, call: RecordedCall) -> None:
        """Select an operator if ``list`` selects it or the call that it is part of."""
        selection, parent, is_in_backward = self._selection, call.parent, call.is_in_backward
        selection.begin(call.name)
        covers = not selection.has_patterns or selection.matches(call.name)
        if not covers and parent is not None:
            covers = parent.covers_backward if is_in_backward else parent.covers_forward
        phase = Phase.BACKWARD if is_in_backward else Phase.FORWARD
        call.wants_forward = covers and selection.is_inside and selection.takes_phase(phase)
        parent_name = name_of(parent)
        if is_in_backward and parent is not None:
            parent_name = parent.name_in_pass(parent.num_later) if parent.num_later else parent.backward_name
        if call.wants_forward:
            call.entry = _forward_entry(call, parent_name)
            if parent is not None and parent.entry is not None:
                call.entry.stack = parent.entry.stack
        if self._tree.tracks_parents:
            parents = self._tree.parents
            parents[call.name] = parent_name
            if is_in_backward and parent is not None and parent_name not in parents and not parent.num_later:
                parents[parent.backward_name] = backward_name_of(parent.parent)


def _forward_entry(call: RecordedCall, parent: str | None) -> Entry:
    return Entry(
        name=call.name,
        phase=Phase.FORWARD,
        parent=parent,
        micro_step=call.micro_step,
        is_recomputed=call.is_recomputed,
    )
