"""Communication judged by itself: what comes out of a call, over all ranks, follows from what went into it.

Noise is no question here: the law holds within one run. A call that only moves values keeps their sum, their squares
and their extremes. A sum over ranks has, up to its own roundings, the sum and the sketch of the sum of its parts, and
all ranks get the same of it. So the call and the ranks that break the law are at fault, whatever the golden run has.

With ``N`` parts ``x`` of ``n`` elements, a sum in which each addition rounds by ``u`` is off by at most
``(N - 1) u sum |x|`` in each element, to first order in ``u`` (Higham, *Accuracy and Stability of Numerical
Algorithms*, 2002, section 4.2); in the sum of all elements by at most ``(N - 1) u sqrt(n)`` times the sum of the norms
of the parts, as ``|x|_1 <= sqrt(n) |x|_2``. A statistic, a sum in float32 by halves, is off by ``log2(n) + 2``
round-offs of float32 at most.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np
import polars as pl

from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Finding, Level
from msprobe_core.judge.limits import UNIT_ROUNDOFF, Precision, precision_of
from msprobe_core.judge.origins import ancestors
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.result import EvidenceRow, FaultKind, Suspect
from msprobe_core.model import Phase, Role
from msprobe_core.order import Node, Order, order_of
from msprobe_core.order.communication_calls import RECEIVES, SENDS, is_communication, kind_of
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind
from msprobe_core.store.reading import read_dump

_logger = logging.getLogger(__name__)

MAX_RANKS = 16
"""Maximum number of ranks, whose dumps are in memory at once for this check."""

BY_ITSELF = frozenset({LocateCode.EXCHANGE_MOVED, LocateCode.EXCHANGE_SUM, LocateCode.EXCHANGE_UNLIKE})
"""Reasons that hold whatever the call was given."""

_MAX_BROKEN = 40
_SKETCH_SPREAD = 1.5
"""Factor by which a sketch may overestimate a norm: five standard deviations of 8.9 % each, and some."""
_FLOAT32 = UNIT_ROUNDOFF[Precision.FLOAT32]
_SAME = 1e-6
"""Relative difference of two statistics of equal values, which devices may sum in another order."""


class _Law(Enum):
    """What a kind of communication does: where its source stands among its arguments, and what it makes of it."""

    SUMMED = "0", True, True
    SUMMED_IN_PARTS = "1", True, False
    COPIED = "0", False, True
    GATHERED = "1", False, True
    DEALT = "1", False, False

    def __init__(self, source: str, adds: bool, is_common: bool) -> None:
        self.source, self.adds, self.is_common = source, adds, is_common


_LAWS = {
    "all_reduce": _Law.SUMMED,
    "reduce_scatter": _Law.SUMMED_IN_PARTS, "reduce_scatter_tensor": _Law.SUMMED_IN_PARTS,
    "broadcast": _Law.COPIED, **dict.fromkeys(SENDS | RECEIVES, _Law.COPIED),
    "all_gather": _Law.GATHERED, "all_gather_into_tensor": _Law.GATHERED,
    "all_to_all": _Law.DEALT, "all_to_all_single": _Law.DEALT,
}  # fmt: skip
"""The law of each kind of call, whose destination comes before its source if it has both."""


@dataclass(frozen=True)
class _Values:
    """The tensors that a call gave, or got.

    Attributes:
        numel: Number of their elements.
        total: Sum of all elements.
        norm: Their Euclidean norm.
        highest: The largest.
        lowest: The smallest.
        roundoff: Unit round-off of their dtype.
        sketch: Sketch of the only tensor; ``None`` without one.
    """

    numel: int
    total: float
    norm: float
    highest: float
    lowest: float
    roundoff: float
    sketch: np.ndarray[tuple[int], np.dtype[np.float64]] | None


@dataclass(frozen=True)
class Broken:
    """A call of communication that breaks its law.

    Attributes:
        kind: What kind of call it is.
        ranks: The ranks that are wrong, and the entries there.
        code: How it breaks the law.
        excess: The error in units of what is allowed; infinite where nothing is.
    """

    kind: str
    ranks: Sequence[Node]
    code: LocateCode
    excess: float = math.inf


@dataclass
class _Job:
    """The communication of one step of one run."""

    dumps: Mapping[int, Dump]
    order: Order
    given: dict[Node, _Values] = field(default_factory=dict[Node, _Values])
    got: dict[Node, _Values] = field(default_factory=dict[Node, _Values])
    operations: dict[Node, str] = field(default_factory=dict[Node, str])

    @staticmethod
    def of(paths: Mapping[int, Path]) -> _Job:
        dumps = {rank: read_dump(path) for rank, path in paths.items()}
        job = _Job(dumps, order_of(dumps))
        for rank, dump in dumps.items():
            job._read(rank, dump.frame)
        return job

    def _read(self, rank: int, frame: pl.DataFrame) -> None:
        is_forward = frame["phase"] == Phase.FORWARD.value
        names_ = frame.filter(is_forward)["entry"].unique().to_list()
        laws = {entry: law for entry in names_ if is_communication(entry) and (law := _LAWS.get(kind_of(entry) or ""))}
        own = frame.filter(is_forward & frame["entry"].is_in(list(laws)))
        read = ("numel", "mean", "norm", "max", "min", "dtype", "sketch")
        found: dict[tuple[str, str], list[Sequence[object]]] = {}
        for entry, key, role, kind, type_, text, *values in own.select(
            "entry", "key", "role", "kind", "type", "text", *read
        ).iter_rows():
            place = key[len(entry) + len(role) + 2 :].split(".")[0]
            if kind == RowKind.SCALAR.value and role == Role.INPUT.value and str(type_).endswith("ReduceOp"):
                self.operations[rank, entry] = str(text)
            wanted = laws[entry].source if role == Role.INPUT.value else "0"
            if kind == RowKind.TENSOR.value and place in {wanted, ""}:
                found.setdefault((entry, role), []).append(values)
        for (entry, role), tensors in found.items():
            values = _together(tensors)
            if values is not None:
                (self.given if role == Role.INPUT.value else self.got)[rank, entry] = values

    def broken(self) -> Iterator[Broken]:
        """Yield the calls that break their law."""
        for senders, receivers in self.order.exchanges():
            kinds = {kind_of(entry) for _, entry in (*senders, *receivers)}
            law = _LAWS.get(next(iter(kinds), None) or "")
            if law is None or not receivers:
                continue
            given = [self.given.get(node) for node in senders]
            got = {node: values for node in receivers if (values := self.got.get(node)) is not None}
            if len(got) == len(receivers):
                kind = min(map(str, kinds))
                operation = self.operations.get(senders[0], "SUM")
                yield from _broken(kind, law, operation, [each for each in given if each is not None], len(given), got)


def _together(tensors: Sequence[Sequence[object]]) -> _Values | None:
    """Return tensors as one; ``None`` if they are not floats, or not finite."""
    read: list[tuple[int, float, float, float, float]] = []
    roundoff = 0.0
    for numel, mean, norm, highest, lowest, dtype, _ in tensors:
        numbers = [float(str(each)) if each is not None else math.nan for each in (mean, norm, highest, lowest)]
        precision = precision_of(str(dtype))
        if precision is None or numel is None or not all(map(math.isfinite, numbers)):
            return None
        roundoff = max(roundoff, UNIT_ROUNDOFF[precision])
        read.append((int(str(numel)), *numbers))  # type: ignore[arg-type]
    sketch = tensors[0][-1] if len(tensors) == 1 else None
    return _Values(
        numel=sum(each[0] for each in read),
        total=sum(each[0] * each[1] for each in read),
        norm=math.hypot(*(each[2] for each in read)),
        highest=max(each[3] for each in read),
        lowest=min(each[4] for each in read),
        roundoff=roundoff,
        sketch=np.frombuffer(sketch, np.float32).astype(np.float64) if isinstance(sketch, bytes) else None,
    )


def _broken(
    kind: str, law: _Law, operation: str, given: Sequence[_Values], num_senders: int, got: Mapping[Node, _Values]
) -> Iterator[Broken]:
    """Yield how a call breaks its law, the surest way first; once at most."""
    values = list(got.values())
    if law.is_common and len({_rounded(each) for each in values}) > 1 and not _are_alike(values):
        yield Broken(kind, list(got), LocateCode.EXCHANGE_UNLIKE)
        return
    is_sum, is_mean = "SUM" in operation, "AVG" in operation
    if len(given) < num_senders or (law.adds and not is_sum and not is_mean):
        return
    parts = [[each] for each in values] if law.is_common else [values]
    nodes = [[node] for node in got] if law.is_common else [list(got)]
    for own, where in zip(parts, nodes, strict=True):
        excess = _excess(law, given, own, len(given) if is_mean else 1)
        if excess > 1:
            code = LocateCode.EXCHANGE_SUM if law.adds else LocateCode.EXCHANGE_MOVED
            yield Broken(kind, where, code, excess)


def _rounded(values: _Values) -> tuple[float, ...]:
    return values.total, values.norm, values.highest, values.lowest


def _are_alike(values: Sequence[_Values]) -> bool:
    first = values[0]
    size = max(first.norm, 1e-300)
    return all(
        abs(each.norm - first.norm) <= _SAME * size
        and abs(each.total - first.total) <= _SAME * size * math.sqrt(first.numel)
        and (each.highest, each.lowest) == (first.highest, first.lowest)
        for each in values
    )


def _excess(law: _Law, given: Sequence[_Values], got: Sequence[_Values], divisor: int) -> float:
    """Return how far what a call gave is from what it was given, in units of what is allowed."""
    numel = max(1, *(each.numel for each in (*given, *got)))
    size = sum(each.norm for each in given) / divisor
    statistics = (math.log2(numel) + 2) * _FLOAT32 * (len(given) + len(got))
    roundoff = max(each.roundoff for each in (*given, *got))
    added = (len(given) - 1 + (divisor > 1)) * roundoff if law.adds else 0.0
    total = sum(each.total for each in given) / divisor - sum(each.total for each in got)
    found = [_ratio(abs(total), (added + statistics) * math.sqrt(numel * max(len(given), len(got))) * size)]
    if law.adds:
        sketches = [each.sketch for each in given]
        made = got[0].sketch
        if len(got) == 1 and made is not None and all(each is not None for each in sketches):
            off = sum(each for each in sketches if each is not None) / divisor - made
            found.append(_ratio(float(np.linalg.norm(off)), _SKETCH_SPREAD * (added + statistics) * size))
        return max(found)
    if (max(each.highest for each in given), min(each.lowest for each in given)) != (
        max(each.highest for each in got),
        min(each.lowest for each in got),
    ):
        return math.inf
    squares = [math.hypot(*(each.norm for each in side)) for side in (given, got)]
    return max(*found, _ratio(abs(squares[0] - squares[1]), statistics * squares[0]))


def _ratio(error: float, allowed: float) -> float:
    return 0.0 if error == 0 else error / allowed if allowed > 0 else math.inf


def broken_exchanges(
    targets: Mapping[int, Path], goldens: Mapping[int, Path], step: int | None
) -> list[tuple[int, Suspect]]:
    """Return suspects, each with its rank, for calls of communication that break their law in the target alone.

    Args:
        targets: Dumps of the ranks of one step.
        goldens: The same for the golden run; a kind of call that breaks its law there too is not judged.
        step: Number of the step.
    """
    if not 1 < len(targets) <= MAX_RANKS:
        return []
    try:
        job = _Job.of(targets)
        found = list(job.broken())
        if not found:
            return []
        golden = _Job.of(goldens)
        usual = {each.kind for each in golden.broken()}
    except (CompareError, DumpError) as error:
        _logger.info("communication was not judged by itself: %s", error)
        return []
    return [
        (rank, _suspect(rank, entry, broken, job.dumps[rank], step))
        for broken in found[:_MAX_BROKEN]
        if broken.kind not in usual
        for rank, entry in _odd(broken, job, golden)
    ]


def _odd(broken: Broken, job: _Job, golden: _Job) -> Sequence[Node]:
    """Return the ranks at which a call is wrong: where ranks got other values, those farther from the golden run's."""
    if broken.code is not LocateCode.EXCHANGE_UNLIKE or not all(node in golden.got for node in broken.ranks):
        return broken.ranks
    distances: dict[Node, float] = {}
    for node in broken.ranks:
        own, right = job.got[node], golden.got[node]
        size = max(right.norm, 1e-300)
        of_total = abs(own.total - right.total) / (size * math.sqrt(right.numel))
        extremes = max(abs(own.highest - right.highest), abs(own.lowest - right.lowest))
        distances[node] = max(abs(own.norm - right.norm) / size, of_total, extremes / size)
    best = _rounded(job.got[min(distances, key=distances.__getitem__)])
    return [node for node in broken.ranks if _rounded(job.got[node]) != best]


def _suspect(rank: int, entry: str, broken: Broken, dump: Dump, step: int | None) -> Suspect:
    entries = dump.frame["entry"].unique(maintain_order=True)
    rows = dump.frame.filter((pl.col("entry") == entry) & (pl.col("role") == Role.OUTPUT.value))
    reason = Finding(broken.code, Level.ERROR)
    return Suspect(
        step=step,
        ranks=(rank,),
        entry=entry,
        phase=Phase.FORWARD,
        kind=FaultKind.COMMUNICATION,
        score=broken.excess,
        excess=broken.excess,
        reason=reason,
        evidence=[EvidenceRow(str(rows["name"][0]), [reason], None, None)] if rows.height else [],
        parents=list(ancestors(entry, dump.parents)),
        stack=list(dump.stacks.get(entry, ())),
        position=int(entries.index_of(entry) or 0),
    )
