"""Differences of the models of two runs: modules and their settings, parameters, and the models' own configuration.

The same difference of many modules is one row with their number: another eps in 32 norms is one decision of a user.
What modules and parameters show is what took effect. A setting of the model's configuration that shows in them is named
after them, as what follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from msprobe_core import names
from msprobe_core.compare.canonical_names import common_wrappers
from msprobe_core.config_check.config_codes import ConfigCode
from msprobe_core.config_check.differences import Difference, Section, SectionResult, Severity
from msprobe_core.config_check.following_differences import (
    inside_others,
    of_modules,
    of_other_sizes,
    without_known_hooks,
    without_names_of_classes,
)
from msprobe_core.config_check.foreign_settings import (
    depends_on_mode,
    is_made_by_framework,
    is_same_setting,
    of_module,
)
from msprobe_core.config_check.severities import severity_of_setting
from msprobe_core.config_check.sides import (
    GOLDEN,
    TARGET,
    Sides,
    because,
    difference,
    differing,
    following,
    follows,
    leaders,
    lone,
    on_side,
    one_setting,
    said,
    section_result,
)
from msprobe_core.config_check.values import as_text, dtype_in
from msprobe_core.findings import Finding
from msprobe_core.manifest.facts import Model, Module, Parameter, Scalar
from msprobe_core.protocols.trainers import ApiMap

_TEXTS = frozenset({"extra_repr", "repr"})
"""Settings that say what other settings of the module say."""


@dataclass
class _Alike:
    """Places with the same difference, by what identifies it."""

    found: dict[tuple[Any, ...], list[str]] = field(default_factory=dict[tuple[Any, ...], list[str]])

    def add(self, key: tuple[Any, ...], path: str) -> None:
        self.found.setdefault(key, []).append(path)

    def __iter__(self) -> Iterator[tuple[tuple[Any, ...], str, int]]:
        for key, paths in self.found.items():
            yield key, paths[0], len(paths)


def compare_models(
    target: Sequence[Model], golden: Sequence[Model], sides: Sides, other_parts: Finding | None = None
) -> tuple[SectionResult, SectionResult]:
    """Compare models that have the same position; return the results of the sections of modules and of parameters.

    Args:
        target: Models of the target.
        golden: Models of the golden run.
        sides: The two sides.
        other_parts: Why processes may hold other parts of the model; ``None`` if they hold the same.
    """
    modules, parameters, settings = list[Difference](), list[Difference](), list[Difference]()
    num_modules = num_parameters = 0
    for own, other in zip(target, golden, strict=False):
        pairs = _Pairs(own, other, sides.maps)
        num_modules += len(pairs.both) + len(own.settings.keys() & other.settings.keys())
        num_parameters += sum(len(each.parameters) for _, each, _ in pairs.both)
        modules += _modules(pairs, sides, other_parts)
        parameters += _parameters(pairs, sides, other_parts)
        if not sides.are_foreign:
            settings += _settings(own.settings, other.settings)
    for side, more in ((TARGET, target[len(golden) :]), (GOLDEN, golden[len(target) :])):
        modules += [lone(Section.MODEL, each.name or "model", side, len(each.modules), Severity.ERROR) for each in more]
    modules = list(without_known_hooks(modules))
    modules = list(inside_others(modules, modules))
    parameters = list(of_other_sizes(inside_others(parameters, modules), modules))
    effective = [each for each in (*modules, *parameters) if each.severity is not Severity.INFO]
    types = [each for each in effective if each.finding.code is ConfigCode.MODULE_TYPE]
    modules = list(without_names_of_classes(following(modules, leaders(modules)), types))
    settings = list(of_modules(settings, modules))
    modules += without_names_of_classes(following(settings, [*effective, *leaders(settings)]), types)
    return section_result(Section.MODEL, num_modules, modules), section_result(
        Section.PARAMETERS, num_parameters, parameters
    )


class _Pairs:
    """Modules of two models by their paths without wrappers."""

    def __init__(self, target: Model, golden: Model, maps: tuple[ApiMap, ApiMap]) -> None:
        by_path = [{names.without_wrappers(each.path): each for each in model.modules} for model in (target, golden)]
        wrappers = common_wrappers(by_path[0], by_path[1]) if by_path[0].keys() != by_path[1].keys() else ("", "")
        inside = [_within(own, wrapper) for own, wrapper in zip(by_path, wrappers, strict=True)]
        self.both = [(path, each, inside[1][path]) for path, each in inside[0].items() if path in inside[1]]
        self.lone = {
            TARGET: {path: each for path, each in inside[0].items() if path not in inside[1]},
            GOLDEN: {path: each for path, each in inside[1].items() if path not in inside[0]},
        }
        self.maps = maps


def _within(modules: Mapping[str, Module], wrapper: str) -> dict[str, Module]:
    """Return modules by their path inside a wrapper; those around it, which are the trainer's, are left out."""
    if not wrapper:
        return dict(modules)
    start = f"{wrapper}."
    found = {path.removeprefix(start): each for path, each in modules.items() if path.startswith(start)}
    return {"": modules[wrapper], **found} if wrapper in modules else found


# --- modules ---------------------------------------------------------------------------------------------------------


def _modules(pairs: _Pairs, sides: Sides, other_parts: Finding | None) -> list[Difference]:
    alike = _Alike()
    # Cells are in evaluation mode unless told otherwise, which matters only where the mode does.
    mode_matters = not sides.are_foreign or any(
        own.is_training != other.is_training and (depends_on_mode(own) or depends_on_mode(other))
        for _, own, other in pairs.both
    )
    for path, own, other in pairs.both:
        if own == other:
            continue
        types = _class_of(own, pairs.maps[0]), _class_of(other, pairs.maps[1])
        if types[0] != types[1]:
            alike.add((ConfigCode.MODULE_TYPE, *types), path)
        if own.is_training != other.is_training:
            alike.add((ConfigCode.MODULE_MODE, own.is_training, other.is_training, mode_matters), path)
        for kind in sorted({*own.hooks, *other.hooks}):
            if own.hooks.get(kind, ()) != other.hooks.get(kind, ()):
                alike.add((ConfigCode.MODULE_HOOKS, kind, own.hooks.get(kind, ()), other.hooks.get(kind, ())), path)
        for key in _settings_of(own.settings, other.settings, is_foreign=sides.are_foreign):
            alike.add((*key, own.type, types[0] != types[1]), path)
    found = [_module_difference(key, path, count, sides) for key, path, count in alike]
    return [*_missing_modules(pairs, other_parts, sides), *found]


def _class_of(module: Module, words: ApiMap) -> str:
    name = names.class_without_wrapper(module.type.rpartition(".")[2])
    return words.module_types.get(name, name)


def _settings_of(
    target: Mapping[str, Scalar], golden: Mapping[str, Scalar], *, is_foreign: bool
) -> Iterator[tuple[Any, ...]]:
    """Yield a key for each setting of a module that differs."""
    if target == golden:
        return
    if is_foreign:
        target, golden = of_module(target, _TEXTS), of_module(golden, _TEXTS)
    found: list[tuple[Any, ...]] = []
    for name, values, only_on in differing(target, golden, on_both=is_foreign):
        if only_on is not None:
            found.append((ConfigCode.MODULE_ONLY_HAS, name, values[only_on == GOLDEN], only_on))
        elif not (is_foreign and is_same_setting(name, *values)):
            found.append((ConfigCode.MODULE_VALUE, name, *values))
    telling = [each for each in found if each[1] not in _TEXTS]
    yield from telling or found


def _module_difference(key: tuple[Any, ...], path: str, count: int, sides: Sides) -> Difference:
    code = key[0]
    severity = Severity.ERROR
    values: tuple[Scalar, Scalar]
    only_on = reason = None
    place, shown = path, path or "the outermost module"
    if code is ConfigCode.MODULE_TYPE:
        values = key[1], key[2]
        what = said(code, severity, count=count, target=key[1], golden=key[2], path=shown)
    elif code is ConfigCode.MODULE_MODE:
        values = tuple("training" if each else "evaluation" for each in key[1:3])  # pyright: ignore[reportAssignmentType]
        severity = Severity.ERROR if key[3] else Severity.INFO
        what = said(code, severity, count=count, target=values[0], golden=values[1], path=shown)  # pyright: ignore[reportArgumentType]
    elif code is ConfigCode.MODULE_HOOKS:
        values = _listed(key[2]), _listed(key[3])
        what = said(code, severity, count=count, kind=key[1], target=values[0], golden=values[1], path=shown)
        place = f"{path}.{key[1]}".removeprefix(".")
    else:
        name, reason = key[1], sides.libraries.get(key[4].partition(".")[0])
        place = f"{path}.{name}".removeprefix(".")
        if code is ConfigCode.MODULE_VALUE:
            values = key[2], key[3]
            texts = as_text(key[2]), as_text(key[3])
            what = said(code, severity, name=name, target=texts[0], golden=texts[1], count=count, path=shown)
        else:
            only_on = key[3]
            # A release adds attributes; that is no difference of what is computed.
            severity = Severity.WARNING if reason is None else Severity.INFO
            if key[5]:  # so does another class, which is a difference of its own
                severity, reason = Severity.INFO, follows(shown)
            values = on_side(key[3], key[2])
            what = said(code, severity, name=name, value=as_text(key[2]), side=only_on, count=count, path=shown)
    return difference(Section.MODEL, place, values, because(what, reason), only_on=only_on, count=count)


def _listed(hooks: Sequence[str]) -> str:
    return ", ".join(hooks) or "none"


def _missing_modules(pairs: _Pairs, other_parts: Finding | None, sides: Sides) -> Iterator[Difference]:
    severity = Severity.ERROR if other_parts is None else Severity.INFO
    own_parts = _own_parts(pairs, sides) if sides.are_foreign else frozenset[str]()
    for side, every in pairs.lone.items():
        modules = {path: each for path, each in every.items() if not _is_inside(path, own_parts)}
        alike, counts = _Alike(), dict[tuple[Any, ...], int]()
        for path in modules:
            top = _top_of(path, modules)
            key = (modules[top].type, "" if _is_number(top) else top.rpartition(".")[2])
            counts[key] = counts.get(key, 0) + 1
            if top == path:
                alike.add(key, path)
        for key, path, _ in alike:
            count, type_name, shown = counts[key], key[0].rpartition(".")[2], path or "(model)"
            what = said(ConfigCode.MODULE_MISSING, severity, count=count, side=side, path=shown, type=type_name)
            values = on_side(side, type_name)
            yield difference(Section.MODEL, path, values, because(what, other_parts), only_on=side, count=count)


def _own_parts(pairs: _Pairs, sides: Sides) -> frozenset[str]:
    """Return the paths of modules whose inner modules are of their framework, which other ones need not have."""
    return frozenset(
        path
        for path, own, other in pairs.both
        if is_made_by_framework(own, sides.frameworks[0]) and is_made_by_framework(other, sides.frameworks[1])
    )


def _is_inside(path: str, outer: Collection[str]) -> bool:
    while path:
        path = path.rpartition(".")[0]
        if path in outer:
            return True
    return False


def _is_number(path: str) -> bool:
    return path.rpartition(".")[2].isdigit()


def _top_of(path: str, modules: Collection[str]) -> str:
    """Return the outermost module above a path, or there, among those that the other side lacks."""
    while (above := path.rpartition(".")[0]) in modules and above != path:
        path = above
        if not above:
            break
    return path


# --- parameters ------------------------------------------------------------------------------------------------------


def _parameters(pairs: _Pairs, sides: Sides, other_parts: Finding | None) -> list[Difference]:
    alike = _Alike()
    for path, own, other in pairs.both:
        if own.parameters == other.parameters:
            continue
        of_target, of_golden = _by_name(own, pairs.maps[0]), _by_name(other, pairs.maps[1])
        for name, parameter in of_target.items():
            place = f"{path}.{name}".removeprefix(".")
            if name in of_golden:
                for key in _attributes(parameter, of_golden[name], is_foreign=sides.are_foreign):
                    alike.add(key, place)
            elif not (sides.are_foreign and parameter.is_buffer):
                alike.add((TARGET, name), place)
        for name, parameter in of_golden.items():
            if name not in of_target and not (sides.are_foreign and parameter.is_buffer):
                alike.add((GOLDEN, name), f"{path}.{name}".removeprefix("."))
    return [_parameter_difference(key, path, count, other_parts) for key, path, count in alike]


def canonical_parameters(model: Model, words: ApiMap) -> dict[str, str]:
    """Return PyTorch's name of each parameter of a model by its own, without wrappers."""
    found: dict[str, str] = {}
    for module in model.modules:
        path = names.without_wrappers(module.path)
        for canonical, parameter in _by_name(module, words).items():
            own = ".".join(filter(None, (module.path, parameter.name)))
            found[own] = ".".join(filter(None, (path, canonical)))
    return found


def _by_name(module: Module, words: ApiMap) -> dict[str, Parameter]:
    own_class = names.class_without_wrapper(module.type.rpartition(".")[2])
    canonical = {**words.parameters.get("", {}), **words.parameters.get(own_class, {})}
    orders = words.permuted.get(own_class, {})
    return {canonical.get(each.name, each.name): _in_order(each, orders.get(each.name)) for each in module.parameters}


def _in_order(parameter: Parameter, order: Sequence[int] | None) -> Parameter:
    """Return a parameter with its dimensions in PyTorch's order."""
    if order is None or len(order) != len(parameter.shape):
        return parameter
    return msgspec.structs.replace(parameter, shape=tuple(parameter.shape[dim] for dim in order))


def _attributes(target: Parameter, golden: Parameter, *, is_foreign: bool) -> Iterator[tuple[Any, ...]]:
    for name in ("dtype", "shape", "placement", "takes_gradient", "tied_to", "device", "is_buffer"):
        values: tuple[Any, Any] = getattr(target, name), getattr(golden, name)
        if name == "dtype":
            values = _dtype(values[0]), _dtype(values[1])
        elif name == "shape":
            if is_foreign and _without_ones(values[0]) == _without_ones(values[1]):
                continue
            values = _shape(values[0]), _shape(values[1])
        elif name == "tied_to" and None not in values:
            values = names.without_wrappers(values[0]), names.without_wrappers(values[1])
        if values[0] == values[1] or (is_foreign and name in {"is_buffer", "placement", "tied_to", "device"}):
            continue
        if name == "takes_gradient" and target.is_buffer and golden.is_buffer:
            continue
        yield name, *values


def _dtype(name: str) -> str:
    return dtype_in(name) or name.lower()


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape as both frameworks have it: MindSpore's convolutions over one dimension have a second one."""
    return tuple(size for size in shape if size != 1)


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


_OF_PARTS = frozenset({"shape", "placement"})


def _parameter_difference(key: tuple[Any, ...], path: str, count: int, other_parts: Finding | None) -> Difference:
    if key[0] in (TARGET, GOLDEN):
        side = key[0]
        what = said(ConfigCode.PARAMETER_MISSING, Severity.ERROR, count=count, side=side, path=path)
        return difference(Section.PARAMETERS, path, on_side(side, path), what, only_on=side, count=count)
    name, target, golden = key
    severity, reason = Severity.ERROR, None
    if name in _OF_PARTS and other_parts is not None:
        severity, reason = Severity.INFO, other_parts
    elif name == "device":
        severity = Severity.WARNING if "cpu" in (target, golden) else Severity.INFO
    words = {"takes_gradient": "requires_grad", "tied_to": "the tie"}
    texts = as_text(target), as_text(golden)
    what = said(
        ConfigCode.PARAMETER_VALUE,
        severity,
        name=words.get(name, name),
        count=count,
        target=texts[0],
        golden=texts[1],
        path=path,
    )
    return difference(Section.PARAMETERS, f"{path}.{name}", (target, golden), because(what, reason), count=count)


# --- the model's own configuration -----------------------------------------------------------------------------------


def _settings(target: Mapping[str, Scalar], golden: Mapping[str, Scalar]) -> list[Difference]:
    found: list[Difference] = []
    for name, values, only_on in differing(target, golden):
        severities = severity_of_setting(name, Severity.ERROR), severity_of_setting(name, Severity.WARNING)
        found.append(one_setting(Section.MODEL, f"config.{name}", values, only_on, severities))
    return found
