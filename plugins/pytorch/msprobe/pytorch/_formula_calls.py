"""The calls in a formula, evaluated for one call of it: functions of this package are written where they are called."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from msprobe.pytorch._formula_code import (
    class_code,
    function_code,
    load,
    uses_of,
)
from msprobe.pytorch._formula_expressions import Expressions
from msprobe.pytorch._formula_values import (
    Closure,
    Context,
    Frame,
    Known,
    UnknownError,
    apply_defaults,
    is_computed,
    is_dtype,
    is_ours,
    is_plain,
    items_of,
    known,
    plain,
    tuple_of,
    values_of,
)
from msprobe.pytorch._script_formula import bare_definition

_LONGEST = 100
"""Longest expression that is put in place of a name, in characters."""

_MOST_DEPTH = 20
"""Most calls inside of each other."""

_KNOWN_CALLS = frozenset(["numel", "dim", "size", "is_floating_point", "is_complex"])
"""What is known of a tensor without its values."""


class Calls(Expressions):
    """Evaluates calls."""

    def __init__(self, *, has_gradient: bool) -> None:
        """Begin; ``has_gradient``: whether a gradient is taken of what is written."""
        super().__init__()
        self._has_gradient = has_gradient
        self._depth = 0

    @abstractmethod
    def _run(self, body: Sequence[ast.stmt], frame: Frame) -> Known | None:
        """Evaluate statements, and return what they return."""

    @abstractmethod
    def _named(self, name: str, value: Known) -> Known:
        """Return a value as a variable, assigned before if it is more than a name."""

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
        before = self._place()
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
            return self._inlined(function, bound)
        except (UnknownError, TypeError) as error:
            self._return_to(before)
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
        if self._depth > _MOST_DEPTH:
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
