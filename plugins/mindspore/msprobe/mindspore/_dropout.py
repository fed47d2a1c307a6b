"""Disable dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from mindspore import ops

_MASKED = ("Dropout", "Dropout2D", "Dropout3D")
"""Operators that return the kept values and a mask: `mindspore.nn` and `mindspore.ops` call them."""

_ABSENT = object()

Constructed: TypeAlias = WeakKeyDictionary[Any, Callable[[Any], None]]
"""Operators that were constructed without dropout, with a function that constructs each as requested."""


def remove_dropout() -> Callable[[], None]:
    """Disable every dropout until the returned function is called.

    In the dynamic graph this includes operators that were constructed before. A static graph uses its operators as
    constructed: those constructed from now on keep everything, even after the end in graphs that were compiled before
    it.
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
    replace(type(generated.func_dropout_ext_op), "__call__", _hand_on)  # `mindspore.mint` calls it

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
    """Whether dropout is disabled now."""
    return vars(ops.Dropout).get("__call__") is _hand_on_with_mask


def _keeping(construct: Callable[..., None], constructed: Constructed) -> Callable[..., None]:
    """Return a constructor of operators that keep everything; ``construct`` is the original constructor."""

    def construct_to_keep(self: Any, keep_prob: float = 0.5, *others: Any, **named: Any) -> None:
        construct(self, 1.0, *others, **named)
        constructed[self] = lambda operator: construct(operator, keep_prob, *others, **named)

    return construct_to_keep


def _hand_on_with_mask(self: Any, values: Any) -> tuple[Any, Any]:  # noqa: ARG001
    return values, ops.ones_like(values)


def _hand_on(self: Any, values: Any, *_: Any) -> Any:  # noqa: ARG001
    return values
