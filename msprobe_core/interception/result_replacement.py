"""Replaces results of calls by more precise ones: the only interception that is meant to change a training.

A framework computes again, tells views and random numbers, and joins values and gradients; the rest is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msprobe_core.guard import reason_of
from msprobe_core.interception.perturbation import map_values, value_leaves
from msprobe_core.interception.removal import NothingPending
from msprobe_core.protocols.capabilities import CallFixer


class FixingCalls(NothingPending, ABC):
    """Runs calls of APIs for a `CallFixer`. Results that are not replaced are returned as they are."""

    def __init__(self, fixer: CallFixer) -> None:
        """Begin.

        Args:
            fixer: Chooses calls.
        """
        self.fixer = fixer

    def run(
        self,
        prefix: str,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        mutates: bool = False,
    ) -> Any:
        """Call a function, and return its result or the more precise one."""
        if not self.fixer.wants(prefix, name) or mutates or "out" in kwargs:
            return function(*args, **kwargs)
        has_drawn = self.watch_random(name, args)
        result = function(*args, **kwargs)
        if has_drawn():
            self.fixer.refused(prefix, name, "it draws random numbers")
            return result
        try:
            fine = self.again(function, args, kwargs, result)
            replaced = None if fine is None else self._replaced(result, fine)
        except Exception as error:  # noqa: BLE001  # of a function that has no kernel for this
            self.fixer.refused(prefix, name, reason_of(error))
            return result
        if replaced is None:
            return result
        self.fixer.fixed(prefix, name)
        return replaced

    def _replaced(self, result: Any, fine: Any) -> Any | None:
        own, others = self.tensors_in(result), self.tensors_in(fine)
        if not own or [tuple(each.shape) for each in own] != [tuple(each.shape) for each in others]:
            return None
        left = iter(others)

        def replaced(each: Any) -> Any:
            return self.joined(each, next(left))

        made: Any = map_values(result, self.is_tensor, replaced)
        return made

    def tensors_in(self, value: Any) -> list[Any]:
        """Return the tensors in a value."""
        leaves: Iterator[Any] = value_leaves(value)
        return [leaf for leaf in leaves if self.is_tensor(leaf)]

    def shares_memory(self, result: Any, arguments: Any) -> bool:
        """Whether a result is a view of an argument: that is no computation, and writes must reach the argument."""
        own = {self.place_of(each) for each in self.tensors_in(result)} - {None}
        return not own.isdisjoint(self.place_of(each) for each in self.tensors_in(arguments))

    @abstractmethod
    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor of the framework."""

    @abstractmethod
    def watch_random(self, name: str, args: Any) -> Callable[[], bool]:
        """Return what tells, after a call of a function with these arguments, whether it has drawn random numbers."""

    @abstractmethod
    def again(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> Any | None:
        """Compute a call more precisely; ``None`` if nothing in it can be, or the result is a view."""

    @abstractmethod
    def joined(self, own: Any, fine: Any) -> Any:
        """Return a tensor in the format of ``own``: forward with the finer values, backward with the finer gradient."""

    @abstractmethod
    def place_of(self, tensor: Any) -> int | None:
        """Return the address of a tensor's storage; ``None`` if it has none."""
