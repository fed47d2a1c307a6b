"""What two runs were told and what took effect, from packs, dumps or manifests, compared.

A pack of `mindstudio-probe` has no manifest; what it has of one is compared as such: variables, versions and settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import msgspec

from msprobe_core.config_check.config_codes import ConfigCode
from msprobe_core.config_check.differences import ConfigResult, Section, SectionResult
from msprobe_core.config_check.manifests import compare_manifests, merged_ranks, sides_of
from msprobe_core.config_check.model_differences import canonical_parameters
from msprobe_core.config_check.pack import DYNAMIC, Pack, is_pack, read_pack
from msprobe_core.config_check.pack_differences import Statistics, compare_random_calls, compare_statistics
from msprobe_core.config_check.sides import ALL_SECTIONS, GOLDEN, TARGET, lacking
from msprobe_core.errors import ConfigError, DumpError, UnreadableConfigError
from msprobe_core.findings import Finding, Level
from msprobe_core.manifest.environment import kept_variables
from msprobe_core.manifest.facts import Device, Library, Manifest, RunFacts, Scalar
from msprobe_core.manifest.libraries import NAMES, PREFIXES
from msprobe_core.store import layout
from msprobe_core.store.manifest_file import MANIFEST_FILE, read_manifest

_OF_MANIFEST = ALL_SECTIONS - {Section.WEIGHTS}


class SourceKind(str, Enum):
    """What a path is."""

    PACK = "a pack"
    DUMP = "a recorded run"
    MANIFEST = "a manifest"
    DIRECTORY = "a directory without manifests"
    OTHER = "a file that is neither a zip nor a manifest"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is known of one run.

    Attributes:
        path: Where it is from.
        manifests: Manifests by rank; 0 for a process outside of a job. At least one.
        held: Sections that it has something of.
        pack: The pack; empty if it is from none.
        has_manifest: Whether the manifests were recorded, and not made of a pack of another tool.
    """

    path: Path
    manifests: Mapping[int, Manifest]
    held: frozenset[Section] = _OF_MANIFEST
    pack: Pack = field(default_factory=Pack)
    has_manifest: bool = True


def kind_of(path: Path) -> SourceKind:
    """Return what a path is.

    Raises:
        ConfigError: there is nothing, or it cannot be read.
    """
    try:
        is_there, is_directory = path.exists(), path.is_dir()
        has_manifests = is_directory and bool(manifest_paths(path))
    except (OSError, ValueError) as error:
        raise UnreadableConfigError(f"{path}: cannot be read ({error})") from error
    if not is_there:
        raise UnreadableConfigError(f"{path}: does not exist; give a pack (.zip), a manifest.json or a directory")
    if is_directory:
        return SourceKind.DUMP if has_manifests else SourceKind.DIRECTORY
    if is_pack(path):
        return SourceKind.PACK
    return SourceKind.MANIFEST if path.suffix.lower() == ".json" else SourceKind.OTHER


def manifest_paths(directory: Path) -> dict[int, Path]:
    """Return the manifests of a run by rank, each of the first step that the rank has recorded; empty if none.

    Args:
        directory: Of a run, of one of its steps, or of a rank. Processes outside of a job are numbered.
    """
    if (directory / MANIFEST_FILE).is_file():
        name = directory.name
        return {int(name[4:]) if name.startswith("rank") and name[4:].isdigit() else 0: directory / MANIFEST_FILE}
    try:
        steps: Sequence[Path] = [*layout.find_steps(directory).values()] or [directory]
    except DumpError:
        return {}
    found: dict[int, Path] = {}
    for step in steps:
        try:
            units = layout.find_units(step)
        except DumpError:
            continue
        for number, unit in enumerate(units):
            rank = number if unit.rank is None else unit.rank
            if rank not in found and (unit.directory / MANIFEST_FILE).is_file():
                found[rank] = unit.directory / MANIFEST_FILE
    return dict(sorted(found.items()))


def read_run(path: Path) -> Run:
    """Return what a pack, a recorded run or a manifest tells of a run.

    Raises:
        ConfigError: it is none of these.
        DumpError: it cannot be read.
    """
    kind = kind_of(path)
    if kind is SourceKind.PACK:
        return _of_pack(path, read_pack(path))
    if kind is SourceKind.DUMP:
        return Run(path=path, manifests={rank: read_manifest(each) for rank, each in manifest_paths(path).items()})
    if kind is SourceKind.MANIFEST:
        manifest = read_manifest(path)
        return Run(path=path, manifests={manifest.rank or 0: manifest})
    raise ConfigError(
        f"{path}: is {kind.value}; give a pack (.zip), a manifest.json, or a directory that msprobe has recorded"
    )


def _of_pack(path: Path, pack: Pack) -> Run:
    weights = {Section.WEIGHTS} if pack.weights else set[Section]()
    if pack.manifests:
        manifests = dict(sorted(pack.manifests.items()))
        if pack.settings:  # those that the pack has of scripts, beside those that took effect
            first = min(manifests)
            settings = {**manifests[first].settings, **pack.settings}
            manifests = {
                rank: _with_settings(each, settings if rank == first else {}) for rank, each in manifests.items()
            }
        return Run(path=path, manifests=manifests, held=frozenset(_OF_MANIFEST | weights), pack=pack)
    return Run(
        path=path, manifests={0: _made(pack)}, held=frozenset(_held(pack) | weights), pack=pack, has_manifest=False
    )


def _with_settings(manifest: Manifest, settings: Mapping[str, Mapping[str, Scalar]]) -> Manifest:
    # What was captured of a trainer is in the manifest already.
    own = {name: dict(each) for name, each in settings.items() if name != DYNAMIC}
    return msgspec.structs.replace(manifest, settings={**manifest.settings, **own})


def _held(pack: Pack) -> set[Section]:
    has = {
        Section.ENVIRONMENT: pack.environment is not None,
        Section.LIBRARIES: pack.libraries is not None,
        Section.SETTINGS: bool(pack.settings),
        Section.DATA: bool(pack.dataset),
        Section.RANDOM: bool(pack.random),
    }
    return {section for section, is_held in has.items() if is_held}


def _made(pack: Pack) -> Manifest:
    """Return the manifest of a pack that has none, of what it has."""
    return Manifest(
        created="",
        run=RunFacts(framework=Library(name="", version=""), device=Device(kind="")),
        libraries=tuple(
            Library(name=_normal(name), version=version)
            for name, version in sorted((pack.libraries or {}).items())
            # A pack lists all that is installed.
            if _normal(name) in NAMES or _normal(name).startswith(PREFIXES) or name == "megatron"
        ),
        environment=kept_variables(pack.environment or {}),
        settings={name: dict(settings) for name, settings in pack.settings.items()},
    )


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def compare_runs(
    target: str | os.PathLike[str] | Run, golden: str | os.PathLike[str] | Run, *, fuzzy: bool = True
) -> ConfigResult:
    """Compare what is known of two runs, rank by rank.

    Args:
        target: A pack, a recorded run or a manifest.
        golden: See ``target``.
        fuzzy: Whether settings whose names are alike may be one.

    Raises:
        ConfigError: one of them is none of these.
        DumpError: one cannot be read.
    """
    own = target if isinstance(target, Run) else read_run(Path(target))
    other = golden if isinstance(golden, Run) else read_run(Path(golden))
    pairs = _rank_pairs(own, other)
    held = own.held, other.held
    if not (own.has_manifest and other.has_manifest):
        held = _shared_sections(own), _shared_sections(other)
        pairs = [(min(own.manifests), min(other.manifests))]
    results: dict[int, ConfigResult] = {}
    for rank, partner in pairs:
        ours, theirs = own.manifests[rank], other.manifests[partner]
        results[rank] = compare_manifests(ours, theirs, fuzzy=fuzzy, places=(own.path, other.path), held=held)
    merged = merged_ranks(results, len(own.manifests)) if len(results) > 1 else next(iter(results.values()))
    notes = [*merged.notes, *_notes(own, other)]
    sections = list(_with_pack(merged.sections, own, other))
    return replace(merged, sections=sections, notes=notes)


def _rank_pairs(target: Run, golden: Run) -> list[tuple[int, int]]:
    shared = [(rank, rank) for rank in target.manifests if rank in golden.manifests]
    return shared or [(min(target.manifests), min(golden.manifests))]


def _notes(target: Run, golden: Run) -> Iterator[Finding]:
    numbers = len(target.manifests), len(golden.manifests)
    if numbers[0] != numbers[1] and target.has_manifest and golden.has_manifest:
        yield Finding(ConfigCode.RANK_NUMBER, Level.NOTE, {"target": numbers[0], "golden": numbers[1]})


def _shared_sections(run: Run) -> frozenset[Section]:
    if not run.has_manifest:
        return run.held
    # Row hashes and states of generators have no counterpart in a pack of another tool.
    kept = {Section.ENVIRONMENT, Section.LIBRARIES, Section.SETTINGS}
    found = {section for section in kept if section in run.held}
    found |= {Section.DATA} if run.pack.dataset else set()
    found |= {Section.RANDOM} if run.pack.random else set()
    return frozenset(found | (run.held & {Section.WEIGHTS}))


def _with_pack(sections: Sequence[SectionResult], target: Run, golden: Run) -> Iterator[SectionResult]:
    """Yield sections; those that manifests say nothing of are compared by what packs have of them."""
    made: dict[Section, SectionResult] = {}
    has_manifests = target.has_manifest and golden.has_manifest
    if target.pack.weights and golden.pack.weights:
        of_target, of_golden, are_foreign = _weights(target, golden)
        made[Section.WEIGHTS] = compare_statistics(Section.WEIGHTS, of_target, of_golden, are_foreign=are_foreign)
    if target.pack.dataset and golden.pack.dataset and not (has_manifests and _has_rows(target, golden)):
        made[Section.DATA] = compare_statistics(Section.DATA, target.pack.dataset, golden.pack.dataset)
    if target.pack.random and golden.pack.random and not has_manifests:
        made[Section.RANDOM] = compare_random_calls(target.pack.random, golden.pack.random)
    for each in sections:
        yield made.pop(each.section, each)
    for section in (Section.WEIGHTS,):
        if section in made:
            yield made[section]
        elif all(each.section is not section for each in sections):
            yield lacking(section, GOLDEN if target.pack.weights else TARGET)


def _weights(target: Run, golden: Run) -> tuple[Statistics, Statistics, bool]:
    """Return the statistics of parameters, and whether the sides are of two frameworks.

    Those of two frameworks are by PyTorch's names, and before the first step: after it they differ by rounding, which
    optimizers amplify.
    """
    first = [run.manifests[min(run.manifests)] for run in (target, golden)]
    sides = sides_of(first[0], first[1])
    packs = target.pack.weights, golden.pack.weights
    if not sides.are_foreign:
        return *packs, False
    found: list[Statistics] = []
    for manifest, weights, words in zip(first, packs, sides.maps, strict=True):
        names = {old: new for model in manifest.run.models for old, new in canonical_parameters(model, words).items()}
        first_step = min(step for step, _ in weights)
        found.append({
            place: {names.get(name, name): each for name, each in own.items()}
            for place, own in weights.items() if place[0] == first_step
        })  # fmt: skip
    return found[0], found[1], True


def _has_rows(target: Run, golden: Run) -> bool:
    return all(any(each.data for each in run.manifests.values()) for run in (target, golden))
