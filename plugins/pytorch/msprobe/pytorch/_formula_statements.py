"""The statements of a formula, evaluated for one call."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msprobe.pytorch._formula_calls import Calls
from msprobe.pytorch._formula_code import (
    extended,
    load,
    store,
    stores,
)
from msprobe.pytorch._formula_values import (
    Closure,
    Context,
    Frame,
    Known,
    UnknownError,
    is_computed,
    is_equal,
    items_of,
    plain,
    tuple_of,
    unknown,
)

_MOST_TURNS = 4
"""Most turns of a loop of one statement that are written one by one."""


class Statements(Calls):
    """Evaluates statements."""

    def _run(self, body: Sequence[ast.stmt], frame: Frame) -> Known | None:  # noqa: C901  # one case per statement
        """Evaluate statements, and return what they return."""
        for statement in body:
            match statement:
                case ast.Return():
                    return plain(None) if statement.value is None else self._of(statement.value, frame)
                case ast.Assign():
                    value = self._of(statement.value, frame)
                    for target in statement.targets:
                        self._bind(target, value, frame)
                case ast.If():
                    branch = statement.body if self._decided(statement.test, frame) else statement.orelse
                    if (found := self._run(branch, frame)) is not None:
                        return found
                case ast.Expr():
                    self._expression(statement.value, frame)
                case ast.With():
                    if (found := self._with(statement, frame)) is not None:
                        return found
                case ast.For():
                    self._loop(statement, frame)
                case ast.FunctionDef():
                    frame.names[statement.name] = Known(value=Closure(statement, frame), code=None, is_plain=True)
                case ast.Pass():
                    pass
                case _:
                    raise UnknownError(type(statement).__name__)
        return None

    def _bind(self, target: ast.expr, value: Known, frame: Frame) -> None:
        match target:
            case ast.Name():
                frame.names[target.id] = self._named(target.id, value)
            case ast.Attribute():
                context = self._of(target.value, frame).value
                if not isinstance(context, Context):
                    raise UnknownError("an attribute is set")
                context.rest[target.attr] = value
            case ast.Tuple() | ast.List():
                self._bind_items(target.elts, value, frame)
            case _:
                raise UnknownError(type(target).__name__)

    def _bind_items(self, targets: Sequence[ast.expr], value: Known, frame: Frame) -> None:
        items = items_of(value)
        star = next((i for i, each in enumerate(targets) if isinstance(each, ast.Starred)), None)
        if items is not None and star is not None:
            end = len(items) - (len(targets) - star - 1)
            inner = targets[star]
            assert isinstance(inner, ast.Starred)
            targets = [*targets[:star], *[inner.value] * (end - star), *targets[star + 1 :]]
            if any(map(is_computed, items)):
                items = self._assigned_together(targets, items, value.code)
            self._bind(inner.value, tuple_of(items[star:end]), frame)
            targets, items = [*targets[:star], *targets[end:]], [*items[:star], *items[end:]]
        if items is None:
            if star is not None or not all(isinstance(each, ast.Name) for each in targets):
                raise UnknownError("parts that are not known")
            names = [self._fresh(each.id) for each in targets if isinstance(each, ast.Name)]
            self._write(ast.Assign([ast.Tuple([store(name) for name in names])], self._code(value)))
            items = [unknown(each, load(name), value) for name, each in zip(names, value.value, strict=True)]
        elif len(items) == len(targets) and any(map(is_computed, items)):
            items = self._assigned_together(targets, items, value.code)
        for each, item in zip(targets, items, strict=True):
            self._bind(each, item, frame)

    def _assigned_together(
        self, targets: Sequence[ast.expr], items: Sequence[Known], code: ast.expr | None = None
    ) -> list[Known]:
        """Write the assignment of those of several values that are computed, and return all of them.

        Args:
            targets: What they are called.
            items: The values.
            code: An expression of all of them.
        """
        found = list(items)
        computed = [i for i, each in enumerate(items) if is_computed(each) and isinstance(targets[i], ast.Name)]
        names = {i: self._fresh(targets[i].id) for i in computed}  # type: ignore[attr-defined]
        if not names:
            return found
        left, right = [store(name) for name in names.values()], [self._code(items[i]) for i in names]
        is_one = len(left) == 1
        if code is not None and len(left) == len(items):
            self._write(ast.Assign([ast.Tuple(left)], code))
            return [replace(each, code=load(names[i]), parts=None) for i, each in enumerate(items)]
        self._write(ast.Assign([left[0] if is_one else ast.Tuple(left)], right[0] if is_one else ast.Tuple(right)))
        for i, name in names.items():
            found[i] = replace(items[i], code=load(name), parts=None)
        return found

    def _named(self, name: str, value: Known) -> Known:
        """Return a value as a variable, assigned before if it is more than a name."""
        if not is_computed(value):
            return value
        if isinstance(value.parts, Sequence):  # each by itself
            items = list(value.parts)
            return tuple_of(self._assigned_together([store(name)] * len(items), items), type(value.value))
        fresh = self._fresh(name)
        self._write(ast.Assign([store(fresh)], self._code(value)))
        return replace(value, code=load(fresh))

    def _expression(self, node: ast.expr, frame: Frame) -> None:
        """Evaluate an expression for what it does."""
        match node:
            case ast.Constant():
                return
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if isinstance(
                found := frame.find(name), Known
            ) and isinstance(found.value, Context):
                items = [item for each in node.args for item in self._spread(each, frame)]
                if method == "save_for_backward":
                    found.value.saved = tuple(each.value for each in items)
                if found.code is not None:
                    call = ast.Call(ast.Attribute(found.code, method), [self._code(each) for each in items], [])
                    self._write(ast.Expr(call))
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend" as method), args=[more]
            ) if (found := frame.find(name)) is not None and isinstance(found.value, list):
                self._extend(name, found, method, self._of(more, frame), frame)
            case _:
                value = self._of(node, frame)
                if value.code is not None and not isinstance(value.code, ast.Constant):
                    self._write(ast.Expr(value.code))

    def _extend(self, name: str, found: Known, method: str, more: Known, frame: Frame) -> None:
        items, new = items_of(found), [more] if method == "append" else items_of(more)
        if items is not None and new is not None:
            frame.names[name] = tuple_of([*items, *(self._named(name, each) for each in new)], list)
            return
        getattr(found.value, method)(more.value)
        call = ast.Call(ast.Attribute(self._code(found), method), [self._code(more)], [])
        self._write(ast.Expr(call))

    def _with(self, statement: ast.With, frame: Frame) -> Known | None:
        (item,) = statement.items
        manager = self._of(item.context_expr, frame)
        with self._block() as body, manager.value:
            found = self._run(statement.body, frame)
        if body:
            self._write(ast.With([ast.withitem(self._code(manager))], body))
        return found

    def _loop(self, statement: ast.For, frame: Frame) -> None:
        over = self._of(statement.iter, frame)
        items = items_of(over)
        if items is not None and (len(items) <= 1 or (len(statement.body) == 1 and len(items) <= _MOST_TURNS)):
            for item in items:
                self._bind(statement.target, item, frame)
                if self._run(statement.body, frame) is not None:
                    raise UnknownError("a loop that ends early")
            return
        for name in extended(statement.body):
            found = frame.find(name)
            if found is not None and (found.code is None or found.is_plain):
                fresh = self._fresh(name)
                self._write(ast.Assign([store(fresh)], self._code(found)))
                frame.names[name] = Known(value=list(found.value), code=load(fresh), varies=True)
        before = {name: frame.find(name) for each in statement.body for name in stores(each) - {"_"}}
        first: tuple[ast.expr, list[ast.stmt], dict[str, Known]] | None = None
        for value in over.value:  # the code is that of the first turn, the values are those of all
            target = copy.deepcopy(statement.target)
            with self._block() as body:
                self._bind_varying(target, value, frame)
                if self._run(statement.body, frame) is not None:
                    raise UnknownError("a loop that ends early")
            first = first or (target, body, dict(frame.names))
            if any(each is not None and not is_equal(each, frame.find(name)) for name, each in before.items()):
                raise UnknownError("a variable that is carried from turn to turn")
        if first is not None:
            target, body, frame.names = first
            self._write(ast.For(target, self._code(over), body, []))

    def _bind_varying(self, target: ast.expr, value: Any, frame: Frame) -> None:
        """Bind the variables of a loop, and give them names of the written code."""
        if isinstance(target, ast.Name):
            fresh = self._fresh(target.id)
            frame.names[target.id] = Known(value=value, code=load(fresh), varies=True)
            target.id = fresh
        elif isinstance(target, ast.Tuple):
            for each, item in zip(target.elts, value, strict=True):
                self._bind_varying(each, item, frame)
        else:
            raise UnknownError("a variable of a loop")
