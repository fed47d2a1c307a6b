"""Dropout that drops nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from mindspore import ops

_MASKED = ("Dropout", "Dropout2D", "Dropout3D")
"""Operators that return what is kept and which elements those are: `mindspore.nn` and `mindspore.ops` call them."""

_ABSENT = object()

Constructed: TypeAlias = WeakKeyDictionary[Any, Callable[[Any], None]]
"""Operators that were constructed to keep everything, and what constructs each as it was asked for."""


def remove_dropout() -> Callable[[], None]:
    """Let no dropout drop anything, until what is returned is called.

    In the dynamic graph that holds for all of it, also for what was constructed before. A static graph takes what its
    operators were constructed with: those that are constructed from now on keep everything, in graphs that are compiled
    before the end also after it.
    """
    replaced: list[tuple[type, str, Any]] = []
    constructed: Constructed = WeakKeyDictionary()

    def replace(owner: type, attribute: str, value: Any) -> None:
        replaced.append((owner, attribute, vars(owner).get(attribute, _ABSENT)))
        setattr(owner, attribute, value)

    for name in _MASKED:
        operator: type = getattr(ops, name)
        replace(operator, "__init__", _keeping(operator.__init__, constructed))
        replace(operator, "__call__", _hand_on_with_mask)
    generated: Any = ops.auto_generate
    replace(type(generated.func_dropout_ext_op), "__call__", _hand_on)  # what `mindspore.mint` calls

    def put_back() -> None:
        while replaced:
            owner, attribute, own = replaced.pop()
            if own is _ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, own)
        for operator, construct in constructed.items():
            construct(operator)
        constructed.clear()

    return put_back


def is_removed() -> bool:
    """Whether no dropout drops anything now."""
    return vars(ops.Dropout).get("__call__") is _hand_on_with_mask


def _keeping(construct: Callable[..., None], constructed: Constructed) -> Callable[..., None]:
    """Return a constructor of operators that keep everything; ``construct`` is their own."""

    def construct_to_keep(self: Any, keep_prob: float = 0.5, *others: Any, **named: Any) -> None:
        construct(self, 1.0, *others, **named)
        constructed[self] = lambda operator: construct(operator, keep_prob, *others, **named)

    return construct_to_keep


def _hand_on_with_mask(self: Any, values: Any) -> tuple[Any, Any]:  # noqa: ARG001
    return values, ops.ones_like(values)


def _hand_on(self: Any, values: Any, *_: Any) -> Any:  # noqa: ARG001
    return values
