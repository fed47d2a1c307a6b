"""One job against itself: which ranks were told, or are, something else than the others.

The value that most ranks have is the reference. What ranks have of their own is no difference: their number, their
device, their part of the model, their samples and, if each has its own, their random states.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from msprobe_core import names
from msprobe_core.config.ranges import format_ranges
from msprobe_core.config_check.config_codes import ConfigCode
from msprobe_core.config_check.data_differences import shared_data
from msprobe_core.config_check.differences import ConfigResult, Difference, Section, SectionResult, Severity
from msprobe_core.config_check.following_differences import without_names_of_classes
from msprobe_core.config_check.runs import Run
from msprobe_core.config_check.severities import is_harmless_variable, severity_of_setting, with_named_precision
from msprobe_core.config_check.sides import difference, following, leaders, other_states, said, section_result
from msprobe_core.config_check.values import as_text
from msprobe_core.findings import Finding
from msprobe_core.manifest.facts import Manifest, Scalar

_PIPELINE = re.compile(r"(^|[_\-. ])(pp|pipe|pipeline)", re.IGNORECASE)
_DATA_PARALLEL = re.compile(r"(^|[_\-. ])(dp|data|replicate|dp_shard|fsdp)", re.IGNORECASE)

_ABSENT = "(absent)"
_MISSING = "(missing)"

_Facts: TypeAlias = dict[str, Scalar]


@dataclass(frozen=True, slots=True)
class _Deviation:
    path: str
    value: Scalar
    reference: Scalar
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Generator:
    """A random generator that some ranks have in another state: states and seeds of the first of them, and of most."""

    name: str
    states: tuple[str, str]
    seeds: tuple[int | None, int | None]


def check_ranks(run: Run) -> ConfigResult:
    """Compare the ranks of one job with each other; golden values are those of most ranks.

    Args:
        run: A recorded run, or a pack with several manifests.
    """
    manifests = run.manifests
    models = {rank: msgspec.json.encode(each.run.models) for rank, each in manifests.items()}
    stages = _stages(manifests, models)
    sections: list[SectionResult] = []
    for section, facts_of in _FACTS.items():
        parts = stages if section in _OF_STAGES else [list(manifests)]
        found: list[Difference] = []
        compared = 0
        for ranks in parts:
            number, deviations = _deviations({rank: manifests[rank] for rank in ranks}, facts_of, section, models)
            compared += number
            found += _differences(section, deviations, len(manifests))
        if section is Section.OPTIMIZER:  # defaults, and what groups made of them
            found = list(following(found, leaders(found)))
        if section is Section.MODEL:
            found = list(following(found, leaders([each for each in found if not each.path.startswith("config.")])))
            types = [each for each in found if each.path.endswith(".class") and each.severity is Severity.ERROR]
            found = list(without_names_of_classes(found, types))
        sections.append(section_result(section, compared, found))
    sections += [_random(manifests), _data(manifests)]
    order = list(Section)
    return ConfigResult(
        target=run.path, golden=run.path, sections=sorted(sections, key=lambda each: order.index(each.section))
    )


# --- parts of a manifest as settings by path -------------------------------------------------------------------------


def _framework(manifest: Manifest) -> _Facts:
    library = manifest.run.framework
    own: _Facts = {
        library.name: library.version, f"{library.name} build": library.build or library.git,
        "python": manifest.python, "program": manifest.program, "program_digest": manifest.program_digest,
    }  # fmt: skip
    return own


def _libraries(manifest: Manifest) -> _Facts:
    found: _Facts = {}
    for each in manifest.libraries:
        found[each.name] = each.version
        if each.build or each.git:
            found[f"{each.name} build"] = each.build or each.git
    return found


def _device(manifest: Manifest) -> _Facts:
    device = manifest.run.device
    return {"kind": device.kind, "name": device.name, "driver": device.driver, "runtime": device.runtime}


def _environment(manifest: Manifest) -> _Facts:
    return {
        each.name: each.value
        for each in manifest.environment
        if each.value is not None and not is_harmless_variable(each.name)
    }


def _switches(manifest: Manifest) -> _Facts:
    return with_named_precision(manifest.run.switches)


def _model(manifest: Manifest) -> _Facts:
    found: _Facts = {}
    for model in manifest.run.models:
        for name, value in model.settings.items():
            if severity_of_setting(name, Severity.ERROR) is Severity.ERROR:
                found[f"config.{name}"] = value
        for module in model.modules:
            path = names.without_wrappers(module.path) or "(model)"
            found[f"{path}.class"] = module.type.rpartition(".")[2]
            found[f"{path}.training"] = module.is_training
            for kind, hooks in module.hooks.items():
                found[f"{path}.{kind}"] = ", ".join(hooks)
            for name, value in module.settings.items():
                found[f"{path}.{name}"] = value
    return found


def _parameters(manifest: Manifest) -> _Facts:
    found: _Facts = {}
    for model in manifest.run.models:
        for module in model.modules:
            path = names.without_wrappers(module.path)
            for each in module.parameters:
                place = f"{path}.{each.name}".removeprefix(".")
                found[f"{place}.dtype"] = each.dtype
                found[f"{place}.requires_grad"] = each.takes_gradient
                found[f"{place}.device"] = each.device
    return found


def _optimizer(manifest: Manifest) -> _Facts:
    found: _Facts = {}
    for number, optimizer in enumerate(manifest.run.optimizers):
        found[f"{number}.type"] = optimizer.type
        for name, value in optimizer.defaults.items():
            found[f"{number}.{name}"] = value
        for place, group in enumerate(optimizer.groups):
            for name, value in group.settings.items():
                found[f"{number}.groups.{place}.{name}"] = value
        for name, dtype in optimizer.state_dtypes.items():
            found[f"{number}.state.{name}"] = dtype
    return found


def _parallel(manifest: Manifest) -> _Facts:
    sizes: _Facts = {f"{each.name}.size": len(each.ranks) for each in manifest.run.groups}
    backends: _Facts = {f"{each.name}.backend": each.backend for each in manifest.run.groups}
    return {"world_size": manifest.world_size, **sizes, **backends}


def _settings(manifest: Manifest) -> _Facts:
    sources = {"": manifest.run.settings, **manifest.settings}
    return {
        f"{source}: {name}".removeprefix(": "): value
        for source, settings in sources.items()
        for name, value in settings.items()
        if severity_of_setting(name, Severity.ERROR) is Severity.ERROR
    }


_FACTS: Mapping[Section, Callable[[Manifest], _Facts]] = {
    Section.FRAMEWORK: _framework,
    Section.LIBRARIES: _libraries,
    Section.DEVICE: _device,
    Section.ENVIRONMENT: _environment,
    Section.SWITCHES: _switches,
    Section.MODEL: _model,
    Section.PARAMETERS: _parameters,
    Section.OPTIMIZER: _optimizer,
    Section.PARALLEL: _parallel,
    Section.SETTINGS: _settings,
}

_OF_STAGES = frozenset({Section.MODEL, Section.PARAMETERS, Section.OPTIMIZER})
_ENCODED: Mapping[Section, Callable[[Manifest], object]] = {
    Section.OPTIMIZER: lambda each: each.run.optimizers,
    Section.LIBRARIES: lambda each: each.libraries,
    Section.SETTINGS: lambda each: (each.run.settings, each.settings),
}
"""Parts that are long: those that are equal as bytes are taken apart once."""


def _stages(manifests: Mapping[int, Manifest], models: Mapping[int, bytes]) -> list[list[int]]:
    """Return the ranks of each stage of the pipeline, whose ranks have the same layers.

    Without a group for it, ranks with the same modules are a stage, if there are as many ranks in each.
    """
    stages: dict[object, list[int]] = {}
    for rank, manifest in manifests.items():
        groups = [each for each in manifest.run.groups if _PIPELINE.search(each.name) and rank in each.ranks]
        stages.setdefault(groups[0].ranks.index(rank) if groups else None, []).append(rank)
    if len(stages) > 1:
        return list(stages.values())
    by_modules: dict[object, list[int]] = {}
    known: dict[bytes, frozenset[str]] = {}
    for rank, manifest in manifests.items():
        paths = known.get(models[rank])
        if paths is None:
            paths = frozenset(module.path for model in manifest.run.models for module in model.modules)
            known[models[rank]] = paths
        by_modules.setdefault(paths, []).append(rank)
    sizes = {len(each) for each in by_modules.values()}
    return list(by_modules.values()) if len(sizes) == 1 else [list(manifests)]


def _deviations(
    manifests: Mapping[int, Manifest],
    facts_of: Callable[[Manifest], _Facts],
    section: Section,
    models: Mapping[int, bytes],
) -> tuple[int, list[_Deviation]]:
    """Return the number of settings, and those that some ranks have otherwise than most."""
    kinds: dict[object, tuple[_Facts, list[int]]] = {}
    part_of = _ENCODED.get(section)
    for rank, manifest in manifests.items():
        facts = None
        if section in (Section.MODEL, Section.PARAMETERS):
            key: object = models[rank]
        elif part_of is None:
            facts = facts_of(manifest)
            key = tuple(facts.items())
        else:
            key = msgspec.json.encode(part_of(manifest))
        if key in kinds:
            kinds[key][1].append(rank)
        else:
            kinds[key] = (facts_of(manifest) if facts is None else facts, [rank])
    every = dict.fromkeys(path for facts, _ in kinds.values() for path in facts)
    if len(kinds) == 1:
        return len(every), []
    found: list[_Deviation] = []
    lacks = _MISSING if section in _OF_STAGES else _ABSENT
    for path in every:
        by_value: dict[Scalar, list[int]] = {}
        for facts, ranks in kinds.values():
            by_value.setdefault(facts.get(path, lacks), []).extend(ranks)
        if len(by_value) > 1:
            reference = max(by_value, key=lambda value: (len(by_value[value]), -min(by_value[value])))
            found += [
                _Deviation(path, value, reference, tuple(sorted(ranks)))
                for value, ranks in by_value.items()
                if value != reference
            ]
    return len(every), found


def _differences(section: Section, deviations: Iterable[_Deviation], total: int) -> Iterator[Difference]:
    """Yield differences; the same one of many modules is one."""
    alike: dict[tuple[object, ...], list[_Deviation]] = {}
    of_modules = section in (Section.MODEL, Section.PARAMETERS)
    for each in deviations:
        name = each.path.rpartition(".")[2] if of_modules and not each.path.startswith("config.") else each.path
        key = (name, str(each.value), str(each.reference), each.ranks)
        if _MISSING in (each.value, each.reference):  # a module that is missing lacks all that it has
            if name not in ("class", "dtype"):
                continue
            key = (name, _MISSING if each.value == _MISSING else "", each.ranks)
        alike.setdefault(key, []).append(each)
    for places in alike.values():
        yield _difference(section, places, total)


def _difference(section: Section, places: Sequence[_Deviation], total: int) -> Difference:
    first = places[0]
    severity = Severity.WARNING if section is Section.DEVICE or first.path == "program_digest" else Severity.ERROR
    place, _, name = first.path.rpartition(".")
    if _MISSING in (first.value, first.reference):
        side = "golden" if first.value == _MISSING else "target"
        code = ConfigCode.MODULE_MISSING if name == "class" else ConfigCode.PARAMETER_MISSING
        type_name = first.reference if first.value == _MISSING else first.value
        what = said(code, severity, count=len(places), side=side, path=place, type=str(type_name))
    elif len(places) > 1:
        texts = as_text(first.value), as_text(first.reference)
        code = ConfigCode.PARAMETER_VALUE if section is Section.PARAMETERS else ConfigCode.MODULE_VALUE
        what = said(code, severity, name=name, target=texts[0], golden=texts[1], count=len(places), path=place)
    else:
        texts = as_text(first.value), as_text(first.reference)
        what = said(ConfigCode.VALUE, severity, name=first.path, target=texts[0], golden=texts[1])
    values = first.value, first.reference
    found = _on(what, first.ranks, total)
    return difference(section, first.path, values, found, count=len(places), ranks=first.ranks)


def _on(what: Finding, ranks: Sequence[int], total: int) -> Finding:
    fields = {"what": what, "count": len(ranks), "total": total, "ranks": ", ".join(format_ranges(ranks))}
    return Finding(ConfigCode.RANK_DEVIATES, what.level, fields)


# --- random states and data ------------------------------------------------------------------------------------------


def _random(manifests: Mapping[int, Manifest]) -> SectionResult:
    states: dict[str, dict[int, tuple[str, int | None]]] = {}
    for rank, manifest in manifests.items():
        for each in manifest.run.generators:
            # Ranks number their devices in their own way.
            states.setdefault(each.name.partition(":")[0], {})[rank] = each.state, each.seed
    deviating: dict[tuple[int, ...], list[_Generator]] = {}
    for name, own in states.items():
        counts = Counter(state for state, _ in own.values())
        state, number = counts.most_common(1)[0]
        if len(counts) == 1 or number <= len(own) / 2 or number == 1:
            continue  # all alike, or each rank or group has its own
        ranks = tuple(sorted(rank for rank, (other, _) in own.items() if other != state))
        seeds = own[ranks[0]][1], next(seed for other, seed in own.values() if other == state)
        deviating.setdefault(ranks, []).append(_Generator(name, (own[ranks[0]][0], state), seeds))
    found = [_of_generators(ranks, generators, len(manifests)) for ranks, generators in deviating.items()]
    return section_result(Section.RANDOM, len(states), found)


def _of_generators(ranks: Sequence[int], generators: Sequence[_Generator], total: int) -> Difference:
    """Return the difference of generators that the same ranks have in another state: one seed sets all of them."""
    names = [each.name for each in generators]
    seeds = [(own, other) for own, other in (each.seeds for each in generators) if None is not own != other is not None]
    what = _on(other_states(names, seeds[0] if seeds else None), ranks, total)
    return difference(Section.RANDOM, names[0], generators[0].states, what, count=len(names), ranks=ranks)


def _data(manifests: Mapping[int, Manifest]) -> SectionResult:
    data = {rank: each.data for rank, each in manifests.items()}
    groups = {
        group.ranks
        for manifest in manifests.values()
        for group in manifest.run.groups
        if _DATA_PARALLEL.search(group.name) and len(group.ranks) > 1
    }
    found: list[Difference] = []
    for ranks, name in shared_data(data, sorted(groups)):
        what = said(ConfigCode.DATA_SHARED, Severity.WARNING, ranks=", ".join(format_ranges(ranks)), name=name)
        found.append(difference(Section.DATA, name, (None, None), what, ranks=ranks))
    return section_result(Section.DATA, sum(bool(each) for each in data.values()), found)
