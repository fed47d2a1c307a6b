"""Suggest partners for calls without a partner, as mapping files for the user to edit.

Two names are paired by what was recorded of their calls: whether parameters and results have the same shapes and the
same norms, how similar the names are, and how close the calls are in execution order. Values count more than shapes,
and shapes more than names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import polars as pl

from msprobe_core import names
from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.findings import Finding
from msprobe_core.judge.columns import SIDES, Match
from msprobe_core.judge.joining import filtered, filtered_parts
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Phase, Role
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_rows import Rows

_MAX_NAMES = 200
"""Further names of a side are ignored: a side with so many unmatched names is a different program."""

_MAX_CANDIDATES = 3

_SAME_NORM = 1e-3
"""Relative difference of two norms below which the values may be the same."""

_SAME_NAME = 0.8
"""Similarity of two names, from 0 to 1, from which they may be partners even if no value is the same."""

_SHOWN = ("kind", "shape", "norm")
"""What is read of the values of a call without a partner."""

_LEAST_SCORE = 1.0
_WHOLE = 0.99


class NameKind(str, Enum):
    """The kind of calls that a name refers to."""

    CELL = "cell"
    API = "api"


@dataclass(frozen=True)
class Candidate:
    """A possible partner of a name.

    Attributes:
        golden: Name in the golden dump.
        reason: Why the names may be partners.
    """

    golden: str
    reason: Finding


@dataclass(frozen=True)
class Suggestion:
    """Possible partners of one name of the target.

    Attributes:
        kind: Kind of the name: modules, for ``-cm`` files, or APIs, for ``-am`` files.
        target: Name in the target.
        candidates: Possible names in the golden dump, the best first.
        is_partly_paired: Whether other calls of this name have partners.
        is_path: Whether the name is a path of modules without a class name.
    """

    kind: NameKind
    target: str
    candidates: Sequence[Candidate]
    is_partly_paired: bool = False
    is_path: bool = False


@dataclass
class _Named:
    """The unmatched calls of one name.

    Attributes:
        name: Name in the format of mapping files.
        place: Position of its first call among all rows, from 0 to 1.
        results: Shape and norm of the first result of each call.
        parameters: Shapes and norms of the recorded parameters.
    """

    name: str
    place: float
    results: list[tuple[str, float]]
    parameters: list[tuple[str, float]]


def suggest_names(judged: Rows, wrappers: tuple[str, str] = ("", "")) -> list[Suggestion]:
    """Return suggestions for the names of the target's calls that have no partner.

    Args:
        judged: Judged rows; calls that pass for another reason need no partner.
        wrappers: Paths of the modules around those that both sides have, of target and golden dump. A mapping file that
            maps inner modules must map these paths too.
    """
    read = ("match", "role", "entry", "entry_golden", *(f"{name}_{side}" for name in _SHOWN for side in SIDES))
    is_unmatched = (pl.col("verdict") == Verdict.UNMATCHED.value) & (pl.col("phase") == Phase.FORWARD.value)
    unmatched = filtered(judged, read, is_unmatched, "row")
    if not unmatched.height:
        return []
    entries = pl.concat(
        part.unique() for part in filtered_parts(judged, ["entry"], pl.col("match") == Match.BOTH.value)
    )
    lone = unmatched.join(entries, on="entry", how="anti", maintain_order="left")
    own = _named(lone.filter(pl.col("match") == Match.TARGET.value), "target", judged.height)
    other = _named(lone.filter(pl.col("match") == Match.GOLDEN.value), "golden", judged.height)
    stems = {names.stem_of(entry) for entry in entries["entry"]} if own and other else set[str | None]()
    found = [
        replace(suggestion, is_partly_paired=suggestion.target in stems)
        for kind in NameKind
        for suggestion in _suggest(kind, own.get(kind, [])[:_MAX_NAMES], other.get(kind, [])[:_MAX_NAMES])
    ]
    if all(wrappers) and any(suggestion.kind is NameKind.CELL for suggestion in found):
        around = Candidate(wrappers[1], Finding(CompareCode.SUGGESTED_BY_INSIDE))
        found.append(Suggestion(NameKind.CELL, wrappers[0], [around], is_path=True))
    return found


def _named(lone: pl.DataFrame, side: str, total: int) -> Mapping[NameKind, list[_Named]]:
    entry = "entry_golden" if side == "golden" else "entry"
    found: dict[str, _Named] = {}
    kinds: dict[NameKind, list[_Named]] = {}
    tensors = lone.filter(
        (pl.col(f"kind_{side}") == RowKind.TENSOR.value)
        & pl.col("role").is_in([Role.OUTPUT.value, Role.PARAMETERS.value])
    )
    columns = tensors.select("row", entry, "role", f"shape_{side}", f"norm_{side}").rows()
    results_of: set[str] = set()
    for row, call, role, shape, norm in columns:
        stem = names.stem_of(call)
        if stem is None:
            continue
        is_module = names.is_module(stem)
        name = stem.partition(".")[2] if is_module else stem
        named = found.get(stem)
        if named is None:
            named = found[stem] = _Named(name, row / max(total, 1), [], [])
            kinds.setdefault(NameKind.CELL if is_module else NameKind.API, []).append(named)
        value = (str(shape), float("nan") if norm is None else float(norm))
        if role == Role.PARAMETERS.value:
            named.parameters.append(value)
        elif call not in results_of:
            results_of.add(call)
            named.results.append(value)
    return kinds


def _suggest(kind: NameKind, own: Sequence[_Named], other: Sequence[_Named]) -> list[Suggestion]:
    scored = [
        (_score(kind, target, golden), target.name, golden.name, _reason(target, golden))
        for target in own
        for golden in other
    ]
    scored = sorted((each for each in scored if each[0] >= _LEAST_SCORE), key=lambda each: -each[0])
    # The best pairs first. Each module has one partner, so its name is used once; several APIs may have the same
    # partner.
    taken: dict[str, str] = {}
    given: set[str] = set()
    for _, target, golden, _ in scored:
        if target not in taken and (kind is NameKind.API or golden not in given):
            taken[target] = golden
            given.add(golden)
    suggestions: list[Suggestion] = []
    for name in dict.fromkeys(named.name for named in own):
        candidates = [Candidate(golden, reason) for _, target, golden, reason in scored if target == name]
        candidates.sort(key=lambda candidate: candidate.golden != taken.get(name))
        if candidates:
            suggestions.append(Suggestion(kind, name, candidates[:_MAX_CANDIDATES]))
    return suggestions


def _score(kind: NameKind, target: _Named, golden: _Named) -> float:
    import difflib  # rarely needed

    likeness = difflib.SequenceMatcher(None, target.name, golden.name, autojunk=False).ratio()
    shapes, values = _alike(target, golden)
    # Many APIs have results of the same shape, so a shape alone is no evidence for them.
    if not shapes or (kind is NameKind.API and not values and likeness < _SAME_NAME):
        return 0.0
    return shapes + 3 * values + likeness - abs(target.place - golden.place)


def _alike(target: _Named, golden: _Named) -> tuple[float, float]:
    """Return the shares of results and parameters that agree in shape, and in shape and norm."""
    shares = [
        _shares(own, other)
        for own, other in ((target.results, golden.results), (target.parameters, golden.parameters))
        if own or other
    ]
    if not shares:
        return 0.0, 0.0
    return sum(shape for shape, _ in shares) / len(shares), sum(value for _, value in shares) / len(shares)


def _shares(own: Sequence[tuple[str, float]], other: Sequence[tuple[str, float]]) -> tuple[float, float]:
    left = list(other)
    shapes = values = 0
    for shape, norm in own:
        same = [value for value in left if value[0] == shape]
        if not same:
            continue
        shapes += 1
        best = min(same, key=lambda value: _difference(norm, value[1]))
        values += _difference(norm, best[1]) < _SAME_NORM
        left.remove(best)
    return shapes / max(len(own), 1), values / max(len(own), 1)


def _difference(norm: float, other: float) -> float:
    difference = abs(norm - other) / max(abs(norm), abs(other), 1e-30)
    return difference if difference == difference else 1.0


def _reason(target: _Named, golden: _Named) -> Finding:
    shapes, values = _alike(target, golden)
    share = values or shapes
    if share > _WHOLE:
        code = CompareCode.SUGGESTED_BY_VALUES if values else CompareCode.SUGGESTED_BY_SHAPES
    else:
        code = CompareCode.SUGGESTED_BY_SOME_VALUES if values else CompareCode.SUGGESTED_BY_SOME_SHAPES
    what = "results and parameters" if target.parameters else "results"
    return Finding(code, fields={"what": what, "percent": round(100 * share)})


def as_yaml(kind: NameKind, suggestions: Sequence[Suggestion]) -> str:
    """Return a mapping file for ``-cm`` or ``-am`` with the best candidates; the others are commented out.

    Args:
        kind: Kind of the names.
        suggestions: Suggestions of all kinds.
    """
    option = "-cm" if kind is NameKind.CELL else "-am"
    what = "Modules" if kind is NameKind.CELL else "APIs"
    lines = [
        f"# {what} of the target that have no partner, and what the golden dump may call them: a guess by shapes,",
        f"# values and names. Take out what is wrong, then compare again with {option} and this file.",
    ]
    own = [suggestion for suggestion in suggestions if suggestion.kind is kind]
    if kind is NameKind.CELL:
        lines += [f"{_quoted(target)}: {_quoted(golden)}" for target, golden in _shortened(own)]
        return "\n".join(lines) + "\n"
    for suggestion in own:
        for number, each in enumerate(suggestion.candidates):
            mark = "# " if number or suggestion.is_partly_paired else ""
            lines.append(f"{mark}{_quoted(suggestion.target)}: {_quoted(each.golden)}  # {each.reason}")
        if suggestion.is_partly_paired:
            lines.append("#   is left out, because other calls of this name have partners, which they would lose")
    return "\n".join(lines) + "\n"


def _shortened(suggestions: Sequence[Suggestion]) -> list[tuple[str, str]]:
    """Return pairs of partial names, without their common last components: inner modules follow their parent."""
    pairs: dict[str, str] = {}
    for suggestion in suggestions:
        own, other = suggestion.target.split("."), suggestion.candidates[0].golden.split(".")
        # The class is part of the name only if nothing else distinguishes the two.
        if own[:-1] != other[:-1] and not suggestion.is_path:
            own, other = own[:-1], other[:-1]
        while len(own) > 1 and len(other) > 1 and own[-1] == other[-1]:
            own, other = own[:-1], other[:-1]
        pairs.setdefault(".".join(own), ".".join(other))
    return sorted(pairs.items(), key=lambda pair: -pair[0].count("."))


def _quoted(text: Any) -> str:
    plain = str(text)
    return plain if plain.replace(".", "").replace("_", "").isalnum() else f"'{plain.replace(chr(39), chr(39) * 2)}'"
