"""Whether a difference of two configurations explains a located fault.

Two sources of an answer: what the setting acts on, by the table in ``explanations.yaml``, and where it is: everything
that the located call was given is right, so of two equal causes the one at its own module counts, and one at a module
elsewhere in the model does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from msprobe_core import names
from msprobe_core.config_check.differences import Difference, Section, Severity
from msprobe_core.errors import CompareError
from msprobe_core.findings import Finding, Level
from msprobe_core.judge.discrete_ops import api_of
from msprobe_core.locate.explain_codes import ExplainCode
from msprobe_core.locate.result import Degree, Explained, Explanation, FaultKind, Suspect
from msprobe_core.model import Phase
from msprobe_core.store.results import read_result

_VERSION = 1
_ANY = "any"
_SETTING = r"(\w+\.|hooks\.\w+\.|\w+\.(dtype|shape|device|placement|takes_gradient|tied_to|is_buffer)\.)?"
"""What follows the path of a module in the place of one of its settings, with a dot at the end."""


@dataclass(frozen=True, kw_only=True)
class LocatedFault:
    """What is known of a located fault.

    Attributes:
        kind: Kind of fault.
        entry: Entry name of the call.
        phase: Forward, backward, gradients of parameters; ``None`` if unknown.
        parents: Names of the enclosing calls, innermost first.
        ranks: The ranks that show it; empty outside of a job.
        seen_at: The call at which the error exceeds rounding, such as the loss inside of a model; ``None`` if that is
            ``entry``.
    """

    kind: FaultKind
    entry: str
    phase: Phase | None = None
    parents: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    seen_at: str | None = None


def located_of(suspect: Suspect) -> LocatedFault:
    """Return what is known of a suspect's fault."""
    return LocatedFault(
        kind=suspect.kind,
        entry=suspect.entry,
        phase=suspect.phase,
        parents=tuple(suspect.parents),
        ranks=tuple(suspect.ranks),
        seen_at=suspect.seen_at,
    )


class _Stored(msgspec.Struct, frozen=True):
    version: int
    suspects: tuple[LocatedFault, ...]


def read_located(path: Path) -> LocatedFault:
    """Return the first suspect of a ``locate.json``.

    Raises:
        CompareError: it cannot be read, is not what ``msprobe locate`` writes, is of a later version, or has no
            suspect.
    """
    stored = read_result(path, _Stored, "msprobe locate", _VERSION)
    if not stored.suspects:
        raise CompareError(f"{path}: has found no fault, so there is nothing to explain; compare without --explain")
    return stored.suspects[0]


class _Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kinds: tuple[FaultKind, ...] = ()
    phases: tuple[Phase, ...] = ()
    modules: str | None = None
    apis: str | None = None


class _Cause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    sections: tuple[Section, ...] = ()
    paths: str | None = None
    yes: tuple[str, ...] = ()
    maybe: tuple[str, ...] = ()

    @property
    def why(self) -> Finding:
        return Finding(ExplainCode(f"explain.cause.{self.name}"))


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    given: tuple[FaultKind, ...]
    topics: dict[str, _Topic]
    causes: tuple[_Cause, ...]


@cache
def _table() -> _Table:
    # A late import: YAML takes longer to import than explanations to be found.
    from msprobe_core.untrusted.yaml_text import load_yaml

    text = Path(__file__).with_name("explanations.yaml").read_text("utf-8")
    return msgspec.convert(load_yaml(text, has_types=False), _Table, strict=False)


def ranked(fault: LocatedFault | None, differences: Iterable[Difference]) -> list[Explained]:
    """Return differences with their explanations, those that explain the fault first.

    Args:
        fault: The located fault; ``None`` if there is none, which leaves differences in the order of their severity.
        differences: The differences of two configurations.
    """
    found = [
        Explained(difference=each, explanation=None if fault is None else explains(fault, each)) for each in differences
    ]
    return sorted(found, key=_rank)


def _rank(found: Explained) -> tuple[int, int, int]:
    severity = list(Severity).index(found.difference.severity)
    if found.explanation is None:
        return 0, 0, severity
    return *order_of(found.explanation), severity


def order_of(explanation: Explanation) -> tuple[int, int]:
    """Return what orders explanations, those that explain the fault best first."""
    return list(Degree).index(explanation.degree), -explanation.closeness


def explains(fault: LocatedFault, difference: Difference) -> Explanation:
    """Return whether a difference of two configurations explains a fault.

    Args:
        fault: The fault.
        difference: The difference.
    """
    if difference.severity is Severity.INFO:
        return Explanation(degree=Degree.NO, finding=Finding(ExplainCode.HARMLESS))
    found = _by_place(fault, difference) or _by_cause(fault, difference)
    apart = fault.ranks and difference.ranks and not {*fault.ranks} & {*difference.ranks}
    if found.degree is Degree.YES and apart:
        why = Finding(ExplainCode.OTHER_RANKS, fields={"ranks": list(difference.ranks)})
        return _explanation(Degree.MAYBE, why, found.closeness)
    return found


def _explanation(degree: Degree, why: Finding, closeness: int = 0) -> Explanation:
    code = {Degree.YES: ExplainCode.YES, Degree.MAYBE: ExplainCode.MAYBE, Degree.NO: ExplainCode.NO}[degree]
    level = {Degree.YES: Level.ERROR, Degree.MAYBE: Level.WARNING, Degree.NO: Level.NOTE}[degree]
    return Explanation(degree=degree, finding=Finding(code, level, {"why": why}), closeness=closeness)


# --- by what a setting acts on ----------------------------------------------------------------------------------------


def _by_cause(fault: LocatedFault, difference: Difference) -> Explanation:
    cause = _cause_of(difference)
    own, around = topics_of(fault)
    if own & {*cause.yes}:
        return _explanation(Degree.YES, cause.why, 1)
    if around & {*cause.yes}:
        return _explanation(Degree.MAYBE, cause.why, 1)
    if _ANY in cause.maybe or (own | around) & {*cause.maybe}:
        return _explanation(Degree.MAYBE, cause.why)
    return _explanation(Degree.NO, cause.why)


def _cause_of(difference: Difference) -> _Cause:
    paths = [difference.path] if difference.golden_path is None else [difference.path, difference.golden_path]
    return next(cause for cause in _table().causes if _acts(cause, difference.section, paths))


def _acts(cause: _Cause, section: Section, paths: Sequence[str]) -> bool:
    if cause.sections and section not in cause.sections:
        return False
    return cause.paths is None or any(re.search(cause.paths, path, re.IGNORECASE) for path in paths)


def topics_of(fault: LocatedFault) -> tuple[frozenset[str], frozenset[str]]:
    """Return what a fault is about, by ``explanations.yaml``: by itself, and by the modules around it only.

    Args:
        fault: The fault.
    """
    is_given = fault.kind in _table().given
    modules = [] if is_given else [part for part in map(_module_names, _modules(fault)) if part]
    innermost, outer = modules[:1], modules[1:]
    calls = [] if is_given else [fault.entry]
    if calls and fault.phase is Phase.FORWARD and fault.seen_at is not None:
        calls.append(fault.seen_at)
    apis = [api for call in calls if (api := api_of(names.forward_of(call) or call))]
    own = {
        name
        for name, topic in _table().topics.items()
        if fault.kind in topic.kinds
        or (fault.phase is not None and fault.phase in topic.phases)
        or _is_in(topic.apis, apis)
        or _is_in(topic.modules, [each for names_of in innermost for each in names_of])
    }
    around = {
        name
        for name, topic in _table().topics.items()
        if name not in own and _is_in(topic.modules, [each for names_of in outer for each in names_of])
    }
    return frozenset(own), frozenset(around)


def _is_in(pattern: str | None, texts: Iterable[str]) -> bool:
    return pattern is not None and any(re.search(pattern, text, re.IGNORECASE) for text in texts)


def _modules(fault: LocatedFault) -> list[tuple[str, str]]:
    """Return paths and classes of the modules that the call is or is in, innermost first.

    Paths are without wrappers such as that of `DistributedDataParallel`, as those of settings are.
    """
    found: list[tuple[str, str]] = []
    for name in map(names.numbered_gradients, (fault.entry, *fault.parents)):
        stem = names.stem_of(name) if names.is_module(name) else None
        if stem is not None:
            _, path, kind = names.split_module(stem)
            found.append((names.without_wrappers(path), kind))
    return found


def _module_names(module: tuple[str, str]) -> list[str]:
    path, kind = module
    return [part for part in (kind, path.rpartition(".")[2]) if part and not part.isdigit()]


# --- by where it is ---------------------------------------------------------------------------------------------------


def _by_place(fault: LocatedFault, difference: Difference) -> Explanation | None:
    """Return the answer that follows from the place of a setting in the model; ``None`` if nothing does."""
    if difference.section not in (Section.MODEL, Section.PARAMETERS, Section.WEIGHTS):
        return None
    paths = [path for path, _ in _modules(fault) if path]
    place = difference.path
    if difference.count > 1:  # the located module is one of these places if only its numbers differ
        paths, place = [_numberless(path) for path in paths], _numberless(place)
    if not paths:
        return None
    if _is_setting_of(place, paths[0]):
        why = Finding(ExplainCode.AT, fields={"module": _modules(fault)[0][0]})
        return _explanation(Degree.YES, why, 2)
    around = next((path for path in paths[1:] if _is_setting_of(place, path)), None)
    if around is not None:
        by_cause = _by_cause(fault, difference)
        if by_cause.degree is Degree.YES:
            return by_cause
        return _explanation(Degree.MAYBE, Finding(ExplainCode.AROUND, fields={"module": around}), 1)
    is_of_one_module = difference.section is not Section.WEIGHTS and _numberless(place) != place
    if is_of_one_module and difference.count == 1 and fault.phase is Phase.FORWARD:
        # A fault of another module would show there: what this call was given is right.
        return Explanation(degree=Degree.NO, finding=Finding(ExplainCode.ELSEWHERE, fields={"place": difference.path}))
    return None


def _numberless(path: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "#", path)


def _is_setting_of(place: str, module: str) -> bool:
    """Whether a place in a configuration is a module itself, or a setting of it and not of a module inside it."""
    _, found, rest = f".{place}.".partition(f".{module}.")  # the number of a model may come first
    return bool(found) and re.fullmatch(_SETTING, rest) is not None
