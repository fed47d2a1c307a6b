"""The expressions of a formula, evaluated for one call."""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from msprobe.pytorch._formula_code import (
    load,
    mapped,
    replaced,
    store,
    with_plain_names,
)
from msprobe.pytorch._formula_values import (
    Closure,
    Context,
    Frame,
    Known,
    Star,
    UnknownError,
    is_computed,
    is_plain,
    items_of,
    plain,
    tuple_of,
    values_of,
)
from msprobe.pytorch._script_formula import bare_definition

_KNOWN = frozenset(["shape", "ndim"])
"""What is known of a tensor without its values."""


class Place(NamedTuple):
    """What was written at some time."""

    lengths: Sequence[int]
    names: frozenset[str]
    kept: Mapping[str, Any]


class Writing:
    """Writes statements, in blocks inside each other."""

    def __init__(self) -> None:
        """Begin without any."""
        self.kept: dict[str, Any] = {}
        self._blocks: list[list[ast.stmt]] = [[]]
        self._names: set[str] = set()

    def _write(self, statement: ast.stmt) -> None:
        self._blocks[-1].append(ast.fix_missing_locations(statement))

    def _place(self) -> Place:
        return Place([len(each) for each in self._blocks], frozenset(self._names), dict(self.kept))

    def _return_to(self, place: Place) -> None:
        """Remove what was written since."""
        for block, length in zip(self._blocks, place.lengths, strict=True):
            del block[length:]
        self._names, self.kept = set(place.names), dict(place.kept)

    @contextmanager
    def _block(self) -> Iterator[list[ast.stmt]]:
        self._blocks.append([])
        try:
            yield self._blocks[-1]
        finally:
            self._blocks.pop()

    def _fresh(self, name: str) -> str:
        stem = name.lstrip("_") or "each"
        found, number = stem, 1
        while found in self._names or hasattr(builtins, found) or found in ("torch", "np", "math"):
            number += 1
            found = f"{stem}_{number}"
        self._names.add(found)
        return found

    def _code(self, value: Known) -> ast.expr:
        """Return the expression of a value."""
        if value.code is not None and not (value.parts is not None and isinstance(value.code, ast.GeneratorExp)):
            return value.code
        if isinstance(value.parts, Sequence):
            parts = [self._code(each) for each in value.parts]
            return ast.List(parts) if isinstance(value.value, list) else ast.Tuple(parts)
        raise UnknownError("something that is not written")


class Expressions(Writing, ABC):
    """Evaluates expressions."""

    @abstractmethod
    def _call(self, node: ast.Call, frame: Frame) -> Known:
        """Return the result of a call."""

    @abstractmethod
    def _inlined(self, function: Any, bound: inspect.BoundArguments) -> Known:
        """Return the result of a function of this package, whose statements are written."""

    @abstractmethod
    def _bind(self, target: ast.expr, value: Known, frame: Frame) -> None:
        """Give a value to a variable, or to several."""

    @abstractmethod
    def _bind_varying(self, target: ast.expr, value: Any, frame: Frame) -> None:
        """Bind the variables of a loop, and give them names of the written code."""

    def _decided(self, test: ast.expr, frame: Frame) -> bool:
        found = self._of(test, frame)
        if not found.is_plain:
            raise UnknownError(ast.unparse(test))
        return bool(found.value)

    def _of(self, node: ast.expr, frame: Frame) -> Known:  # noqa: C901  # one case per expression
        match node:
            case ast.Name():
                return self._name(node.id, frame)
            case ast.Constant():
                return plain(node.value)
            case ast.Tuple() | ast.List():
                return self._display(node, frame)
            case ast.IfExp():
                return self._of(node.body if self._decided(node.test, frame) else node.orelse, frame)
            case ast.BoolOp():
                return self._bool(node, frame)
            case ast.Attribute():
                return self._attribute(node, frame)
            case ast.Call():
                return self._call(node, frame)
            case ast.Lambda():
                return Known(value=Closure(node, frame), code=None, is_plain=True)
            case ast.GeneratorExp() | ast.ListComp():
                return self._comprehension(node, frame)
            case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[other]):
                sides = self._of(node.left, frame), self._of(other, frame)
                is_same = sides[0].value is sides[1].value
                return plain(is_same is isinstance(node.ops[0], ast.Is))
            case ast.Subscript():
                return self._subscript(node, frame)
            case ast.BinOp(op=ast.Sub()):
                left, right = self._of(node.left, frame), self._of(node.right, frame)
                is_nothing = right.is_plain and type(right.value) is int and right.value == 0
                return left if is_nothing else self._composed(node, frame)
            case _:
                return self._composed(node, frame)

    def _display(self, node: ast.Tuple | ast.List, frame: Frame) -> Known:
        kind = list if isinstance(node, ast.List) else tuple
        items = [item for each in node.elts for item in self._spread(each, frame)]
        if any(isinstance(each.value, Star) for each in items):
            codes = [self._code(each) for each in items]
            code = ast.List(codes) if kind is list else ast.Tuple(codes)
            return Known(value=kind(values_of(items)), code=code, varies=True)
        return tuple_of(items, kind)

    def _name(self, name: str, frame: Frame) -> Known:
        if (found := frame.find(name)) is not None:
            return found
        if not hasattr(frame.module, name):
            return Known(value=getattr(builtins, name), code=load(name), is_plain=True)
        value = getattr(frame.module, name)
        if isinstance(value, types.ModuleType):
            short = {"numpy": "np", "torch.nn.functional": "torch.nn.functional"}.get(value.__name__, value.__name__)
            return Known(value=value, code=ast.parse(short, mode="eval").body, is_plain=True)
        if value is Tensor:
            return Known(value=value, code=ast.parse("torch.Tensor", mode="eval").body, is_plain=True)
        if is_plain(value):
            return plain(value)
        return Known(value=value, code=None, is_plain=True)

    def _bool(self, node: ast.BoolOp, frame: Frame) -> Known:
        found = plain(value=None)
        for each in node.values:
            found = self._of(each, frame)
            if not found.is_plain:
                raise UnknownError(ast.unparse(node))
            if bool(found.value) is isinstance(node.op, ast.Or):
                return found
        return found

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Known:
        base = self._of(node.value, frame)
        if isinstance(base.parts, Mapping):
            if node.attr in base.parts:
                return base.parts[node.attr]
            member = inspect.getattr_static(type(base.value), node.attr)
            if isinstance(member, property) and member.fget is not None:
                return self._inlined(member.fget, inspect.signature(member.fget).bind(base))
            raise UnknownError(node.attr)
        if isinstance(base.value, Context):
            if node.attr == "saved_tensors":
                return Known(value=base.value.saved, code=ast.Attribute(self._code(base), node.attr))
            return base.value.rest[node.attr]
        value = getattr(base.value, node.attr)
        if isinstance(base.value, Tensor) and node.attr in _KNOWN and not base.varies:
            return plain(tuple(value) if isinstance(value, torch.Size) else value)
        if base.is_plain and is_plain(value):
            return plain(value)
        code = ast.Attribute(self._code(base), node.attr)
        return Known(value=value, code=code, is_plain=base.is_plain, varies=base.varies)

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Known:
        base = self._of(node.value, frame)
        if base.parts is not None or (base.is_plain and not isinstance(base.value, Tensor)):
            index = self._of(node.slice, frame)
            if isinstance(base.parts, Sequence) and index.is_plain:
                found = base.parts[index.value]
                return found if isinstance(found, Known) else tuple_of(found)
            if base.is_plain and index.is_plain:
                found = base.value[index.value]
                if not is_plain(found):  # a function in a table
                    return self._of_table(node, found)
                return plain(found)
        return self._composed(node, frame)

    def _of_table(self, node: ast.Subscript, found: Any) -> Known:
        """Return a function of a table of functions at the top of a module, by its code in there."""
        if isinstance(found, types.FunctionType) and found.__name__ == "<lambda>" and isinstance(node.value, ast.Name):
            module = sys.modules[found.__module__]
            table = bare_definition(module, node.value.id)
            values = table.value.values if isinstance(table, ast.Assign) and isinstance(table.value, ast.Dict) else []
            for each, own in zip(values, getattr(module, node.value.id).values(), strict=False):
                if own is found and isinstance(each, ast.Lambda):
                    return Known(value=Closure(each, Frame(module)), code=None, is_plain=True)
        return Known(value=found, code=None, is_plain=True)

    def _spread(self, node: ast.expr, frame: Frame) -> list[Known]:
        """Return the values of an item, or of several that have a star."""
        if not isinstance(node, ast.Starred):
            return [self._of(node, frame)]
        value = self._of(node.value, frame)
        if (items := items_of(value)) is not None:
            return list(items)
        return [replace(value, code=ast.Starred(self._code(value)), value=Star(value.value))]

    def _composed(self, node: ast.expr, frame: Frame) -> Known:
        """Return the value of an expression whose parts are evaluated first."""
        places: dict[str, Any] = {"__builtins__": builtins}
        inner: list[Known] = []

        def evaluated(child: ast.expr) -> tuple[ast.expr, ast.expr]:
            found = self._of(child, frame)
            inner.append(found)
            name = f"part_{len(inner)}"
            places[name] = found.value
            return load(name), self._code(found)

        concrete, code = mapped(node, evaluated)
        compiled = compile(ast.fix_missing_locations(ast.Expression(concrete)), "formula", "eval")
        value = eval(compiled, places)  # noqa: S307  # an expression of this package, whose values have names
        varies = any(each.varies for each in inner)
        is_known = all(each.is_plain for each in inner) and is_plain(value)
        return plain(value) if is_known else Known(value=value, code=code, varies=varies)

    def _comprehension(self, node: ast.GeneratorExp | ast.ListComp, frame: Frame) -> Known:
        generator, *others = node.generators
        over = self._of(generator.iter, frame)
        items = items_of(over)
        if items is None and others:
            raise UnknownError("comprehensions inside of another")
        if items is None:
            return self._repeated(node, over, frame)
        found: list[Known] = []
        for item in items:
            inner = Frame(frame.module, outer=frame)
            self._bind(generator.target, item, inner)
            if all(self._decided(test, inner) for test in generator.ifs):
                rest = type(node)(node.elt, others) if others else node.elt
                value = self._of(rest, inner)
                found += (items_of(value) or []) if others else [value]
        made = tuple_of(found, list if isinstance(node, ast.ListComp) else tuple)
        return replace(made, code=self._uniform(node, items, found, frame))

    def _uniform(
        self, node: ast.GeneratorExp | ast.ListComp, items: list[Known], found: list[Known], frame: Frame
    ) -> ast.expr | None:
        """Return a comprehension as it was, with its names replaced, if it does the same with variables."""
        target = node.generators[0].target
        if len(node.generators) > 1 or len(items) < 2 or len(found) < len(items) or not isinstance(target, ast.Name):
            return None
        if any(each.is_plain or is_computed(each) for each in items) or any(each.code is None for each in found):
            return None
        inner = Frame(frame.module, {target.id: replace(items[0], code=load(target.id), parts=None)}, frame)
        with self._block() as written:
            code = self._of(node.elt, inner).code
        if code is None:
            return None
        codes = [ast.unparse(replaced(code, target.id, self._code(each))) for each in items]
        if written or codes != [ast.unparse(each.code) for each in found if each.code is not None]:
            return None
        over = ast.Tuple([self._code(each) for each in items])
        return ast.GeneratorExp(code, [ast.comprehension(store(target.id), over, [], 0)])

    def _repeated(self, node: ast.GeneratorExp | ast.ListComp, over: Known, frame: Frame) -> Known:
        """Return a comprehension over items that are not known, of which the first gives the code."""
        (generator,) = node.generators
        values: list[Any] = []
        code: ast.expr | None = None
        for each in over.value:
            target, inner = copy.deepcopy(generator.target), Frame(frame.module, outer=frame)
            with self._block() as written:
                self._bind_varying(target, each, inner)
                found = self._of(node.elt, inner)
            if written or generator.ifs:
                raise UnknownError("statements inside of a comprehension")
            values.append(found.value)
            made = ast.comprehension(target, self._code(over), [], 0)
            code = code or with_plain_names(type(node)(self._code(found), [made]))
        if code is None:
            raise UnknownError("a comprehension over nothing")
        return Known(value=values, code=code, varies=True)
