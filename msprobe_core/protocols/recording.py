"""What the core gives to a framework plugin: the recorder of intercepted calls; and what takes part in recordings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from msprobe_core.model import GradientSlot


class Call(Protocol):
    """One call that is being recorded; created by `CallRecorder`, held by the interception until it ends."""

    @property
    def wants_forward(self) -> bool:
        """Whether inputs or outputs of the forward are to be recorded."""
        ...

    @property
    def wants_gradients(self) -> bool:
        """Whether gradients of this call are to be recorded."""
        ...


class CallRecorder(Protocol):
    """Receives the calls that an interception reports. Every method returns quickly and never raises.

    For every call: ``open_api`` or ``open_module``, ``record_inputs``, then the call itself, then either
    ``record_outputs`` and ``close`` or, if the call raised, only ``close``. Pass the object returned by ``open_…`` to
    the other methods.
    """

    def open_api(self, prefix: str, name: str, owner: str | None = None, *, is_recomputed: bool = False) -> Call:
        """Begin a call of an API: ``prefix`` such as ``Functional``, ``name`` such as ``linear``.

        ``owner`` is the parent of a call outside of every module, such as ``optimizer``. ``is_recomputed``: the call
        runs inside a backward pass, to recompute values that were not kept.
        """
        ...

    def open_operator(self, prefix: str, name: str, around: Any, *, is_in_backward: bool = False) -> Call:
        """Begin an operator that runs below the APIs: ``prefix`` such as ``Aten``, ``name`` such as ``addmm``.

        ``around`` is the call that it is part of, or ``None``. ``is_in_backward``: it computes gradients of ``around``,
        and belongs to the backward of that call.
        """
        ...

    def open_call(self) -> Call | None:
        """Return the innermost module call that is open on this thread."""
        ...

    @property
    def is_outside_modules(self) -> bool:
        """Whether an ``owner`` has an effect: the nesting is recorded, and no module call is open on this thread."""
        ...

    def open_module(self, prefix: str, path: str, type_name: str, *, is_recomputed: bool = False) -> Call:
        """Begin a call of a module; calls that open before it closes become its children."""
        ...

    def record_inputs(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any], unset: Sequence[Any] = ()
    ) -> None:
        """Record the current values of the arguments, before the call can overwrite them.

        ``unset`` are the tensors among them whose values are not read: their memory has not been written yet, so the
        values are arbitrary and would differ between equal runs.
        """
        ...

    def record_parameters(self, call: Any, parameters: Mapping[str, Any]) -> None:
        """Record a module's own parameters."""
        ...

    def record_outputs(self, call: Any, output: Any, unset: Sequence[Any] = ()) -> None:
        """Record the result of the call; see ``record_inputs`` for ``unset``."""
        ...

    def close(self, call: Any, *, keep: bool = True) -> None:
        """End the call; with ``keep=False``, as if it had never been counted."""
        ...

    def input_gradients(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor among the arguments that requires a gradient."""
        ...

    def output_gradients(self, call: Any, output: Any) -> list[tuple[GradientSlot, Any]]:
        """Return a slot for each tensor in the result that requires a gradient."""
        ...

    def expect_gradients(self, call: Any, num_outputs: int, num_inputs: int) -> None:
        """Set how many slots of either kind will be filled if the whole graph is run."""
        ...

    def record_gradient(self, call: Any, slot: GradientSlot, gradient: Any, backward_pass: int = -1) -> None:
        """Fill in one slot.

        Gradients of a ``backward_pass`` other than the first one of the call form an entry of their own; -1 means that
        the pass is unknown. A second gradient for one slot in one pass is counted and dropped.
        """
        ...

    def nesting(self) -> object:
        """Return the module calls that are open on this thread, for ``nest_in``."""
        ...

    def nest_in(self, nesting: Any) -> None:
        """Nest the calls that open on this thread inside those that are open on another thread."""
        ...

    @property
    def clock(self) -> int:
        """Position that the order of reports has reached; the next report comes after it."""
        ...

    def set_clock(self, moment: int, floor: int | None = None) -> None:
        """Set the position of the next report in the order, for plugins that receive calls out of order.

        Args:
            moment: Position of the next report; see ``clock``.
            floor: Later reports may have any position after this one. Entries with a position after it are not written
                before this method is called again. ``None``: positions only increase from now on.
        """
        ...

    def note_failure(self, where: str, error: Exception) -> None:
        """Note that something could not be recorded, and why. Each kind of failure is logged once."""
        ...

    def expect_parameter_gradients(self, stem: str, parameters: Collection[str]) -> None:
        """Set which parameters of the module with this name stem report gradients in this window.

        Their entry is written once all of them have reported. Without this call it is written when the window ends.
        """
        ...

    def record_parameter_gradient(self, stem: str, name: str, gradient: Any, contribution: Any = None) -> None:
        """Record the gradient of the parameter ``name`` of the module with this name stem, as accumulated so far.

        ``contribution`` is the amount just added; ``None`` if it is the whole gradient.
        """
        ...

    @property
    def is_open(self) -> bool:
        """Whether values are still recorded: false once the step in which a hook was set is over."""
        ...


class FeatureOffer(Protocol):
    """Something that takes part in recordings besides the recorder."""

    @property
    def name(self) -> str:
        """Name of the setting or task that asks for it."""
        ...

    def make(self, host: Any) -> Any:
        """Return the feature for one session; ``None`` if its configuration does not ask for it.

        Args:
            host: Services of the session, a `msprobe_core.capture.features.feature.Host`. It and the result, a
                `msprobe_core.capture.features.feature.Feature`, are not public and may change with any release.

        Raises:
            PluginError: the framework lacks a capability that the feature needs.
        """
        ...
