"""A reference formula written for one call: what the arguments of the call decide is decided, and the rest is left.

The code of the formula is evaluated, statement by statement, with the arguments of the call. Numbers, texts, shapes and
``None`` are known, so conditions on them choose a branch; functions of this package are written where they are called.
What computes with tensors stays as it is, with the names and in the order of the formula, so it gives the same bits. A
function with a condition on what is not known is written as a whole, and called.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from msprobe.pytorch._script_code import (
    class_code,
    extended,
    function_code,
    load,
    mapped,
    merged,
    pruned,
    renamed,
    replaced,
    store,
    stores,
    uses_of,
    with_plain_names,
)
from msprobe.pytorch._script_formula import bare_definition
from msprobe.pytorch._script_values import (
    Closure,
    Context,
    Frame,
    Known,
    Star,
    UnknownError,
    all_parts,
    apply_defaults,
    is_computed,
    is_dtype,
    is_equal,
    is_ours,
    is_plain,
    items_of,
    known,
    needed,
    plain,
    tuple_of,
    unknown,
    values_of,
)

_LONGEST = 100
"""Longest expression that is put in place of a name, in characters."""

_MOST_TURNS = 4
"""Most turns of a loop of one statement that are written one by one."""

_KNOWN = frozenset(["shape", "ndim"])
_KNOWN_CALLS = frozenset(["numel", "dim", "size", "is_floating_point", "is_complex"])
"""What is known of a tensor without its values."""


class Specialised:
    """Source code of a function for the arguments of one call.

    Attributes:
        parameters: Names of the arguments that it has left, all of them used.
        kept: Functions that it calls as they are.
        node: Its definition.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: inspect.BoundArguments, gradients: frozenset[int] | None = None
    ) -> None:
        """Evaluate a function.

        Args:
            function: A function of this package.
            arguments: Its arguments, `Known` ones; those that the code has left have a name as code.
            gradients: Numbers of the results that gradients are taken of; ``None`` in a forward, which needs all.

        Raises:
            UnknownError: it cannot be written for this call.
        """
        self.kept: dict[str, Any] = {}
        self._has_gradient = gradients is not None
        self._blocks: list[list[ast.stmt]] = [[]]
        self._names: set[str] = set()
        for each in all_parts(arguments.arguments.values()):
            if isinstance(each.code, ast.Name):
                self._names.add(each.code.id)
        given = [each.code.id for each in all_parts(arguments.arguments.values()) if isinstance(each.code, ast.Name)]
        self._depth = 0
        with torch.no_grad():
            found = needed(self._inlined(function, arguments), gradients)
        self._write(ast.Return(self._code(found)))
        body = merged(pruned(self._blocks[0]))
        used = {each.id for statement in body for each in ast.walk(statement) if isinstance(each, ast.Name)}
        self.parameters = [name for name in given if name in used]
        self.kept = {name: each for name, each in self.kept.items() if name in used}
        parameters = [ast.arg(name) for name in self.parameters]
        self.node = renamed(function_code(function.__name__, parameters, body), set(self.kept))

    # --- statements -------------------------------------------------------------------------------------------------

    def _write(self, statement: ast.stmt) -> None:
        self._blocks[-1].append(ast.fix_missing_locations(statement))

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

    # --- expressions ------------------------------------------------------------------------------------------------

    def _decided(self, test: ast.expr, frame: Frame) -> bool:
        found = self._of(test, frame)
        if not found.is_plain:
            raise UnknownError(ast.unparse(test))
        return bool(found.value)

    def _code(self, value: Known) -> ast.expr:
        """Return the expression of a value."""
        if value.code is not None and not (value.parts is not None and isinstance(value.code, ast.GeneratorExp)):
            return value.code
        if isinstance(value.parts, Sequence):
            parts = [self._code(each) for each in value.parts]
            return ast.List(parts) if isinstance(value.value, list) else ast.Tuple(parts)
        raise UnknownError("something that is not written")

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

    # --- calls ------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, frame: Frame) -> Known:
        if isinstance(node.func, ast.Attribute):
            base = self._of(node.func.value, frame)
            if (found := self._method(base, node, frame)) is not None:
                return found
            if isinstance(base.value, Context):
                function = self._attribute(node.func, frame)
            else:
                value, is_written = getattr(base.value, node.func.attr), base.code is not None or base.parts is not None
                code = ast.Attribute(self._code(base), node.func.attr) if is_written else None
                function = Known(value=value, code=code, is_plain=base.is_plain, varies=base.varies)
        else:
            function = self._of(node.func, frame)
        args = [item for each in node.args for item in self._spread(each, frame)]
        kwargs: dict[str, Known] = {}
        for each in node.keywords:
            value = self._of(each.value, frame)
            if each.arg is not None:
                kwargs[each.arg] = value
            elif isinstance(value.parts, Mapping):
                kwargs |= value.parts
            else:
                raise UnknownError("arguments that are not known")
        return self._called(function, args, kwargs)

    def _called(self, function: Known, args: list[Known], kwargs: dict[str, Known]) -> Known:
        called = function.value
        if isinstance(called, functools.partial):
            own = [plain(each) for each in called.args]
            named = {key: plain(each) for key, each in called.keywords.items()}
            return self._called(Known(value=called.func, code=None, is_plain=True), [*own, *args], {**named, **kwargs})
        if called is functools.partial:
            first, *rest = args
            if rest or not all(each.is_plain for each in kwargs.values()):
                raise UnknownError("a partial call")
            values = {key: each.value for key, each in kwargs.items()}
            return Known(value=functools.partial(first.value, **values), code=None, is_plain=True)
        if isinstance(called, Closure):
            return self._closure(called, args, kwargs)
        if is_ours(called):
            if isinstance(called, type):
                bound = inspect.signature(called).bind(*args, **kwargs)
                apply_defaults(bound)
                value = called(**{name: each.value for name, each in bound.arguments.items()})
                return Known(value=value, code=None, parts=dict(bound.arguments))
            return self._function(called, args, kwargs)
        if (
            called in (zip, enumerate, tuple, list, map, reversed)
            and (found := self._sequence(called, args, kwargs)) is not None
        ):
            return found
        if called in (isinstance, len) and isinstance(args[0].parts, Sequence | None) and not args[0].varies:
            return plain(called(*(each.value for each in args)))
        args = [self._python(each) for each in args]
        kwargs = {key: self._python(each) for key, each in kwargs.items()}
        value = called(*values_of(args), **{key: each.value for key, each in kwargs.items()})
        every = [function, *args, *kwargs.values()]
        if all(each.is_plain for each in every) and is_plain(value):
            return plain(value)
        if called is range and all(each.is_plain for each in args):
            code = ast.Call(self._code(function), [self._code(each) for each in args], [])
            return Known(value=value, code=code, is_plain=True)
        named = [ast.keyword(key, self._code(each)) for key, each in kwargs.items()]
        code = ast.Call(self._code(function), [self._code(each) for each in args], named)
        return Known(value=value, code=code, varies=any(each.varies for each in every))

    def _python(self, value: Known) -> Known:
        """Return a function inside of a formula as one that Python calls with what is known."""
        closure = value.value
        if not isinstance(closure, Closure):
            return value
        return replace(value, value=lambda *args: self._closure(closure, list(map(plain, args)), {}).value)

    def _method(self, base: Known, node: ast.Call, frame: Frame) -> Known | None:
        """Return the result of a method that this module knows; ``None`` for others."""
        assert isinstance(node.func, ast.Attribute)
        name = node.func.attr
        if isinstance(base.parts, Mapping):
            args = [item for each in node.args for item in self._spread(each, frame)]
            kwargs = {str(each.arg): self._of(each.value, frame) for each in node.keywords}
            if name == "_replace":
                value = base.value._replace(**{key: each.value for key, each in kwargs.items()})
                return replace(base, value=value, parts={**base.parts, **kwargs})
            return self._function(getattr(type(base.value), name), [base, *args], kwargs)
        if isinstance(base.value, Tensor) and name in _KNOWN_CALLS and not base.varies:
            args = [self._of(each, frame) for each in node.args]
            value = getattr(base.value, name)(*(each.value for each in args))
            return plain(tuple(value) if isinstance(value, torch.Size) else value)
        if isinstance(base.value, type) and issubclass(base.value, torch.autograd.Function) and name == "apply":
            args = [item for each in node.args for item in self._spread(each, frame)]
            return self._applied(base.value, args)
        return None

    def _sequence(self, called: Any, args: list[Known], kwargs: dict[str, Known]) -> Known | None:
        """Return a known sequence made of others; ``None`` if one of those is not known."""
        if called is map:
            function, *over = args
            columns = [items_of(each) for each in over]
            if any(each is None for each in columns):
                return None
            rows = zip(*(each for each in columns if each is not None), strict=False)
            return tuple_of([self._called(function, list(row), {}) for row in rows])
        begin = args[1].value if called is enumerate and args[1:] else 0
        columns = [items_of(each) for each in (args[:1] if called is enumerate else args)]
        known = [each for each in columns if each is not None]
        if len(known) < len(columns) or any(each.varies for each in args):
            return None
        if called is zip:
            return tuple_of([tuple_of(row) for row in zip(*known, strict=bool(kwargs))])
        if called is enumerate:
            return tuple_of([tuple_of([plain(i), each]) for i, each in enumerate(known[0], begin)])
        if called is reversed:
            return tuple_of(known[0][::-1])
        return tuple_of(known[0] if known else [], called)

    def _function(self, function: Any, args: list[Known], kwargs: dict[str, Known]) -> Known:
        """Return the result of a function of this package, written here or called as it is."""
        lengths, names, kept = [len(each) for each in self._blocks], set(self._names), dict(self.kept)
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
            return self._inlined(function, bound)
        except (UnknownError, TypeError) as error:
            for block, length in zip(self._blocks, lengths, strict=True):
                del block[length:]
            self._names, self.kept = names, kept
            if function.__name__ != function.__qualname__:  # a method
                raise UnknownError(function.__qualname__) from error
        self.kept[function.__name__] = function
        self._names.add(function.__name__)
        value = function(*values_of(args), **{key: each.value for key, each in kwargs.items()})
        named = [ast.keyword(key, self._code(each)) for key, each in kwargs.items()]
        code = ast.Call(load(function.__name__), [self._code(each) for each in args], named)
        return Known(value=value, code=code, varies=any(each.varies for each in [*args, *kwargs.values()]))

    def _inlined(self, function: Any, bound: inspect.BoundArguments) -> Known:
        module = sys.modules[function.__module__]
        node = bare_definition(module, function.__qualname__)
        if not isinstance(node, ast.FunctionDef):
            raise UnknownError(function.__qualname__)
        apply_defaults(bound)
        return self._body(node, bound.arguments, Frame(module))

    def _closure(self, closure: Closure, args: list[Known], kwargs: dict[str, Known]) -> Known:
        node = closure.node
        given = node.args
        if given.defaults or given.kw_defaults or kwargs:
            raise UnknownError("arguments of a function inside of a function")
        names = [each.arg for each in given.args]
        bound: dict[str, Any] = dict(zip(names, args, strict=False))
        if given.vararg is not None:
            bound[given.vararg.arg] = tuple(args[len(names) :])
        elif len(names) != len(args):
            raise UnknownError("arguments of a function inside of a function")
        return self._body(node, bound, Frame(closure.frame.module, outer=closure.frame))

    def _body(self, node: ast.FunctionDef | ast.Lambda, bound: Mapping[str, Any], frame: Frame) -> Known:
        self._depth += 1
        if self._depth > 20:
            raise UnknownError("a function that calls itself")
        body: Any = node.body if isinstance(node, ast.FunctionDef) else [ast.Return(node.body)]
        uses = uses_of(body)
        for name, value in bound.items():
            given = known(value)
            is_short = given.code is not None and len(ast.unparse(given.code)) <= _LONGEST
            is_atom = not is_computed(given) or is_dtype(given.code) or (uses.get(name, 0) <= 1 and is_short)
            frame.names[name] = given if is_atom else self._named(name, given)
        found = self._run(body, frame)
        self._depth -= 1
        return plain(None) if found is None else found

    # --- functions with a gradient of their own ---------------------------------------------------------------------

    def _applied(self, function: Any, args: list[Known]) -> Known:
        """Return the result of an autograd function: its forward, or the whole class if there is a gradient."""
        node = bare_definition(sys.modules[function.__module__], function.__qualname__)
        if not isinstance(node, ast.ClassDef):
            raise UnknownError(function.__qualname__)
        methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
        names = [each.arg for each in methods["forward"].args.args]
        frame = Frame(sys.modules[function.__module__])
        if not self._has_gradient:
            context = Known(value=Context(), code=None)
            return self._body(methods["forward"], dict(zip(names, [context, *args], strict=True)), frame)
        return self._class(function, methods, names[1:], args)

    def _class(
        self, function: Any, methods: Mapping[str, ast.FunctionDef], names: Sequence[str], args: Sequence[Known]
    ) -> Known:
        module = sys.modules[function.__module__]
        context = Known(value=Context(), code=load("ctx"))
        is_left = [isinstance(each.value, Tensor) and each.code is not None for each in args]
        inside: list[Known] = []
        for name, each, left in zip(names, args, is_left, strict=True):
            own = each.code.id if isinstance(each.code, ast.Name) else self._fresh(name)
            inside.append(replace(each, code=load(own), parts=None) if left else each)
        with self._block() as forward:
            bound = dict(zip(names, inside, strict=True)) | {"ctx": context}
            results = self._body(methods["forward"], bound, Frame(module))
            self._write(ast.Return(self._code(results)))
        items = items_of(results) or [results]
        changes = self._fresh("gradients")
        slopes = tuple(
            Known(value=torch.ones_like(each.value), code=ast.Subscript(load(changes), ast.Constant(i)))
            for i, each in enumerate(items)
        )
        with self._block() as backward:
            found = self._body(methods["backward"], {"ctx": context, "gradients": slopes}, Frame(module))
            kept = [each for each, left in zip(items_of(found) or [found], is_left, strict=True) if left]
            self._write(ast.Return(self._code(tuple_of(kept) if len(kept) > 1 else kept[0])))
        left_args = [each for each, left in zip(inside, is_left, strict=True) if left]
        parameters = [ast.arg("ctx"), *(ast.arg(ast.unparse(self._code(each))) for each in left_args)]
        made = [
            function_code("forward", parameters, forward),
            function_code("backward", [ast.arg("ctx")], backward, changes),
        ]
        name = self._fresh(function.__name__)
        bases: list[ast.expr] = [ast.parse("torch.autograd.Function", mode="eval").body]
        self._write(class_code(name, bases, made))
        given = [self._code(each) for each, left in zip(args, is_left, strict=True) if left]
        code = ast.Call(ast.Attribute(load(name), "apply"), given, [])
        values = tuple(each.value for each in items)
        return Known(value=values if results.parts is not None else values[0], code=code)
