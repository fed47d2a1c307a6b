"""Interception of primitives: those that Cells hold, those among the functions, and communication.

A primitive is called through its class, so the class is patched. The primitives themselves, and the Cells that hold
them, are not modified: they can be copied, saved and compiled as usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import mindspore.ops
import mindspore.ops.operations.comm_ops
from mindspore.ops import Primitive

from msprobe.mindspore._apis import Function, is_selected
from msprobe.mindspore._calls import ApiCalls
from msprobe.mindspore._cells import cells_of
from msprobe.mindspore._jit import is_tracing
from msprobe.mindspore._unwritten import shown
from msprobe_core.interception import FunctionPatch, Patches
from msprobe_core.plugin import NamedModel, RiskLevel

PREFIX = "Primitive"
COMMUNICATION = "Distributed"
FUNCTIONAL = "Functional"


class _Named(NamedTuple):
    """A recorded primitive; kept alive, so that its address is not reused."""

    primitive: Any
    prefix: str
    name: str


class PrimitivePatches:
    """Patches the ``__call__`` of primitive classes, and reports the calls of primitives that have a name."""

    def __init__(self, models: Sequence[NamedModel], calls: ApiCalls, risk_level: RiskLevel) -> None:
        """Find the primitives.

        Args:
            models: Nets whose Cells hold primitives, which are named by their attribute and their class.
            calls: Records them.
            risk_level: How many of them are recorded; communication always is.
        """
        self._calls = calls
        self._named: dict[int, _Named] = {}
        for named in (*_of_cells(models, risk_level), *_of_functions(risk_level)):
            self._named.setdefault(id(named.primitive), named)
        self._communication = {kind: kind.__name__ for kind in _communication()}
        kinds = {type(named.primitive): None for named in self._named.values()} | dict.fromkeys(self._communication)
        patches = [FunctionPatch(kind, "__call__", self._run, is_tracing) for kind in kinds]
        self._patches = Patches(patches, are_imported=False)

    def install(self) -> None:
        """Begin."""
        self._patches.install()

    def remove(self) -> None:
        """End."""
        self._patches.remove()

    def _run(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not self._calls.is_looking:
            return function(*args, **kwargs)
        primitive, *rest = args
        named = self._named.get(id(primitive))
        if named is not None:
            prefix, name = named.prefix, named.name
        elif type(primitive) in self._communication:
            prefix, name = COMMUNICATION, self._communication[type(primitive)]
        else:
            return function(*args, **kwargs)
        return self._calls.run(prefix, name, partial(function, primitive), tuple(rest), kwargs, shown=shown(primitive))


def _of_cells(models: Sequence[NamedModel], risk_level: RiskLevel) -> Iterator[_Named]:
    for found in cells_of(models):
        for attribute, primitive in found.module._primitives.items():
            if isinstance(primitive, Primitive) and is_selected(type(primitive).__name__, risk_level):
                yield _Named(primitive, PREFIX, f"{attribute}.{type(primitive).__name__}")


def _of_functions(risk_level: RiskLevel) -> Iterator[_Named]:
    for name, member in vars(mindspore.ops).items():
        if isinstance(member, Primitive) and not name.startswith("_") and is_selected(name, risk_level):
            yield _Named(member, FUNCTIONAL, name)


def _communication() -> Iterator[type[Any]]:
    module = mindspore.ops.operations.comm_ops
    for name, member in vars(module).items():
        is_primitive = isinstance(member, type) and issubclass(member, Primitive)
        if is_primitive and not name.startswith("_") and member.__module__ == module.__name__:
            yield member
