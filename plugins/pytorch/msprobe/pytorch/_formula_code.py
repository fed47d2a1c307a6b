"""Code that was written for one call, made shorter: names that nothing uses, or that are used once, are left out."""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def store(name: str) -> ast.expr:
    return ast.Name(name, ast.Store())


def function_code(name: str, parameters: list[ast.arg], body: list[ast.stmt], several: str = "") -> ast.FunctionDef:
    arguments = ast.arguments(
        posonlyargs=[], args=parameters, kwonlyargs=[], kw_defaults=[], defaults=[],
        vararg=ast.arg(several) if several else None,
    )  # fmt: skip
    is_method = bool(parameters) and parameters[0].arg == "ctx"
    decorators: list[ast.expr] = [load("staticmethod")] if is_method else []
    made: Any = ast.FunctionDef(name=name, args=arguments, body=body, decorator_list=decorators)
    made.type_params = []
    return ast.fix_missing_locations(made)


def class_code(name: str, bases: list[ast.expr], body: Sequence[ast.stmt]) -> ast.ClassDef:
    made: Any = ast.ClassDef(name=name, bases=bases, keywords=[], body=list(body), decorator_list=[])
    made.type_params = []
    return made


def mapped(node: ast.expr, function: Callable[[ast.expr], tuple[ast.expr, ast.expr]]) -> tuple[ast.expr, ast.expr]:
    """Return two copies of an expression, with other expressions inside."""
    pair: tuple[Any, Any] = (copy.copy(node), copy.copy(node))
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            both = [_mapped_field(each, function) for each in value]
            setattr(pair[0], name, [each for each, _ in both])
            setattr(pair[1], name, [each for _, each in both])
        else:
            for made, each in zip(pair, _mapped_field(value, function), strict=True):
                setattr(made, name, each)
    return pair


def _mapped_field(value: Any, function: Callable[[ast.expr], tuple[ast.expr, ast.expr]]) -> tuple[Any, Any]:
    if isinstance(value, ast.Slice | ast.keyword | ast.FormattedValue):
        return mapped(value, function)  # type: ignore[arg-type]
    if isinstance(value, ast.Tuple) and any(isinstance(each, ast.Slice) for each in value.elts):
        return mapped(value, function)
    return function(value) if isinstance(value, ast.expr) else (value, value)


_REPEATING = (ast.GeneratorExp, ast.ListComp, ast.Lambda)


def uses_of(body: Sequence[ast.AST]) -> dict[str, int]:
    """Return how often each name is used, where a use that may be repeated counts as two."""
    return _counted(body, (*_REPEATING, ast.For, ast.FunctionDef))


def _reads(body: Sequence[ast.AST]) -> dict[str, int]:
    """Return how often each name is read; inside of comprehensions and the like that counts as two."""
    return _counted(body, _REPEATING, only_reads=True)


def _counted(
    body: Sequence[ast.AST], repeating: tuple[type[ast.AST], ...], *, only_reads: bool = False
) -> dict[str, int]:
    found: dict[str, int] = {}

    def visit(node: ast.AST, times: int) -> None:
        if isinstance(node, ast.Name) and (isinstance(node.ctx, ast.Load) or not only_reads):
            found[node.id] = found.get(node.id, 0) + times
        for each in ast.iter_child_nodes(node):
            visit(each, 2 if isinstance(node, repeating) else times)

    for each in body:
        visit(each, 1)
    return found


def extended(body: Sequence[ast.stmt]) -> list[str]:
    """Return names of lists that statements add to."""
    return [
        each.func.value.id
        for statement in body
        for each in ast.walk(statement)
        if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr in ("append", "extend")
        and isinstance(each.func.value, ast.Name)
    ]


def pruned(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements without assignments of what nothing uses; expressions of formulas change nothing."""
    while True:
        reads = _reads(body)
        used = {name for name, times in reads.items() if times > _additions(body).get(name, 0)}
        found = _without(body, used)
        if ast.dump(ast.Module(found, [])) == ast.dump(ast.Module(body, [])):
            return found
        body = found


def _without(body: Sequence[ast.stmt], used: set[str]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.Assign):
            kept = _assignment(statement, used)
            found += [] if kept is None else [kept]
        elif extended([statement]) and isinstance(statement, ast.Expr):
            found += [statement] if used.intersection(extended([statement])) else []
        elif isinstance(statement, ast.With | ast.FunctionDef | ast.ClassDef | ast.For):
            changed = copy.copy(statement)
            changed.body = _without(statement.body, used)
            found += [changed] if changed.body else []
        else:
            found.append(statement)
    return found


def _assignment(statement: ast.Assign, used: set[str]) -> ast.Assign | None:
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Name):
        return statement if target.id in used else None
    assert isinstance(target, ast.Tuple)
    is_used = [isinstance(each, ast.Name) and each.id in used for each in target.elts]
    if not any(is_used):
        return None
    if not isinstance(value, ast.Tuple):
        names = [each if kept else store("_") for each, kept in zip(target.elts, is_used, strict=True)]
        return ast.Assign([ast.Tuple(names)], value, lineno=0)
    left = [each for each, kept in zip(target.elts, is_used, strict=True) if kept]
    right = [each for each, kept in zip(value.elts, is_used, strict=True) if kept]
    if len(left) == 1:
        return ast.Assign(left, right[0], lineno=0)
    return ast.Assign([ast.Tuple(left)], ast.Tuple(right), lineno=0)


def replaced(node: Any, name: str, code: Any) -> Any:
    """Return code with an expression in place of a name."""

    class Replacing(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return copy.deepcopy(code) if node.id == name and isinstance(node.ctx, ast.Load) else node

    return ast.fix_missing_locations(Replacing().visit(copy.deepcopy(node)))


_LONGEST_LINE = 120


def merged(body: list[ast.stmt], uses: Mapping[str, int] | None = None, indent: int = 4) -> list[ast.stmt]:
    """Return statements with what is used once in the place of its name, where the line stays short."""
    uses = _reads(body) if uses is None else uses
    body = list(body)
    for statement in body:
        if isinstance(statement, ast.With | ast.FunctionDef | ast.ClassDef | ast.For):
            statement.body = merged(statement.body, uses, indent + 4)
    i = 0
    while i < len(body):
        found = _merged_into(body, i, uses, indent)
        i = i + 1 if found is None else max(found - 1, 0)
    return body


def _merged_into(body: list[ast.stmt], i: int, uses: Mapping[str, int], indent: int) -> int | None:
    """Put the value of an assignment where it is used once, and return the number of the statement before."""
    statement = body[i]
    if not isinstance(statement, ast.Assign):
        return None
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Name):
        if not _is_merged(body, i, target.id, value, uses, indent):
            return None
        del body[i]
        return i
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return None
    for each, item in zip(target.elts, value.elts, strict=True):
        if isinstance(each, ast.Name) and _is_merged(body, i, each.id, item, uses, indent):
            rest = _assignment(statement, _names_in(target) - {each.id})
            if rest is None:
                del body[i]
            else:
                body[i] = rest
            return i
    return None


def _is_merged(body: list[ast.stmt], i: int, name: str, value: ast.expr, uses: Mapping[str, int], indent: int) -> bool:
    """Put the value of a name where it is used once, unless the line is too long then."""
    if uses.get(name) != 1:
        return False
    for j in range(i + 1, len(body)):
        other = body[j]
        if name not in _names_in(other):
            continue
        if isinstance(other, ast.With | ast.FunctionDef | ast.ClassDef | ast.For):
            return False
        changed = replaced(other, name, value)
        if len(text_of(changed)) + indent > _LONGEST_LINE:
            return False
        body[j] = changed
        return True
    return False


def _additions(body: Sequence[ast.stmt]) -> dict[str, int]:
    names = extended(body)
    return {name: names.count(name) for name in names}


def text_of(statement: ast.stmt) -> str:
    """Return a statement as text, without blank lines and without parentheses around several values."""
    lines = ast.unparse(statement).replace("\n\n", "\n").splitlines()
    return "\n".join(_without_parentheses(line) for line in lines)


def _without_parentheses(line: str) -> str:
    begin, sign, rest = line.partition("return " if line.lstrip().startswith("return (") else " = ")
    if not sign or not rest.startswith("(") or not rest.endswith(")"):
        return line
    shorter = f"{begin}{sign}{rest[1:-1]}"
    try:
        is_same = ast.dump(_in_a_function(shorter)) == ast.dump(_in_a_function(line))
    except SyntaxError:  # of two parentheses that are no pair
        return line
    return shorter if is_same else line


def _in_a_function(line: str) -> ast.Module:
    return ast.parse(f"def function():\n    {line.strip()}")


def _names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def renamed(node: ast.FunctionDef, taken: set[str]) -> ast.FunctionDef:
    """Return a function whose variables have no number where the name without it is free, or not needed any more."""
    for each in _methods(node):
        _rename(each, taken)
    _rename(node, taken)
    return node


def _rename(node: ast.FunctionDef, taken: set[str]) -> None:
    for name in [each for each in _bound(node) if _stem(each) != each]:
        stem = _stem(name)
        if stem in taken or hasattr(builtins, stem):
            continue
        inside = _methods(node)
        if any(stem in _names_in(each) or (name in _names_in(each) and name in _bound(each)) for each in inside):
            continue
        steps = _steps(node.body)
        at = next((i for i, each in enumerate(steps) if name in stores(each)), -1)
        uses = [i for i, each in enumerate(steps) if stem in _names_in(each)]
        is_parameter = name in {each.arg for each in node.args.args}
        is_free = not uses and (is_parameter or stem not in _bound(node))
        is_over = at >= 0 and isinstance(steps[at], ast.Assign) and not is_parameter
        is_over = is_over and all(i < at or (i == at and stem not in stores(steps[i])) for i in uses)
        if is_free or is_over:
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and each.id == name:
                    each.id = stem
                elif isinstance(each, ast.arg) and each.arg == name:
                    each.arg = stem


def _stem(name: str) -> str:
    return re.sub(r"_[0-9]+$", "", name)


def _steps(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return statements in the order in which they run; a loop is one."""
    found: list[ast.stmt] = []
    for each in body:
        if isinstance(each, ast.With):
            found += [ast.Expr(each.items[0].context_expr), *_steps(each.body)]
        else:
            found.append(each)
    return found


def stores(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _methods(node: ast.FunctionDef) -> list[ast.FunctionDef]:
    return [each for each in ast.walk(node) if isinstance(each, ast.FunctionDef) and each is not node]


def with_plain_names(node: Any) -> Any:
    """Return a comprehension whose variables have no number, unless the name is taken in there."""
    for name in stores(node):
        stem = _stem(name)
        if stem not in _names_in(node):
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and each.id == name:
                    each.id = stem
    return node


def _bound(node: ast.FunctionDef) -> list[str]:
    """Return the names of arguments and variables of a function, without those of functions inside."""
    inner = [each for method in _methods(node) for each in ast.walk(method)]
    names = [each.arg for each in (*node.args.args, node.args.vararg) if each is not None]
    names += [
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each not in inner
    ]
    return list(dict.fromkeys(names))
