"""A reference formula written for one call: what the arguments of the call decide is decided, and the rest is left.

The code of the formula is evaluated, statement by statement, with the arguments of the call. Numbers, texts, shapes and
``None`` are known, so conditions on them choose a branch; functions of this package are written where they are called.
What computes with tensors stays as it is, with the names and in the order of the formula, so it gives the same bits. A
function with a condition on what is not known is written as a whole, and called.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

import torch

from msprobe.pytorch._formula_code import (
    function_code,
    merged,
    pruned,
    renamed,
)
from msprobe.pytorch._formula_statements import Statements
from msprobe.pytorch._formula_values import (
    all_parts,
    needed,
)


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
