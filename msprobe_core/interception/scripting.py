"""Support for plugins that write a recorded call as source code.

A dump may be untrusted, so nothing of it enters a script as it is: texts and numbers are written as Python literals,
names of arguments must be identifiers, and everything else is rejected.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import re
from collections.abc import Callable, Iterator
from typing import Any

from msprobe_core.errors import ReplayError
from msprobe_core.interception.replaying import NOT_SPECIAL, argument_of
from msprobe_core.model import Argument, ReplayCall, ReplayTensor, ReplayValue

SpecialText = Callable[[Argument], str | None]
"""Returns the expression of an object of the framework's own type; ``None`` for other arguments."""

GRADIENT = "gradient of "
RECORDED_PREFIX = "recorded "
PARAMETER = "parameter "
"""Beginnings of the names of tensors in scripts: incoming gradients, recorded results, and parameters of a module."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def script_tensors(call: ReplayCall) -> dict[str, ReplayTensor]:
    """Return the tensors that a script of a call needs by name: arguments by path, parameters, incoming gradients.

    Arguments that were one tensor in the program are there once, by the path of the first.

    Raises:
        ReplayError: the name of an argument is that of a gradient or of a parameter.
    """
    found = {path: value for path, value in _arguments(call) if _first_path(call, path, value) == path}
    others = {f"{GRADIENT}{path}": value for path, value in call.gradients.items()}
    others |= {f"{PARAMETER}{name}": value for name, value in call.parameters.items()}
    if taken := found.keys() & others.keys():
        raise ReplayError(f"one of its arguments has the name {min(taken)}, which is that of a gradient or a parameter")
    return found | others


def script_leaves(call: ReplayCall) -> dict[str, str]:
    """Return the name of the tensor for each argument that a gradient is taken of."""
    return {path: _first_path(call, path, value) for path, value in _arguments(call) if value.takes_gradient}


def call_text(call: ReplayCall, function: str, special: SpecialText, copy: str = "") -> str:
    """Return the expression of a call, in which tensors are ``x["0"]``, ``x["weight"]``, ….

    Args:
        call: The call.
        function: Expression of what is called; the plugin's own, never from a dump.
        special: Writes arguments of the framework's own types.
        copy: Written after each tensor that a gradient is taken of, for functions that write to their arguments.

    Raises:
        ReplayError: a dump does not store an argument completely, or it cannot be written.
    """

    def write(value: ReplayValue, path: str) -> str:
        if isinstance(value, ReplayTensor):
            return f"x[{literal(_first_path(call, path, value))}]{copy if value.takes_gradient else ''}"
        if isinstance(value, Argument):
            return special(value) or literal(argument_of(value, lambda _: NOT_SPECIAL))
        if isinstance(value, dict):
            pairs = [f"{literal(key)}: {write(item, f'{path}.{key}')}" for key, item in value.items()]
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, list):
            items = [write(item, f"{path}.{i}") for i, item in enumerate(value)]
            if call.has_lists:
                return f"[{', '.join(items)}]"
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        return "None"

    written = [write(value, str(i)) for i, value in enumerate(call.args)]
    others: list[str] = []
    for name, value in call.kwargs.items():
        if _IDENTIFIER.fullmatch(name) and not keyword.iskeyword(name):
            written.append(f"{name}={write(value, name)}")
        else:
            others.append(f"{literal(name)}: {write(value, name)}")
    if others:
        written.append(f"**{{{', '.join(others)}}}")
    return f"{function}({', '.join(written)})"


def may_write(call: ReplayCall) -> bool:
    """Whether a call may write to its arguments, by its name or by a flag such as ``inplace=True``."""
    name = call.site.path
    flags = (value for value in (*call.args, *call.kwargs.values()) if isinstance(value, Argument))
    is_by_name = name.endswith("_") if not name.endswith("__") else name.startswith(("__i", "__set"))
    return is_by_name or any(flag.type == "bool" and flag.value in (True, "True") for flag in flags)


def literal(value: Any) -> str:
    """Return a Python expression of a plain value, in one line of printable ASCII.

    Raises:
        ReplayError: it is not plain.
    """
    if value is None or value is ... or type(value) in (bool, int):
        return "..." if value is ... else repr(value)
    if type(value) is str:
        return _quoted(value)
    if type(value) is float:
        return repr(value) if abs(value) < float("inf") else f'float("{value}")'
    if type(value) is slice:
        return f"slice({literal(value.start)}, {literal(value.stop)}, {literal(value.step)})"
    if type(value) in (tuple, list):
        items = ", ".join(map(literal, value))
        return f"[{items}]" if type(value) is list else f"({items}{',' if len(value) == 1 else ''})"
    raise ReplayError(f"one of its arguments is a {type(value).__name__}, which is not written in a script")


def source_of(function: Callable[..., Any], name: str = "") -> str:
    """Return the source code of a function without annotations and blank lines, which scripts have a copy of.

    Args:
        function: A function at the top of its module.
        name: Its name in scripts, if it differs.
    """
    source = re.sub(r"  # (pyright|noqa): .*", "", inspect.getsource(function)).strip()
    lines = source.splitlines()
    # Of definitions only the first line is other text; the rest keeps its layout and its comments.
    for each in ast.walk(ast.parse(source)):
        if isinstance(each, ast.FunctionDef):
            _without_annotations(each.args)
            own = name or each.name if each.name == function.__name__ else each.name
            lines[each.lineno - 1] = f"{' ' * each.col_offset}def {own}({ast.unparse(each.args)}):"
    return "\n".join(line for line in lines if line)


def _without_annotations(arguments: ast.arguments) -> None:
    for each in (*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if each is not None:
            each.annotation = None


def _quoted(text: str) -> str:
    written = ascii(text)
    return written if '"' in written else f'"{written[1:-1]}"'


def _arguments(call: ReplayCall) -> Iterator[tuple[str, ReplayTensor]]:
    for i, value in enumerate(call.args):
        yield from _inside(value, str(i))
    for name, value in call.kwargs.items():
        yield from _inside(value, name)


def _inside(value: ReplayValue, path: str) -> Iterator[tuple[str, ReplayTensor]]:
    if isinstance(value, ReplayTensor):
        yield path, value
    elif isinstance(value, list | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _inside(item, f"{path}.{key}")


def _first_path(call: ReplayCall, path: str, value: ReplayTensor) -> str:
    if value.identity is None:
        return path
    return next((other for other, each in _arguments(call) if each.identity == value.identity), path)
