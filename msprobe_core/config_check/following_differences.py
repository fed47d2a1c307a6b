"""Differences of models that follow from others: from those of modules, of their hooks, sizes and classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msprobe_core.config_check.config_codes import ConfigCode
from msprobe_core.config_check.differences import Difference, Severity
from msprobe_core.config_check.sides import TARGET, demoted, follows, main_code, words_in
from msprobe_core.config_check.values import same
from msprobe_core.findings import Finding, Level
from msprobe_core.manifest.facts import Scalar

_NEUTRAL_HOOKS = ("make_inputs_require_grads",)
"""Functions of hooks that transformers sets for recomputation and adapters; they change no value."""


def without_known_hooks(differences: Iterable[Difference]) -> Iterator[Difference]:
    """Yield differences of modules; hooks that change no value do not matter."""
    for each in differences:
        is_hook = main_code(each) is ConfigCode.MODULE_HOOKS
        lists = [str(value).split(", ") for value in (each.target, each.golden)]
        other = {name for own, others in (lists, lists[::-1]) for name in own if name not in others} - {"none"}
        is_neutral = is_hook and other and all(name.endswith(_NEUTRAL_HOOKS) for name in other)
        yield demoted(each, Finding(ConfigCode.WHY_NEUTRAL_HOOK, Level.NOTE)) if is_neutral else each


def inside_others(differences: Iterable[Difference], modules: Sequence[Difference]) -> Iterator[Difference]:
    """Yield differences; what only one side has in a module that is of another class there follows from the class.

    So does a setting that is named as a parameter that only one side has, such as ``bias``.
    """
    types = [each for each in modules if main_code(each) is ConfigCode.MODULE_TYPE]
    missing = [each for each in modules if main_code(each) is ConfigCode.MODULE_MISSING]
    flags = [each for each in modules if main_code(each) is ConfigCode.MODULE_VALUE]
    for each in differences:
        leader = None
        if each.only_on is not None and each.severity is not Severity.INFO:
            leader = next((one for one in types if _is_inside(each, one)), None)
            if leader is None and main_code(each) is ConfigCode.MODULE_ONLY_HAS:
                leader = next((one for one in flags if _says_the_same(each, one)), None)
            if leader is None and main_code(each) is ConfigCode.PARAMETER_MISSING:
                leader = next((one for one in (*missing, *flags) if _is_inside(each, one)), None)
        yield each if leader is None else demoted(each, follows(leader.path))


def _says_the_same(lone: Difference, both: Difference) -> bool:
    """Whether a setting that one side has is, in modules of a class that both have, another on the two sides."""
    values = (lone.target, both.target) if lone.only_on == TARGET else (lone.golden, both.golden)
    return lone.path.rpartition(".")[2] == both.path.rpartition(".")[2] and same(*values)


def _is_inside(difference: Difference, module: Difference) -> bool:
    return difference is not module and (
        difference.path == module.path or difference.path.startswith(f"{module.path}.") or not module.path
    )


def of_other_sizes(parameters: Iterable[Difference], modules: Sequence[Difference]) -> Iterator[Difference]:
    """Yield differences of parameters; a shape follows from settings of modules that have the same two numbers."""
    sizes = {(each.target, each.golden): each.path for each in modules if isinstance(each.target, int)}
    for each in parameters:
        leader = None
        if each.path.endswith(".shape") and each.severity is Severity.ERROR:
            shapes = [str(value).strip("[]").split(", ") for value in (each.target, each.golden)]
            changed = {(int(a), int(b)) for a, b in zip(*shapes, strict=False) if a != b and a and b}
            if len(shapes[0]) == len(shapes[1]) and changed and changed <= sizes.keys():
                leader = sizes[min(changed)]
            elif len(changed) == 1:
                leader = _in_proportion(each.path, changed.pop(), modules)
        yield each if leader is None else demoted(each, follows(leader))


def _in_proportion(path: str, values: tuple[Any, Any], modules: Sequence[Difference]) -> str | None:
    """Return the setting of modules with a like name that is in the same proportion, as a share and a number are."""
    if not all(isinstance(each, int | float) and not isinstance(each, bool) and each for each in values):
        return None
    for one in modules:
        numbers: Any = one.target, one.golden
        if all(isinstance(each, int | float) and not isinstance(each, bool) and each for each in numbers):
            is_like = any(len(word) > 3 for word in words_in(path) & words_in(one.path))
            if is_like and numbers[0] / numbers[1] == values[0] / values[1]:
                return one.path
    return None


_DEPTHS = frozenset({"layers", "layer", "blocks", "depth", "depths"})


def of_modules(settings: Iterable[Difference], modules: Sequence[Difference]) -> Iterator[Difference]:
    """Yield settings of a model; a number of layers follows from the layers, a share from what was made of it."""
    effective = [each for each in modules if each.severity is not Severity.INFO]
    layers = next((each.path for each in effective if main_code(each) is ConfigCode.MODULE_MISSING), None)
    for each in settings:
        leader = None
        if each.severity is not Severity.INFO and each.only_on is None:
            is_depth = isinstance(each.target, int) and words_in(each.path) & _DEPTHS
            leader = layers if is_depth else _in_proportion(each.path, (each.target, each.golden), effective)
        yield each if leader is None else demoted(each, follows(leader))


def without_names_of_classes(settings: Iterable[Difference], types: Sequence[Difference]) -> Iterator[Difference]:
    """Yield settings; one that names other classes of modules, as ``gelu`` does ``GELUActivation``, follows from them.

    Args:
        settings: Differences of settings of modules, or of the model's configuration.
        types: Differences of the classes of modules, which are themselves left as they are.
    """
    for each in settings:
        may = each.severity is not Severity.INFO and each not in types
        leader = next((one for one in types if may and _names(each, one)), None)
        yield each if leader is None else demoted(each, follows(leader.path))


def _names(setting: Difference, types: Difference) -> bool:
    pairs = (setting.target, types.target), (setting.golden, types.golden)
    if setting.finding.code is ConfigCode.MODULE_HOOKS or list(setting.ranks) != list(types.ranks):
        return False
    return all(_is_word_of(value, str(type_name)) for value, type_name in pairs)


def _is_word_of(value: Scalar, type_name: str) -> bool:
    return isinstance(value, str) and any(len(word) > 2 and word in type_name.lower() for word in words_in(value))
