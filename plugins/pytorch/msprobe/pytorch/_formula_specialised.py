"""The formula of one call in its script: as short as the arguments of the call allow, with the same bits.

The code of the formula is evaluated, statement by statement, with the arguments of the call. Numbers, texts, shapes and
``None`` are known, so conditions on them choose a branch; functions of this package are written where they are called.
What computes with tensors stays as it is, with the names and in the order of the formula, so it gives the same bits. A
function with a condition on what is not known is written as a whole, and called.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import keyword
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from msprobe.pytorch._formula_code import function_code, load, merged, pruned, renamed, text_of
from msprobe.pytorch._formula_statements import Statements
from msprobe.pytorch._formula_values import Known, UnknownError, all_parts, is_plain, needed, plain
from msprobe.pytorch._replay import dtype_of, replay, special_of
from msprobe.pytorch._script_formula import Formula, Sources, first_sentence, named_arguments, whole_formula
from msprobe_core.interception import build_arguments, script_tensors, tensors_by_path
from msprobe_core.plugin import Argument, Phase, ReplayCall, ReplayTensor

_log = logging.getLogger(__name__)


class Specialised(Statements):
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
        super().__init__(has_gradient=gradients is not None)
        for each in all_parts(arguments.arguments.values()):
            if isinstance(each.code, ast.Name):
                self._names.add(each.code.id)
        given = [each.code.id for each in all_parts(arguments.arguments.values()) if isinstance(each.code, ast.Name)]
        with torch.no_grad():
            found = needed(self._inlined(function, arguments), gradients)
        self._write(ast.Return(self._code(found)))
        body = merged(pruned(self._blocks[0]))
        used = {each.id for statement in body for each in ast.walk(statement) if isinstance(each, ast.Name)}
        self.parameters = [name for name in given if name in used]
        self.kept = {name: each for name, each in self.kept.items() if name in used}
        parameters = [ast.arg(name) for name in self.parameters]
        self.node = renamed(function_code(function.__name__, parameters, body), set(self.kept))


def formula_for(call: ReplayCall, function: Callable[..., Any]) -> Formula:
    """Return the code of a formula for a call: specialised, if that gives the same bits, or as it is."""
    try:
        replay(call, None)  # refuses what is too large, or what the formula is not written for
        found = specialised_formula(call, function)
        results = same_results(call, function, found)
    except Exception as error:  # noqa: BLE001  # of PyTorch, or of code that has never been evaluated
        _log.debug("%s is written as it is: %s: %s", function.__name__, type(error).__name__, error)
        return whole_formula(function)
    if results is None:
        return whole_formula(function)
    is_of_floats = all(path.isdecimal() and value.is_floating_point() for path, value in results.items())
    is_real = not any(value.values.dtype.kind == "c" for value in script_tensors(call).values())
    return dataclasses.replace(found, is_of_floats=is_of_floats and is_real)


def specialised_formula(call: ReplayCall, function: Callable[..., Any]) -> Formula:
    """Return the code of a formula for one call.

    Raises:
        UnknownError: it cannot be written for this call.
    """
    args, kwargs, _ = _arguments(call, is_wide=True)
    bound = inspect.signature(function).bind(*args, **kwargs)
    for name, value in list(bound.arguments.items()):
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            bound.arguments[name] = tuple(_argument(each, load(f"{name}_{i}")) for i, each in enumerate(value))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            if not all(key.isidentifier() and not keyword.iskeyword(key) for key in value):
                raise UnknownError("an argument whose name is no identifier")
            bound.arguments[name] = {key: _argument(each, load(key)) for key, each in value.items()}
        else:
            bound.arguments[name] = _argument(value, load(name))
    is_backward = call.site.phase is Phase.BACKWARD
    gradients = frozenset(int(path.partition(".")[0]) for path in call.gradients) if is_backward else None
    found, sources = Specialised(function, bound, gradients), Sources()
    for each in found.kept.values():
        sources.add(each)
    first = first_sentence(function)
    begin, rest = text_of(found.node).split("\n", 1)
    text = f'{begin}\n    """{first}"""\n{rest}' if first else f"{begin}\n{rest}"
    source = "\n".join(each for each in (sources.text, text) if each)
    return Formula(
        name=function.__name__, imports=sources.imports, source=source, function=function, parameters=found.parameters
    )


def _argument(value: Any, code: ast.expr) -> Known:
    """Return an argument of a call; ``code`` is its name in the written code."""
    if isinstance(value, list | tuple) and any(isinstance(each, Tensor) for each in value):
        if len(value) > 1:
            return Known(value=value, code=code, varies=True)
        only = [_argument(each, ast.Subscript(code, ast.Constant(0))) for each in value]
        return Known(value=value, code=code, parts=only)
    return plain(value) if is_plain(value) else Known(value=value, code=code)


def _arguments(call: ReplayCall, *, is_wide: bool) -> tuple[list[Any], dict[str, Any], list[Tensor]]:
    """Return the arguments of a call, and those that gradients are taken of."""
    leaves: list[Tensor] = []

    def widened(dtype: torch.dtype) -> torch.dtype:
        if not is_wide or not (dtype.is_floating_point or dtype.is_complex):
            return dtype
        return torch.complex128 if dtype.is_complex else torch.float64

    def make(value: ReplayTensor, _: str) -> Tensor:
        plain_tensor = torch.from_numpy(np.array(value.values))
        made = plain_tensor.to(widened(dtype_of(value)))
        if value.takes_gradient:
            leaves.append(made.requires_grad_())
        return made

    def special(value: Argument) -> Any:
        found = special_of(value, torch.device("cpu"))
        return widened(found) if isinstance(found, torch.dtype) else found

    args, kwargs = build_arguments(call, make, special)
    return args, kwargs, leaves


def same_results(call: ReplayCall, function: Callable[..., Any], formula: Formula) -> Mapping[str, Tensor] | None:
    """Return the results of the code if it gives the bits of the function, and ``None`` otherwise.

    They are compared in float64 and, where the formula is called for that, in the call's own precision.
    """
    defined: dict[str, Any] = {}
    lines = ["import functools, math, torch", "import numpy as np", *formula.imports, formula.source]
    exec("\n".join(lines), defined)  # noqa: S102  # code of this package, with literals of the call

    def written(*args: Any, **kwargs: Any) -> Any:
        given = dict(named_arguments(inspect.signature(function).bind(*args, **kwargs)))
        return defined[formula.name](*(given[name] for name in formula.parameters or ()))

    results: Mapping[str, Tensor] = {}
    for is_wide in (False, True):
        if not is_wide and call.by_reference:
            continue
        results, expected = (_results(call, each, is_wide=is_wide) for each in (written, function))
        if results.keys() != expected.keys():
            return None
        if not all(_has_same_bits(results[path], value) for path, value in expected.items()):
            return None
    return results


def _results(call: ReplayCall, function: Callable[..., Any], *, is_wide: bool) -> dict[str, Tensor]:
    args, kwargs, leaves = _arguments(call, is_wide=is_wide)
    is_backward = call.site.phase is Phase.BACKWARD
    with torch.set_grad_enabled(is_backward):
        results = dict(tensors_by_path(function(*args, **kwargs), Tensor))
    if not is_backward:
        return results
    ends = {path: results[path] for path in call.gradients if path in results and results[path].requires_grad}
    given = [torch.from_numpy(np.array(call.gradients[path].values)).to(end.dtype) for path, end in ends.items()]
    found = torch.autograd.grad(list(ends.values()), leaves, given, allow_unused=True)
    return {str(i): each for i, each in enumerate(found) if each is not None}


def _has_same_bits(found: Tensor, expected: Tensor) -> bool:
    if found.dtype is not expected.dtype or found.shape != expected.shape:
        return False
    bits = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (found, expected)]
    return torch.equal(*bits)
