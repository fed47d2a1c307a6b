"""Compare the manifests of two processes.

What took effect is an error where it differs: a setting of a module, a dtype, a seed, the order of the data. What may
be the cause of that, such as the version of a library, is a warning, and is named beside the settings that differ. What
only says where something is, such as a host or a path, is information.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from msprobe_core.compare.canonical_names import ApiMap
from msprobe_core.config_check.config_codes import ConfigCode
from msprobe_core.config_check.data_differences import compare_data
from msprobe_core.config_check.differences import ConfigResult, Difference, Section, SectionResult, Severity
from msprobe_core.config_check.foreign_settings import of_switches
from msprobe_core.config_check.model_differences import compare_models
from msprobe_core.config_check.optimizer_differences import compare_optimizers
from msprobe_core.config_check.setting_differences import compare_environment, compare_settings
from msprobe_core.config_check.severities import is_about_float32, with_named_precision
from msprobe_core.config_check.sides import (
    ALL_SECTIONS,
    GOLDEN,
    TARGET,
    Sides,
    because,
    demoted,
    difference,
    differing,
    follows,
    lacking,
    lone,
    one_setting,
    other_states,
    said,
    section_result,
    unknown_section,
    valued,
)
from msprobe_core.findings import Finding, Level
from msprobe_core.manifest.facts import Device, Generator, Group, Library, Manifest, Scalar


def compare_manifests(
    target: Manifest,
    golden: Manifest,
    *,
    fuzzy: bool = True,
    places: tuple[Path, Path] = (Path(TARGET), Path(GOLDEN)),
    held: tuple[Collection[Section], Collection[Section]] = (ALL_SECTIONS, ALL_SECTIONS),
    maps: Mapping[str, ApiMap] | None = None,
) -> ConfigResult:
    """Compare the manifests of two processes.

    Args:
        target: The target's.
        golden: The golden run's.
        fuzzy: Whether settings whose names are alike may be one setting.
        places: Where they are from, target first.
        held: Sections that each side has something of.
        maps: Maps of names by framework; ``None`` for those that plugins offer.
    """
    sides = sides_of(target, golden, fuzzy=fuzzy, maps=maps)
    notes: list[Finding] = []
    if sides.are_foreign:
        names = {"target": sides.frameworks[0], "golden": sides.frameworks[1]}
        notes.append(Finding(ConfigCode.ONE_FRAMEWORK_ONLY, Level.NOTE, names))
    other_parts = _other_parts(target, golden)
    made = {each.section: each for each in _sections(target, golden, sides, other_parts)}
    sections: list[SectionResult] = []
    for section in Section:
        absent = [side for side, own in zip((TARGET, GOLDEN), held, strict=True) if section not in own]
        if absent:
            sections.append(lacking(section, absent[0]))
        elif section in made:
            sections.append(made[section])
    return ConfigResult(target=places[0], golden=places[1], sections=sections, notes=notes)


def sides_of(
    target: Manifest, golden: Manifest, *, fuzzy: bool = True, maps: Mapping[str, ApiMap] | None = None
) -> Sides:
    """Return the two sides of a comparison; see `compare_manifests`."""
    frameworks = target.run.framework.name, golden.run.framework.name
    if not all(frameworks):  # a pack without a manifest is of any framework
        known = frameworks[0] or frameworks[1]
        frameworks = known, known
    if frameworks[0] == frameworks[1]:
        maps = {}
    elif maps is None:
        from msprobe_core.plugins import registry  # loads plugins

        maps = registry().api_maps()
    own_maps = tuple(maps.get(_offered(name), ApiMap(name=name)) for name in frameworks)
    return Sides(
        frameworks=frameworks,
        maps=(own_maps[0], own_maps[1]),
        libraries=dict(_changed_libraries(target, golden)),
        fuzzy=fuzzy,
    )


def _offered(framework: str) -> str:
    """Return the name under which plugins offer a framework whose distribution has another name."""
    return {"torch": "pytorch"}.get(framework, framework)


def _changed_libraries(target: Manifest, golden: Manifest) -> Iterator[tuple[str, Finding]]:
    """Yield the packages of libraries with other versions, and why a default of theirs may be another one."""
    of_golden = {each.name: each for each in (golden.run.framework, *golden.libraries)}
    for own in (target.run.framework, *target.libraries):
        other = of_golden.get(own.name)
        if other is not None and not _same_version(own.version, other.version):
            fields = {"library": own.name, "target": own.version, "golden": other.version}
            # Packages have underscores where distributions have hyphens.
            yield own.name.replace("-", "_"), Finding(ConfigCode.LIBRARY_DEFAULTS, Level.NOTE, fields)


def _other_parts(target: Manifest, golden: Manifest) -> Finding | None:
    """Return why the two processes may hold other parts of one model; ``None`` if nothing says so."""
    is_same = target.world_size == golden.world_size and _group_sizes(target) == _group_sizes(golden)
    return None if is_same else Finding(ConfigCode.WHY_OTHER_PARTS)


def _group_sizes(manifest: Manifest) -> dict[str, int]:
    return {each.name: len(each.ranks) for each in manifest.run.groups}


def _sections(target: Manifest, golden: Manifest, sides: Sides, other_parts: Finding | None) -> Iterator[SectionResult]:
    yield _framework(target, golden, sides)
    yield _libraries(target.libraries, golden.libraries, sides)
    yield _device(target.run.device, golden.run.device)
    yield compare_environment(target.environment, golden.environment)
    yield _switches(target.run.switches, golden.run.switches, sides)
    models = compare_models(target.run.models, golden.run.models, sides, other_parts)
    yield from models
    yield compare_optimizers(
        target.run.optimizers, golden.run.optimizers, sides, [each for one in models for each in one.differences]
    )
    yield _parallel(target, golden)
    yield _random(target.run.generators, golden.run.generators, sides)
    yield compare_data(target.data, golden.data)
    yield compare_settings(_settings(target), _settings(golden), fuzzy=sides.fuzzy)


def _settings(manifest: Manifest) -> dict[str, Mapping[str, Scalar]]:
    own = {"": manifest.run.settings} if manifest.run.settings else {}
    return {**own, **manifest.settings}


# --- framework, libraries, device ------------------------------------------------------------------------------------


def _same_version(target: str, golden: str) -> bool:
    from packaging.version import Version

    if target == golden:
        return True
    try:
        return Version(target) == Version(golden)
    except ValueError:  # an invalid version, or one with a number of thousands of digits
        return False


def _library(section: Section, target: Library, golden: Library, severity: Severity) -> Iterator[Difference]:
    if not _same_version(target.version, golden.version):
        yield valued(section, target.name, (target.version, golden.version), severity)
    elif _build(target) != _build(golden):
        what = said(ConfigCode.LIBRARY_BUILD, severity, name=target.name, version=target.version)
        yield difference(section, target.name, (_build(target), _build(golden)), what)


def _build(library: Library) -> str | None:
    return library.build or library.git


def _framework(target: Manifest, golden: Manifest, sides: Sides) -> SectionResult:
    found: list[Difference] = []
    if sides.are_foreign:
        found.append(valued(Section.FRAMEWORK, "framework", sides.frameworks, Severity.INFO))
    else:
        found += _library(Section.FRAMEWORK, target.run.framework, golden.run.framework, Severity.WARNING)
    if _minor(target.python) != _minor(golden.python):
        found.append(valued(Section.FRAMEWORK, "python", (target.python, golden.python), Severity.WARNING))
    elif target.python != golden.python:
        found.append(valued(Section.FRAMEWORK, "python", (target.python, golden.python), Severity.INFO))
    if target.program != golden.program:
        found.append(valued(Section.FRAMEWORK, "program", (target.program, golden.program), Severity.INFO))
    elif None is not target.program_digest != golden.program_digest is not None:
        digests = target.program_digest, golden.program_digest
        found.append(valued(Section.FRAMEWORK, "program_digest", digests, Severity.INFO))
    return section_result(Section.FRAMEWORK, 3, found)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _libraries(target: Sequence[Library], golden: Sequence[Library], sides: Sides) -> SectionResult:
    of_golden = {each.name: each for each in golden}
    found: list[Difference] = []
    for own in target:
        other = of_golden.get(own.name)
        if other is not None:
            found += _library(Section.LIBRARIES, own, other, Severity.WARNING)
    # A library of the other framework, or of the other kind of device, is none of this one.
    severity = Severity.INFO if sides.are_foreign else Severity.WARNING
    names = {each.name for each in target}
    for side, ours, others in ((TARGET, target, {*of_golden}), (GOLDEN, golden, names)):
        lacking_there = [each for each in ours if each.name not in others]
        found += [lone(Section.LIBRARIES, each.name, side, each.version, severity) for each in lacking_there]
    return section_result(Section.LIBRARIES, len(names & of_golden.keys()), found)


def _device(target: Device, golden: Device) -> SectionResult:
    found: list[Difference] = []
    are_of_one_kind = target.kind == golden.kind
    if not are_of_one_kind:
        found.append(valued(Section.DEVICE, "kind", (target.kind, golden.kind), Severity.WARNING))
    reason = None if are_of_one_kind else Finding(ConfigCode.WHY_OTHER_DEVICE)
    for name in ("name", "driver", "runtime"):
        values = getattr(target, name), getattr(golden, name)
        if values[0] != values[1]:
            severity = Severity.WARNING if are_of_one_kind and None not in values else Severity.INFO
            found.append(valued(Section.DEVICE, name, values, severity, reason))
    if target.count != golden.count:
        found.append(valued(Section.DEVICE, "count", (target.count, golden.count), Severity.INFO))
    return section_result(Section.DEVICE, 5, found)


# --- switches --------------------------------------------------------------------------------------------------------


def _switches(target: Mapping[str, Scalar], golden: Mapping[str, Scalar], sides: Sides) -> SectionResult:
    if sides.are_foreign:
        target, golden = of_switches(target), of_switches(golden)
    target, golden = with_named_precision(target), with_named_precision(golden)
    found = [
        one_setting(Section.SWITCHES, *each, (Severity.ERROR, Severity.INFO))
        for each in differing(target, golden, on_both=sides.are_foreign)
    ]
    return section_result(Section.SWITCHES, len(target.keys() & golden.keys()), _one_of_precision(found))


_DETERMINISTIC, _WARN_ONLY = "deterministic_algorithms", "deterministic_warn_only"


def _one_of_precision(differences: Iterable[Difference]) -> Iterator[Difference]:
    """Yield switches; of those of the precision of float32, which set each other, only the first matters.

    Whether deterministic algorithms only warn follows from whether they are asked for, if that differs.
    """
    differences = list(differences)
    first: str | None = None
    for each in differences:
        if each.path == _WARN_ONLY and any(one.path == _DETERMINISTIC for one in differences):
            yield demoted(each, follows(_DETERMINISTIC))
            continue
        if each.severity is Severity.ERROR and is_about_float32(each.path):
            if first is not None:
                yield demoted(each, follows(first))
                continue
            first = each.path
        yield each


# --- groups, random states -------------------------------------------------------------------------------------------


def _parallel(target: Manifest, golden: Manifest) -> SectionResult:
    found: list[Difference] = []
    sizes = target.world_size, golden.world_size
    if sizes[0] != sizes[1]:
        found.append(valued(Section.PARALLEL, "world_size", sizes, Severity.ERROR))
    of_golden = {each.name: each for each in golden.run.groups}
    for own in target.run.groups:
        other = of_golden.pop(own.name, None)
        if other is None:
            found.append(lone(Section.PARALLEL, own.name, TARGET, _ranks(own), Severity.WARNING))
            continue
        leads = bool(found) and found[0].path == "world_size" and len(own.ranks) == sizes[0]
        if own.ranks != other.ranks:
            each = valued(Section.PARALLEL, own.name, (_ranks(own), _ranks(other)), Severity.ERROR)
            found.append(demoted(each, follows("world_size")) if leads else each)
        if own.backend != other.backend:
            severity = Severity.WARNING if target.run.device.kind == golden.run.device.kind else Severity.INFO
            found.append(valued(Section.PARALLEL, f"{own.name}.backend", (own.backend, other.backend), severity))
    found += [lone(Section.PARALLEL, each.name, GOLDEN, _ranks(each), Severity.WARNING) for each in of_golden.values()]
    return section_result(Section.PARALLEL, 1 + len(target.run.groups), found)


def _ranks(group: Group) -> str:
    from msprobe_core.config.ranges import format_ranges

    return ",".join(format_ranges(group.ranks))


def _random(target: Sequence[Generator], golden: Sequence[Generator], sides: Sides) -> SectionResult:
    of_golden = {each.name: each for each in golden}
    both = [(own, of_golden[own.name]) for own in target if own.name in of_golden]
    unlike = [(own, other) for own, other in both if own.state != other.state]
    if target and golden and not both:
        return unknown_section(Section.RANDOM, _not_comparable(target[0].name, golden[0].name))
    if not unlike:
        return section_result(Section.RANDOM, len(both), [])
    if sides.are_foreign:  # MindSpore's initializers draw from NumPy, PyTorch's from a generator of its own
        return unknown_section(Section.RANDOM, _not_comparable(*sides.frameworks))
    names = [own.name for own, _ in unlike]
    seeded = [(own.seed, other.seed) for own, other in unlike if own.seed != other.seed]
    seeds = seeded[0] if seeded and None not in seeded[0] else None
    values = seeds or (unlike[0][0].state, unlike[0][1].state)
    found = difference(Section.RANDOM, names[0], values, other_states(names, seeds), count=len(names))
    return section_result(Section.RANDOM, len(both), [found])


def _not_comparable(target: str, golden: str) -> Finding:
    return Finding(ConfigCode.NOT_COMPARABLE, Level.NOTE, {"target": target, "golden": golden})


# --- several ranks ---------------------------------------------------------------------------------------------------


def merged_ranks(results: Mapping[int, ConfigResult], num_ranks: int) -> ConfigResult:
    """Return the results of the ranks of two jobs as one: a difference that several ranks show is one.

    Args:
        results: Result by rank; at least one.
        num_ranks: Number of ranks of the job.
    """
    ranks = sorted(results)
    first = results[ranks[0]]
    sections: list[SectionResult] = []
    for section in [each.section for each in first.sections]:
        own = {rank: each for rank in ranks for each in results[rank].sections if each.section is section}
        known = [each for each in own.values() if each.unknown is None]
        if not known:
            sections.append(own[ranks[0]])
            continue
        compared = sum(each.compared for each in known)
        sections.append(section_result(section, compared, _over_ranks(own, num_ranks)))
    return replace(first, sections=sections)


def _over_ranks(results: Mapping[int, SectionResult], num_ranks: int) -> Iterator[Difference]:
    found: dict[tuple[object, ...], tuple[Difference, list[int]]] = {}
    for rank, result in results.items():
        for each in result.differences:
            # States and samples differ on every rank in their own way.
            is_own = each.section in (Section.RANDOM, Section.DATA)
            values = () if is_own else (str(each.target), str(each.golden))
            key = (each.path, each.severity, each.only_on, each.finding.code, *values)
            found.setdefault(key, (each, []))[1].append(rank)
    for each, ranks in found.values():
        if len(ranks) == len(results) > 0:
            yield each
        else:
            yield replace(each, ranks=ranks, finding=because(each.finding, on_ranks(ranks, num_ranks)))


def on_ranks(ranks: Sequence[int], num_ranks: int) -> Finding:
    """Return which ranks show a difference."""
    from msprobe_core.config.ranges import format_ranges

    fields = {"count": len(ranks), "total": num_ranks, "ranks": ", ".join(format_ranges(ranks))}
    return Finding(ConfigCode.RANKS, Level.NOTE, fields)
