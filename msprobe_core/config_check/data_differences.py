"""Whether two runs read the same samples: the same ones in another order, shifted, some others, repeated, or missing.

Only hashes are compared, so the data themselves are not needed. The rows of an input are one sequence over the steps
and micro-steps that both runs have recorded: how a run divides a batch does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from msprobe_core.config_check.config_codes import ConfigCode
from msprobe_core.config_check.differences import Difference, Section, SectionResult, Severity
from msprobe_core.config_check.sides import GOLDEN, TARGET, difference, lone, said, section_result
from msprobe_core.findings import Finding
from msprobe_core.manifest.facts import DataRows

_MOST_SHIFT = 4096
"""Largest shift that is looked for, in rows."""


@dataclass(frozen=True)
class _Stream:
    """The rows of one input in their order.

    Attributes:
        rows: Their hashes, and the step of each.
        ordered: Hashes of whole batches in their order.
        count: Number of rows, of which some may have no hash.
    """

    rows: Sequence[tuple[str, int]]
    ordered: Sequence[str]
    unordered: Sequence[str]
    count: int
    first_step: int

    @property
    def hashes(self) -> list[str]:
        return [each for each, _ in self.rows]


def compare_data(target: Sequence[DataRows], golden: Sequence[DataRows]) -> SectionResult:
    """Compare the data of two runs in the steps that both have; in all steps if they have none in common."""
    steps = {each.step for each in target} & {each.step for each in golden}
    streams = _streams(target, steps), _streams(golden, steps)
    found: list[Difference] = []
    for name, own in streams[0].items():
        if name in streams[1]:
            found += _of_input(name, own, streams[1][name])
        else:
            found.append(lone(Section.DATA, name, TARGET, own.count, Severity.WARNING))
    found += [
        lone(Section.DATA, name, GOLDEN, other.count, Severity.WARNING)
        for name, other in streams[1].items()
        if name not in streams[0]
    ]
    return section_result(Section.DATA, len(streams[0].keys() & streams[1].keys()), _together(found))


def _streams(data: Sequence[DataRows], steps: set[int]) -> dict[str, _Stream]:
    parts: dict[str, list[DataRows]] = {}
    for each in sorted(data, key=lambda part: (part.step, part.micro_step)):
        if not steps or each.step in steps:
            parts.setdefault(each.name, []).append(each)
    return {
        name: _Stream(
            rows=[(row, each.step) for each in own for row in each.rows],
            ordered=[each.ordered for each in own],
            unordered=[each.unordered for each in own],
            count=sum(each.count for each in own),
            first_step=own[0].step,
        )
        for name, own in parts.items()
    }


def _of_input(name: str, target: _Stream, golden: _Stream) -> Iterator[Difference]:
    if target.ordered == golden.ordered:
        return
    own, other = target.hashes, golden.hashes
    if own == other and target.count == golden.count:  # batches are divided otherwise
        return
    are_whole = len(own) == target.count and len(other) == golden.count
    same_rows = Counter(own) == Counter(other) if are_whole and own else target.unordered == golden.unordered
    if same_rows and target.count == golden.count:
        first = next((step for (row, step), also in zip(target.rows, other, strict=False) if row != also), None)
        step = target.first_step if first is None else first
        yield _difference(name, ConfigCode.DATA_ORDER, count=target.count, step=step)
        return
    if (shift := _shift(own, other)) is not None:
        side = "later" if shift > 0 else "earlier"
        yield _difference(name, ConfigCode.DATA_SHIFT, count=abs(shift), side=side)
        return
    if target.count != golden.count:
        yield _difference(
            name, ConfigCode.DATA_NUMBER, target=target.count, golden=golden.count, step=target.first_step
        )
    yield from _rows(name, target, golden)


def _rows(name: str, target: _Stream, golden: _Stream) -> Iterator[Difference]:
    own, other = target.hashes, golden.hashes
    places = [i for i, (row, also) in enumerate(zip(own, other, strict=False)) if row != also]
    if not places:
        if target.count == golden.count:
            yield _difference(name, ConfigCode.ROWS_UNKNOWN)
        return
    total = min(len(own), len(other))
    repeated, also_repeated = len(own) - len({*own}), len(other) - len({*other})
    if repeated > also_repeated:
        yield _difference(name, ConfigCode.DATA_REPEATED, count=repeated, total=len(own), golden=also_repeated)
        if len(places) <= repeated - also_repeated:
            return
    step = target.rows[places[0]][1]
    begin = next(i for i, (_, each) in enumerate(target.rows) if each == step)
    yield _difference(name, ConfigCode.DATA_ROWS, count=len(places), total=total, row=places[0] - begin, step=step)


def _difference(name: str, code: ConfigCode, /, **fields: str | int) -> Difference:
    what = said(code, Severity.ERROR, name=name, **fields)
    return difference(Section.DATA, name, (fields.get("target"), fields.get("golden")), what)


def _shift(own: Sequence[str], other: Sequence[str]) -> int | None:
    """Return by how many rows the target begins later in the golden run's sequence; ``None`` if it does not.

    Negative if it begins earlier. At least half of the rows must be in common.
    """
    most = min(len(own), len(other)) // 2
    for shift in range(1, min(most, _MOST_SHIFT) + 1):
        for sign, (ahead, later) in ((1, (other, own)), (-1, (own, other))):
            length = min(len(ahead) - shift, len(later))
            # Rows that are all alike, such as masks, are equal at any shift.
            if ahead[shift] == later[0] and list(ahead[shift : shift + length]) == list(later[:length]):
                return sign * shift if len({*later[:length]}) > 1 else None
    return None


def _together(differences: Iterable[Difference]) -> list[Difference]:
    """Return differences with those of several inputs that say the same as one: tokens, their labels, positions."""
    found: dict[tuple[object, ...], Difference] = {}
    for each in differences:
        fields = {key: value for key, value in each.finding.fields.items() if key != "name"}
        key = (each.finding.code, str(fields)) if each.only_on is None else (each.path,)
        first = found.get(key)
        found[key] = each if first is None else replace(first, count=first.count + 1, finding=_named(first, each))
    return list(found.values())


def _named(first: Difference, other: Difference) -> Finding:
    own = first.finding.fields["name"]
    names = f"{own}, {other.path}"
    return Finding(first.finding.code, first.finding.level, {**first.finding.fields, "name": names})


def shared_data(
    data: Mapping[int, Sequence[DataRows]], groups: Iterable[Sequence[int]]
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield ranks of a data-parallel group that read the same rows, and the input.

    Inputs whose rows are all equal, such as masks, say nothing.

    Args:
        data: Data of each rank.
        groups: Ranks of each data-parallel group.
    """
    for ranks in groups:
        seen: dict[tuple[str, str], list[int]] = {}
        for rank in ranks:
            first = min((each.step for each in data.get(rank, ())), default=None)
            for each in data.get(rank, ()):
                if each.step == first and each.micro_step == 0 and len({*each.rows}) > 1:
                    seen.setdefault((each.name, each.unordered), []).append(rank)
        shared = {tuple(own): name for (name, _), own in reversed(seen.items()) if len(own) > 1}
        yield from shared.items()
