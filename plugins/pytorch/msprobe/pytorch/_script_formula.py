"""The source of a fused operator's reference formula, for scripts that have neither msprobe nor the operator."""

from __future__ import annotations

import ast
import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

PACKAGE = "msprobe.pytorch."

_IMPORTS = {
    "partial": "from functools import partial", "NamedTuple": "from typing import NamedTuple",
    "functional": "from torch.nn import functional", "Tensor": "from torch import Tensor",
}  # fmt: skip
"""What formulas use beside PyTorch, and how it is imported."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A function as source code, with all that it uses.

    Attributes:
        name: Its name.
        imports: Lines of imports beside that of PyTorch.
        source: The code; definitions come before what uses them.
        parameters: Names of those of its arguments that it has left; ``None`` if it takes those of the call.
        function: Function that it is the code of.
        is_of_floats: Whether all tensors of the call are known to be real, and its results to be of floating point.
    """

    name: str
    imports: Sequence[str]
    source: str
    function: Callable[..., Any]
    parameters: Sequence[str] | None = None
    is_of_floats: bool = False

    def called(self, call: str) -> str:
        """Return a call of it, with the arguments of another call."""
        parsed = ast.parse(call, mode="eval").body
        assert isinstance(parsed, ast.Call)
        if self.parameters is None:
            return f"{self.name}{call[len(ast.get_source_segment(call, parsed.func) or '') :]}"
        args = [ast.get_source_segment(call, each) for each in parsed.args]
        kwargs = {each.arg or "": ast.get_source_segment(call, each.value) for each in parsed.keywords}
        given = dict(named_arguments(inspect.signature(self.function).bind(*args, **kwargs)))
        return f"{self.name}({', '.join(str(given[name]) for name in self.parameters)})"


def named_arguments(bound: inspect.BoundArguments) -> Iterator[tuple[str, Any]]:
    """Yield all arguments, also those of ``*args`` and ``**kwargs``, with a name of their own."""
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"{name}_{i}", each) for i, each in enumerate(value))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        else:
            yield name, value


def whole_formula(function: Callable[..., Any]) -> Formula:
    """Return the code of a function of this package, as it is."""
    sources = Sources()
    sources.add(function)
    sources.explain(function)
    return Formula(name=function.__name__, imports=sources.imports, source=sources.text, function=function)


def first_sentence(function: Callable[..., Any]) -> str:
    """Return the first paragraph of what a function says of itself, in one line."""
    return (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")


class Sources:
    """Source code of functions and of all that they use, without annotations and comments."""

    def __init__(self) -> None:
        """Begin empty."""
        self._used: set[str] = set()
        self._written: dict[str, str] = {}

    @property
    def imports(self) -> list[str]:
        """Lines of imports beside that of PyTorch."""
        return [line for name, line in _IMPORTS.items() if name in self._used]

    @property
    def text(self) -> str:
        """The code; definitions come before what uses them."""
        return "\n".join(self._written.values())

    def add(self, function: Any) -> None:
        """Collect the code of a function of this package."""
        self._collect(sys.modules[function.__module__], function.__name__)

    def explain(self, function: Callable[..., Any]) -> None:
        """Write into a collected function what it says of itself."""
        if first := first_sentence(function):
            begin, rest = self._written[function.__name__].split("\n", 1)
            self._written[function.__name__] = f'{begin}\n    """{first}"""\n{rest}'

    def _collect(self, module: ModuleType, name: str) -> None:
        if name in self._written or name in self._used:
            return
        if name == "ReplayError":
            self._written[name] = f"{name} = ValueError"
            return
        node = _definitions(module).get(name)
        if node is None:  # imported, from this package or another
            origin = sys.modules.get(getattr(getattr(module, name, None), "__module__", None) or "")
            if origin is not None and origin is not module and origin.__name__.startswith(PACKAGE):
                self._collect(origin, name)
            else:
                self._used.add(name)
            return
        self._written[name] = ""  # so that a function may call itself
        bare: Any = _Bare().visit(copy.deepcopy(node))
        for each in ast.walk(bare):
            if isinstance(each, ast.Name) and hasattr(module, each.id):
                self._collect(module, each.id)
        del self._written[name]  # after what it uses
        self._written[name] = ast.unparse(bare).replace("\n\n", "\n")


@cache
def bare_definition(module: ModuleType, name: str) -> ast.stmt | None:
    """Return what a module defines by a name, in a class if that has a dot, without annotations, texts and refusals."""
    first, _, rest = name.partition(".")
    node = _definitions(module).get(first)
    if node is None:
        return None
    bare: Any = _Bare().visit(copy.deepcopy(node))
    if rest:
        found = [each for each in bare.body if isinstance(each, ast.FunctionDef) and each.name == rest]
        return found[0] if found else None
    return bare


@cache
def _definitions(module: ModuleType) -> Mapping[str, ast.stmt]:
    """Return the statements at the top of a module by the names that they define."""
    found: dict[str, ast.stmt] = {}
    for each in ast.parse(inspect.getsource(module)).body:
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            found[each.name] = each
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found[each.target.id] = each
        elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            found[each.targets[0].id] = each
    return found


class _Bare(ast.NodeTransformer):
    """Removes what a script does not need.

    These are annotations, docstrings, and refusals: a call that is refused has no script. Fields of a named tuple need
    an annotation, and get one that says nothing.
    """

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:  # its name in `ast`
        node.returns = None
        self.generic_visit(node)
        node.body = [each for each in node.body if not _is_text(each) and not _refuses(each)]
        node.body = node.body or [ast.Pass()]
        return node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        self.generic_visit(node)
        return None if isinstance(node.body[0], ast.Raise) and not node.orelse else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.body = [each for each in node.body if not _is_text(each)]
        for each in node.body:
            if isinstance(each, ast.AnnAssign):
                each.annotation = ast.Name("object")
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return node
        return ast.fix_missing_locations(ast.copy_location(ast.Assign([node.target], self.visit(node.value)), node))

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node


def _refuses(statement: ast.stmt) -> bool:
    """Whether a statement is there for calls that are not replayed, which have no script."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "_refuse"
    return is_call or isinstance(statement, ast.Assert)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
