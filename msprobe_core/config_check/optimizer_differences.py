"""Differences of the optimizers of two runs. Parameter groups are paired by the parameters that they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from msprobe_core import names
from msprobe_core.config_check.config_codes import ConfigCode
from msprobe_core.config_check.differences import Difference, Section, SectionResult, Severity
from msprobe_core.config_check.foreign_settings import of_optimizer, optimizer_class
from msprobe_core.config_check.sides import (
    GOLDEN,
    TARGET,
    Sides,
    demoted,
    difference,
    differing,
    following,
    follows,
    lone,
    main_code,
    may_follow,
    one_setting,
    said,
    section_result,
    valued,
)
from msprobe_core.manifest.facts import Optimizer, ParameterGroup, Scalar


def compare_optimizers(
    target: Sequence[Optimizer], golden: Sequence[Optimizer], sides: Sides, parameters: Sequence[Difference]
) -> SectionResult:
    """Compare optimizers that have the same position.

    Args:
        target: Optimizers of the target.
        golden: Optimizers of the golden run.
        sides: The two sides.
        parameters: Differences of modules and parameters: another dtype of a parameter's state follows from its own.
    """
    found: list[Difference] = []
    if len(target) != len(golden) and target and golden:
        what = said(ConfigCode.OPTIMIZER_NUMBER, Severity.ERROR, target=len(target), golden=len(golden))
        found.append(difference(Section.OPTIMIZER, "number", (len(target), len(golden)), what))
    elif len(target) != len(golden):
        # They are found when a step ends: a run that ended before has none.
        side, own = (TARGET, target) if target else (GOLDEN, golden)
        found.append(lone(Section.OPTIMIZER, _class(own[0]), side, len(own), Severity.WARNING))
    compared = 0
    for number, (own, other) in enumerate(zip(target, golden, strict=False)):
        prefix = "" if len(target) == 1 else f"{number}."
        if own == other:
            compared += 1 + len(own.defaults)
            continue
        compared += 1 + len(own.defaults.keys() & other.defaults.keys())
        found += _optimizer(prefix, own, other, sides, parameters)
    return section_result(Section.OPTIMIZER, compared, found)


def _class(optimizer: Optimizer) -> str:
    return optimizer.type.rpartition(".")[2]


def _optimizer(
    prefix: str, target: Optimizer, golden: Optimizer, sides: Sides, parameters: Sequence[Difference]
) -> Iterator[Difference]:
    classes = _class(target), _class(golden)
    common_name = optimizer_class if sides.are_foreign else str.lower
    is_other_class = common_name(classes[0]) != common_name(classes[1])
    if is_other_class:
        yield valued(Section.OPTIMIZER, f"{prefix}type", classes, Severity.ERROR)
    groups = _once(_groups(prefix, target.groups, golden.groups, sides, parameters))
    # Another class has other settings.
    groups = [_own_of_class(each, prefix) if is_other_class else each for each in groups]
    yield from groups
    defaults = list(_settings(prefix, target.defaults, golden.defaults, sides))
    # Groups have what took effect; defaults only if no group replaces them.
    for each in following(defaults, [one for one in groups if one.severity is not Severity.INFO]):
        each = _own_of_class(each, prefix) if is_other_class else each  # noqa: PLW2901
        if each.severity is Severity.INFO or not _is_in_all_groups(each.path.removeprefix(prefix), target, golden):
            yield each
        else:
            yield demoted(each, follows("groups"))
    for name in target.state_dtypes.keys() & golden.state_dtypes.keys():
        own, other = target.state_dtypes[name], golden.state_dtypes[name]
        if own.lower() != other.lower():
            each = valued(Section.OPTIMIZER, f"{prefix}state.{name}", (own, other), Severity.ERROR)
            leader = next(
                (one for one in parameters if one.path.endswith(".dtype") and _explains(one, own, other)), None
            )
            yield each if leader is None else demoted(each, follows(leader.path))


def _own_of_class(difference: Difference, prefix: str) -> Difference:
    """Return a difference; a setting that only one of two classes of optimizers has follows from the class."""
    defines = difference.path.endswith(".decoupled_weight_decay")  # the one thing in which Adam and AdamW differ
    is_setting = (defines or difference.only_on is not None) and difference.severity is not Severity.INFO
    return demoted(difference, follows(f"{prefix}type")) if is_setting else difference


def _explains(parameter: Difference, target: str, golden: str) -> bool:
    """Whether another dtype of parameters explains that of their states, of which some may be as on the other side."""
    own, other = ({*text.lower().split(", ")} for text in (target, golden))
    return own - other <= {parameter.target} and other - own <= {parameter.golden}


def _once(differences: Iterator[Difference]) -> list[Difference]:
    """Return differences of groups; a setting that differs alike in several groups is one, with their number."""
    found: dict[tuple[object, ...], Difference] = {}
    for each in differences:
        key = (each.path.rpartition(".")[2], str(each.target), str(each.golden), each.only_on)
        first = found.get(key)
        found[key] = each if first is None else replace(first, count=first.count + 1)
    # A scheduler keeps the first learning rate beside the current one.
    each_once = [_without_first_rate(each, found.values()) for each in found.values()]
    leaders = [each for i, each in enumerate(each_once) if not any(may_follow(each, one) for one in each_once[:i])]
    return list(following(each_once, leaders))


def _without_first_rate(difference: Difference, others: Iterable[Difference]) -> Difference:
    """Return a difference; the first learning rate, which a scheduler keeps, is not one beside another current one."""
    if not difference.path.endswith(".initial_lr") or difference.only_on is None:
        return difference
    current = next((each for each in others if each.path.endswith(".lr") and each.only_on is None), None)
    return difference if current is None else demoted(difference, follows(current.path))


def _is_in_all_groups(name: str, target: Optimizer, golden: Optimizer) -> bool:
    groups = [*target.groups, *golden.groups]
    return bool(groups) and all(name in each.settings for each in groups)


def _settings(
    prefix: str, target: Mapping[str, Scalar], golden: Mapping[str, Scalar], sides: Sides
) -> Iterator[Difference]:
    if sides.are_foreign:
        target, golden = of_optimizer(target), of_optimizer(golden)
    for name, values, only_on in differing(target, golden, on_both=sides.are_foreign):
        severities = Severity.ERROR, Severity.WARNING
        yield one_setting(Section.OPTIMIZER, f"{prefix}{name}", values, only_on, severities)


def _groups(
    prefix: str,
    target: Sequence[ParameterGroup],
    golden: Sequence[ParameterGroup],
    sides: Sides,
    parameters: Sequence[Difference],
) -> Iterator[Difference]:
    if len(target) != len(golden):
        what = said(
            ConfigCode.OPTIMIZER_GROUPS, Severity.ERROR,
            target=f"optimizer {prefix.rstrip('.') or '0'}", count=len(target), golden=len(golden),
        )  # fmt: skip
        yield difference(Section.OPTIMIZER, f"{prefix}groups", (len(target), len(golden)), what)
    every = [{name for group in groups for name in _names(group)} for groups in (target, golden)]
    for number, other_number in _paired(target, golden):
        own, other = target[number], golden[other_number]
        place = f"{prefix}groups.{number}"
        yield from _settings(f"{place}.", own.settings, other.settings, sides)
        if sides.are_foreign:
            continue
        extra = [each for each in _names(own) if each not in {*_names(other)}]
        lost = [each for each in _names(other) if each not in every[0]]
        for names_, code in ((extra, ConfigCode.OPTIMIZER_MEMBERS), (lost, ConfigCode.OPTIMIZER_LOST)):
            if names_:
                each = _members(place, names_, (own, other), code)
                # Parameters of modules that only one side has can be in its groups only.
                lone = [name for name in names_ if name in every[0] and name in every[1]]
                leader = next((one for one in parameters if _changes_members(one)), None)
                yield each if leader is None or lone else demoted(each, follows(leader.path))


def _changes_members(difference: Difference) -> bool:
    """Whether a difference of modules or parameters is one of which parameters there are."""
    missing = ConfigCode.PARAMETER_MISSING, ConfigCode.MODULE_MISSING
    return main_code(difference) in missing or difference.path.endswith(".tied_to")


def _members(
    place: str, members: Sequence[str], groups: tuple[ParameterGroup, ParameterGroup], code: ConfigCode
) -> Difference:
    what = said(code, Severity.ERROR, count=len(members), path=place, name=members[0])
    values = len(groups[0].parameters), len(groups[1].parameters)
    return difference(Section.OPTIMIZER, f"{place}.parameters", values, what, count=len(members))


def _names(group: ParameterGroup) -> list[str]:
    return [names.without_wrappers(each) for each in group.parameters if each]


def _paired(target: Sequence[ParameterGroup], golden: Sequence[ParameterGroup]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of groups that have most parameters in common; by position where no name is known."""
    free = {number: {*_names(each)} for number, each in enumerate(golden)}
    for number, own in enumerate(target):
        if not free:
            return
        members = {*_names(own)}
        best = max(free, key=lambda other: (len(members & free[other]), other == number, -other))
        del free[best]
        yield number, best
