"""What the core gives to a framework plugin: the recorder of the calls that the plugin intercepts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from msprobe_core.model import GradientSlot


class Call(Protocol):
    """One call that is being recorded; made by `CallRecorder`, kept by the interception until it ends."""

    @property
    def wants_forward(self) -> bool:
        """Whether inputs or outputs of the forward are to be recorded."""
        ...

    @property
    def wants_gradients(self) -> bool:
        """Whether gradients of this call are to be recorded."""
        ...


class CallRecorder(Protocol):
    """What an interception reports to. Each method returns fast and raises nothing.

    For every call: ``open_api`` or ``open_module``, ``record_inputs``, then the call itself, then either
    ``record_outputs`` and ``close`` or, when the call raised, only ``close``. The object that opened the call is
    handed back as it came.
    """

    def open_api(self, prefix: str, name: str, owner: str | None = None, *, is_recomputed: bool = False) -> Call:
        """Begin a call of an API: ``prefix`` as ``Functional``, ``name`` as ``linear``.

        ``owner`` is what a call outside of every module belongs to, such as ``optimizer``: its parent in that case.
        ``is_recomputed``: the call runs inside a backward pass, to compute again what was not kept.
        """
        ...

    def open_operator(self, prefix: str, name: str, around: Any, *, is_in_backward: bool = False) -> Call:
        """Begin an operator that runs below the APIs: ``prefix`` as ``Aten``, ``name`` as ``addmm``.

        ``around`` is the call that it is part of, ``None`` if it is part of none. ``is_in_backward``: it computes
        gradients of ``around``, and belongs to the backward of that call.
        """
        ...

    def open_call(self) -> Call | None:
        """Return the innermost module call that is open on this thread."""
        ...

    @property
    def is_outside_modules(self) -> bool:
        """Whether an ``owner`` is of use: the nesting is recorded, and no module call of this thread is open."""
        ...

    def open_module(self, prefix: str, path: str, type_name: str, *, is_recomputed: bool = False) -> Call:
        """Begin a call of a module; calls that open before it closes become its children."""
        ...

    def record_inputs(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any], unset: Sequence[Any] = ()
    ) -> None:
        """Take the arguments as they are now, before the call can overwrite them.

        ``unset`` are the tensors among them whose values are not read: their memory has not been set yet, so the
        values are arbitrary and would differ between equal runs.
        """
        ...

    def record_parameters(self, call: Any, parameters: Mapping[str, Any]) -> None:
        """Take a module's own parameters."""
        ...

    def record_outputs(self, call: Any, output: Any, unset: Sequence[Any] = ()) -> None:
        """Take the result of the call; see ``record_inputs`` for ``unset``."""
        ...

    def close(self, call: Any, *, keep: bool = True) -> None:
        """End the call; with ``keep=False`` as though it had never been counted."""
        ...

    def input_gradients(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor among the arguments that takes a gradient."""
        ...

    def output_gradients(self, call: Any, output: Any) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor in the result that takes a gradient."""
        ...

    def expect_gradients(self, call: Any, num_outputs: int, num_inputs: int) -> None:
        """Say how many slots of either kind will be filled if the whole graph is run."""
        ...

    def record_gradient(self, call: Any, slot: GradientSlot, gradient: Any, backward_pass: int = -1) -> None:
        """Fill in one slot.

        Gradients of another ``backward_pass`` than the first that came to the call make an entry of their own; -1: it
        is not known which pass it is. A second gradient for one slot in one pass is counted and dropped.
        """
        ...

    def nesting(self) -> object:
        """Return the module calls that are open on this thread, for ``nest_in``."""
        ...

    def nest_in(self, nesting: Any) -> None:
        """Let calls that open on this thread be inside of those that are open on another."""
        ...

    @property
    def clock(self) -> int:
        """How far the order of reports has come: what is reported next stands behind it."""
        ...

    def set_clock(self, moment: int, floor: int | None = None) -> None:
        """Let what is reported next have another place in the order: for plugins that hear of calls out of order.

        Args:
            moment: Of the next report; see ``clock``.
            floor: Later reports may have any moment after this one. Entries that stand after it are not written before
                this is called again. ``None``: moments only increase from now on.
        """
        ...

    def note_failure(self, where: str, error: Exception) -> None:
        """Take note that something could not be recorded, and why; it is said once for each kind of failure."""
        ...

    def expect_parameter_gradients(self, stem: str, parameters: Collection[str]) -> None:
        """Say which parameters of the module with the given name stem report gradients in this window.

        Their entry is written once all of them have reported; without this, when the window ends.
        """
        ...

    def record_parameter_gradient(self, stem: str, name: str, gradient: Any, contribution: Any = None) -> None:
        """Take the gradient of the parameter ``name`` of the module with the given name stem, as accumulated so far.

        ``contribution`` is what has been added just now; ``None`` where that is all there is.
        """
        ...

    @property
    def is_open(self) -> bool:
        """Whether values are still taken: false once the step that a hook was set in is over."""
        ...
