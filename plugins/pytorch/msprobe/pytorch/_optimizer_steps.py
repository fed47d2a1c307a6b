"""The steps of optimizers: of PyTorch's, of classes that wrap them or chain several, and of users' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from msprobe_core.interception import FunctionPatch
from msprobe_core.plugin import SessionError

_INNER = ("chained_optimizers", "optimizers", "optimizer")
"""Attributes under which wrappers keep what they wrap."""


def all_of(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer and all that it wraps, outermost first; of a list, those in it."""
    seen: set[int] = set()
    waiting = [optimizer]
    while waiting:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, list | tuple):
            waiting[:0] = cast("Sequence[Any]", one)
            continue
        if not isinstance(one, nn.Module):  # an engine, whose steps are micro-batches
            yield one
        waiting[:0] = [getattr(one, name, None) for name in _INNER]


def leaves_of(optimizer: Any) -> list[torch.optim.Optimizer]:
    """Return PyTorch's own optimizers, which update tensors themselves."""
    return [one for one in all_of(optimizer) if isinstance(one, torch.optim.Optimizer) and _wraps_none(one)]


def _wraps_none(optimizer: Any) -> bool:
    return next((False for one in all_of(optimizer) if one is not optimizer), True)


def _roots_of(optimizer: Any) -> list[Any]:
    given: list[Any] = list(cast("Sequence[Any]", optimizer)) if isinstance(optimizer, list | tuple) else [optimizer]
    return [next(all_of(one), None) for one in given]


class StepWatch:
    """Calls functions before and after the steps of one or several optimizers.

    With several, a step ends when each has made one, or when one begins its next.
    """

    def __init__(self, optimizer: Any, before: Callable[[Any], None], after: Callable[[], None]) -> None:
        """Begin.

        Args:
            optimizer: One or several.
            before: Called with an optimizer that is about to update its tensors; several times in a step if there are
                several.
            after: Called at the end of a step.

        Raises:
            SessionError: something is no optimizer.
        """
        self._before = before
        self._after = after
        self._ends: list[Callable[[], None]] = []
        self._ended: set[int] = set()
        roots = _roots_of(optimizer)
        for root in roots:
            if root is None or not (callable(getattr(root, "step", None)) or leaves_of(root)):
                raise SessionError(
                    f"set_monitor() got the optimizer {type(optimizer).__name__}, which has no method step; give the "
                    "training's optimizer, or a list of them"
                )
        self._num_roots = len(roots)
        for number, root in enumerate(roots):
            self._watch(number, root)

    def _watch(self, number: int, root: Any) -> None:
        leaves = leaves_of(root)
        if leaves == [root]:
            self._hook(root, lambda: self._begin(number, root), lambda: self._end(number))
        elif isinstance(root, torch.optim.Optimizer):
            self._watch_subclass(number, root, leaves)
        else:
            self._watch_wrapper(number, root, leaves)

    def _watch_subclass(
        self, number: int, root: torch.optim.Optimizer, leaves: Sequence[torch.optim.Optimizer]
    ) -> None:
        """A wrapper that is an optimizer itself may skip updates, as in all but the last micro-batch."""
        stepped: set[int] = set()
        has_hooks = hasattr(root, "_optimizer_step_post_hooks")

        def end_all() -> None:
            if stepped:
                stepped.clear()
                self._end(number)

        def end(leaf: torch.optim.Optimizer) -> None:
            stepped.add(id(leaf))
            if not has_hooks and len(stepped) == len(leaves):
                end_all()

        for leaf in leaves:
            self._hook(leaf, lambda leaf=leaf: self._begin(number, leaf), lambda leaf=leaf: end(leaf))
        if has_hooks:
            self._hook(root, _nothing, end_all)

    def _watch_wrapper(self, number: int, root: Any, leaves: Sequence[torch.optim.Optimizer]) -> None:
        """Of any other class, each step counts, also one that updates nothing because a gradient overflowed."""
        for leaf in leaves:
            self._hook(leaf, lambda leaf=leaf: self._begin(number, leaf), _nothing)

        def step(original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            if not leaves:
                args, kwargs = _with_closure(args, kwargs, lambda: self._begin(number, root))
            result = original(*args, **kwargs)
            self._end(number)
            return result

        patch = FunctionPatch(root, "step", step)
        try:
            patch.install()
        except (AttributeError, TypeError) as error:
            raise SessionError(
                f"set_monitor() got the optimizer {type(root).__name__}, whose method step cannot be replaced; give "
                "the optimizer that it wraps"
            ) from error
        self._ends.append(patch.remove)

    def _hook(self, optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None]) -> None:
        def begin(_optimizer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            return _with_closure(args, kwargs, before)

        self._ends.append(optimizer.register_step_pre_hook(begin).remove)
        self._ends.append(optimizer.register_step_post_hook(lambda *_: after()).remove)

    def _begin(self, number: int, leaf: Any) -> None:
        if number in self._ended:
            self._finish()
        self._before(leaf)

    def _end(self, number: int) -> None:
        if number in self._ended:
            self._finish()
        self._ended.add(number)
        if len(self._ended) == self._num_roots:
            self._finish()

    def _finish(self) -> None:
        self._ended.clear()
        self._after()

    def end(self) -> None:
        """Remove everything."""
        while self._ends:
            self._ends.pop()()


def hook_all_steps(before: Callable[[Sequence[Any]], None], after: Callable[[], None]) -> Callable[[], None]:
    """Call functions around the steps of all optimizers of PyTorch, also those that are made later.

    Args:
        before: Called with what is about to be updated; if a closure computes gradients, when it has done so.
        after: Called after the update.

    Returns: a function that ends this.
    """

    def begin(optimizer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return _with_closure(args, kwargs, lambda: before(updated))

    handles = (register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(lambda *_: after()))

    def end() -> None:
        for handle in handles:
            handle.remove()

    return end


def _nothing() -> None:
    return


def _with_closure(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], before: Callable[[], None]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Call ``before`` now or, if a closure computes the gradients, when it has done so for the first time."""
    place = next((place for place, each in enumerate(args) if _is_closure(each)), None)
    closure = kwargs.get("closure") if place is None else args[place]
    if closure is None:
        before()
        return args, kwargs
    is_first = True

    def computed(*values: Any, **named: Any) -> Any:
        nonlocal is_first
        loss = closure(*values, **named)
        if is_first:
            is_first = False
            before()
        return loss

    if place is None:
        return args, {**kwargs, "closure": computed}
    return (*args[:place], computed, *args[place + 1 :]), kwargs


def _is_closure(value: Any) -> bool:
    return callable(value) and not isinstance(value, torch.optim.Optimizer)
