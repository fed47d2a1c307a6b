"""A recorder that passes over everything: the monitor and the flight recorder take the few reports that they need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msprobe_core.model import GradientSlot


class PassedOver:
    """A call of which nothing is taken; implements `msprobe_core.plugin.Call`."""

    __slots__ = ()
    wants_forward = False
    wants_gradients = False


PASSED_OVER = PassedOver()


class PassingRecorder:
    """A `msprobe_core.plugin.CallRecorder` that takes nothing."""

    is_outside_modules = False
    clock = 0

    def __init__(self, on_failure: Callable[[str, Exception], None]) -> None:
        """Begin.

        Args:
            on_failure: Called with what could not be read, and why.
        """
        self._on_failure = on_failure
        self.is_open = True

    def note_failure(self, where: str, error: Exception) -> None:
        """Pass on what could not be read."""
        self._on_failure(where, error)

    # --- calls --------------------------------------------------------------------------------------------------

    def open_module(self, prefix: str, path: str, type_name: str, *, is_recomputed: bool = False) -> Any:
        """Pass over a call of a module."""
        del prefix, path, type_name, is_recomputed
        return PASSED_OVER

    def open_api(self, prefix: str, name: str, owner: str | None = None, *, is_recomputed: bool = False) -> Any:
        """Pass over a call of an API."""
        del prefix, name, owner, is_recomputed
        return PASSED_OVER

    def open_operator(self, prefix: str, name: str, around: Any, *, is_in_backward: bool = False) -> Any:
        """Pass over an operator."""
        del prefix, name, around, is_in_backward
        return PASSED_OVER

    def open_call(self) -> None:
        """Return nothing: no API asks."""

    def record_inputs(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any], unset: Sequence[Any] = ()
    ) -> None:
        """Pass over what a call is given."""

    def record_parameters(self, call: Any, parameters: Mapping[str, Any]) -> None:
        """Pass over parameters, which are taken at the optimizer's step."""

    def record_outputs(self, call: Any, output: Any, unset: Sequence[Any] = ()) -> None:
        """Pass over what a call makes."""

    def close(self, call: Any, *, keep: bool = True) -> None:
        """End a call."""

    # --- gradients ----------------------------------------------------------------------------------------------

    def input_gradients(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[tuple[GradientSlot, Any]]:
        """Return no slots."""
        del call, args, kwargs
        return []

    def output_gradients(self, call: Any, output: Any) -> list[tuple[GradientSlot, Any]]:
        """Return no slots."""
        del call, output
        return []

    def expect_gradients(self, call: Any, num_outputs: int, num_inputs: int) -> None:
        """Pass over the number of gradients: each is a reading of its own."""

    def record_gradient(self, call: Any, slot: Any, gradient: Any, backward_pass: int = -1) -> None:
        """Pass over a gradient."""

    def expect_parameter_gradients(self, stem: str, parameters: Collection[str]) -> None:
        """Pass over which parameters will report."""

    def record_parameter_gradient(self, stem: str, name: str, gradient: Any, contribution: Any = None) -> None:
        """Pass over the gradient of a parameter."""

    # --- threads and order, which no reading has ------------------------------------------------------------------

    def nesting(self) -> None:
        """Return nothing."""

    def nest_in(self, nesting: Any) -> None:
        """Pass over the nesting."""

    def set_clock(self, moment: int, floor: int | None = None) -> None:
        """Pass over the order."""
