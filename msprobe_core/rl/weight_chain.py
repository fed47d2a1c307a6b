"""``msprobe weights compare``: at which hop of which transfer a tensor went wrong, and how."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from msprobe_core.checkpoint.canonical import key_of
from msprobe_core.checkpoint.fingerprints import SUFFIX, CheckpointPrint, TensorPrint, compare_prints, read_fingerprint
from msprobe_core.checkpoint.result import TensorRow
from msprobe_core.checkpoint.structure import SAME, Relation
from msprobe_core.errors import ConfigError, MissingDumpError
from msprobe_core.findings import Finding as Said
from msprobe_core.fingerprint.distance import decoded
from msprobe_core.judge.verdict import Verdict
from msprobe_core.rl.detail_codes import ComparedCode, LineCode
from msprobe_core.rl.files import RLStage, load_weights, ranks_of, steps_of
from msprobe_core.rl.headline_codes import HeadlineCode
from msprobe_core.rl.outcome import Finding, Outcome, table_of
from msprobe_core.rl.rl_codes import TransferCode
from msprobe_core.rl.weight_log import CHAINS, Hop
from msprobe_core.rl.weights import prints_of
from msprobe_core.store.reading import check_exists


class WeightFault(str, Enum):
    """How a tensor went wrong."""

    STALE = "stale"
    PERMUTED = "permuted"
    TRANSPOSED = "transposed"
    MISPLACED = "misplaced"
    SCALED = "scaled"
    CAST_TWICE = "cast twice"
    FREED = "freed memory"
    MISSING = "missing"
    INCOMPLETE = "a part is missing"
    COPIES = "ranks have different copies"
    PARTLY = "partly different"
    DIFFERENT = "different"


_FAULTS: Mapping[Relation, WeightFault] = {
    Relation.STALE: WeightFault.STALE,
    Relation.TRANSPOSED: WeightFault.TRANSPOSED,
    Relation.SCALED: WeightFault.SCALED,
    Relation.MISPLACED: WeightFault.MISPLACED,
    Relation.UNINITIALISED: WeightFault.FREED,
    Relation.ONLY_GOLDEN: WeightFault.MISSING,
    Relation.PARTLY: WeightFault.PARTLY,
    Relation.CLOSE: WeightFault.PARTLY,
    **dict.fromkeys(
        (Relation.QKV_ORDER, Relation.GATE_UP, Relation.EXPERTS, Relation.REORDERED, Relation.ROWS, Relation.HEADS),
        WeightFault.PERMUTED,
    ),
}
_ROUNDING: Mapping[str, float] = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
_STAGES = {Hop.SENT: RLStage.WEIGHTS_SENT, Hop.RECEIVED: RLStage.WEIGHTS_RECEIVED}
"""Stages that a plugin for a trainer records the same at."""


@dataclass(frozen=True, kw_only=True)
class HopRow:
    """One tensor that a hop has not passed on.

    Attributes:
        sync: Number of the transfer.
        before: The hop that still had the right values.
        hop: The hop that has others.
        replica: Which of several whole copies at the hop, by rank.
        name: Stored name.
        fault: How it went wrong.
        reason: What was verified.
        error: Estimated distance over the norm; ``None`` if unknown.
        verdict: Always an error; for the colours of tables.
    """

    sync: int
    before: str
    hop: str
    replica: int
    name: str
    fault: WeightFault
    reason: Said
    error: float | None = None
    verdict: str = Verdict.ERROR.value


@dataclass(frozen=True)
class _Copy:
    """A whole model at a hop, put together from the parts of its ranks."""

    rank: int
    prints: CheckpointPrint
    incomplete: Mapping[str, Said]
    differing: Mapping[str, Said]


def compare_chain(
    path: Path, chain: Sequence[Hop] = (), *, names: Mapping[str, str] | None = None, is_enforced: bool = False
) -> Outcome:
    """Compare each hop with the one before, in every transfer.

    Args:
        path: Directory of a `WeightLog`, or of a run in which a trainer's plugin recorded weights.
        chain: Hops to compare; all by default.
        names: Patterns of names at any hop, and what they are called in the others; with groups of `re`.
        is_enforced: Whether a hop or a tensor that only some transfers or hops have is a difference too.

    Raises:
        DumpError: there are no two hops to compare, or a file cannot be read.
    """
    check_exists(path)
    syncs = _syncs(path)
    chains = [[hop for hop in one if not chain or hop in chain] for one in CHAINS]
    renamed = _Names(names or {})
    known: dict[tuple[int, Hop], list[_Copy]] = {}
    rows: list[HopRow] = []
    lines: list[Said] = []
    pairs: list[dict[str, Any]] = []
    for sync, hops in sorted(syncs.items()):
        for one in chains:
            present = [hop for hop in one if hop in hops]
            for hop in present:
                known[sync, hop] = _copies(hops[hop], sync, renamed)
            if is_enforced:
                rows += _absent(sync, one, present, syncs)
            for before, hop in itertools.pairwise(present):
                earlier = [known[other, before][0].prints for other in sorted(syncs) if (other, before) in known]
                compared = list(
                    _hop(sync, before, hop, known, earlier[-_MOST_EARLIER - 1 : -1], is_enforced=is_enforced)
                )
                rows += compared
                tensors = sum(len(copy.prints.prints) for copy in known[sync, hop])
                pairs.append({
                    "sync": sync, "before": before.value, "hop": hop.value, "tensors": tensors, "wrong": len(compared),
                })  # fmt: skip
                lines.append(_line(sync, before, hop, known[sync, hop], compared))
    if not lines:
        wanted = " and ".join(hop.value for hop in chain) or "two places of one transfer"
        raise MissingDumpError(f"{path}: holds no weights of {wanted}; log them at the trainer and at the engine")
    renamed.complain()
    return _outcome(path, sorted(syncs), rows, lines, pairs)


def _absent(
    sync: int, chain: Sequence[Hop], present: Sequence[Hop], syncs: Mapping[int, Mapping[Hop, object]]
) -> Iterator[HopRow]:
    """Yield hops that other transfers have, and this one has not."""
    expected = [hop for hop in chain if any(hop in hops for hops in syncs.values())]
    # The checkpoint and what is exported of it are there once.
    for hop in expected if chain[:1] != [Hop.DISK] else ():
        if hop not in present:
            yield HopRow(
                sync=sync, before=hop.value, hop=hop.value, replica=0, name="all tensors", fault=WeightFault.MISSING,
                reason=Said.of(TransferCode.NOT_LOGGED, hop=hop.value),
            )  # fmt: skip


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"--map: {text!r} is no pattern of names ({error})") from error


class _Names:
    """Other names of tensors."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._patterns = [(_pattern(pattern), name) for pattern, name in names.items()]
        self._unused: dict[str, None] = dict.fromkeys(names)

    def applied(self, found: CheckpointPrint) -> CheckpointPrint:
        """Return fingerprints under their other names."""
        renamed = map(self._applied, found.prints.values())
        return replace(found, prints={each.key: each for each in renamed}) if self._patterns else found

    def _applied(self, found: TensorPrint) -> TensorPrint:
        for pattern, name in self._patterns:
            if (match := pattern.fullmatch(found.name)) is not None:
                self._unused.pop(pattern.pattern, None)
                try:
                    other = match.expand(name)
                except (re.error, IndexError) as error:
                    raise ConfigError(f"--map: {name!r} cannot be filled in ({error})") from error
                return msgspec.structs.replace(found, key=key_of(other), name=other)
        return found

    def complain(self) -> None:
        """Raise if a pattern fits no name.

        Raises:
            ConfigError: one does not.
        """
        if self._unused:
            raise ConfigError(f"--map: {next(iter(self._unused))!r} fits no name that was logged; correct it")


def _syncs(path: Path) -> dict[int, dict[Hop, list[tuple[int, Path]]]]:
    found: dict[int, dict[Hop, list[tuple[int, Path]]]] = {}
    for file in sorted(path.glob(f"sync*/*/rank*{SUFFIX}")):
        number = file.parents[1].name.removeprefix("sync")
        rank = file.name.removeprefix("rank").removesuffix(SUFFIX)
        if number.isdecimal() and rank.isdecimal():
            hop = Hop.named(file.parent.name)
            found.setdefault(int(number), {}).setdefault(hop, []).append((int(rank), file))
    for hop, stage in _STAGES.items():
        for step in steps_of(path, stage.value):
            hops = found.setdefault(step, {})
            # Plugins record what the engine has once it is loaded; where they log what arrives too, it is two hops.
            other = Hop.LOADED if hop is Hop.RECEIVED and hop in hops else hop
            if other not in hops:
                hops[other] = sorted(ranks_of(path, stage.value, step).items())
    return found


def _copies(files: Sequence[tuple[int, Path]], sync: int, renamed: _Names) -> list[_Copy]:
    """Return the copies of the model at a hop: one per rank, or one of all ranks that hold parts."""
    read = [(rank, renamed.applied(_read(file))) for rank, file in sorted(files)]
    if not any(each.part for _, prints in read for each in prints.prints.values()):
        return [_Copy(rank, prints, {}, {}) for rank, prints in read]
    parts: dict[str, list[TensorPrint]] = {}
    for _, prints in read:
        for each in prints.prints.values():
            parts.setdefault(each.key, []).append(each)
    merged = {key: _merged(own) for key, own in parts.items()}
    found = CheckpointPrint(path=files[0][1].parent, prints={k: one for k, (one, _, _) in merged.items()}, step=sync)
    incomplete = {key: lack for key, (_, lack, _) in merged.items() if lack}
    return [_Copy(read[0][0], found, incomplete, {key: why for key, (_, _, why) in merged.items() if why})]


def _read(file: Path) -> CheckpointPrint:
    return read_fingerprint(file) if file.is_file() else prints_of(load_weights(file))


def _merged(parts: Sequence[TensorPrint]) -> tuple[TensorPrint, Said | None, Said | None]:
    """Return a tensor put together from its parts, what of it is not there, and which copies differ."""
    first, lack, differing = parts[0], None, None
    distinct: dict[tuple[tuple[int, int], ...], TensorPrint] = {}
    for part in parts:
        if distinct.setdefault(part.part, part).hash != part.hash:
            code = TransferCode.COPIES_OF_PART if part.part else TransferCode.COPIES
            differing = Said.of(code, part=_where(part))
    own = list(distinct.values())
    if not first.part:
        return first, lack, differing
    count, whole = sum(math.prod(size for _, size in part.part) for part in own), math.prod(first.shape)
    if count != whole:
        lack = Said.of(TransferCode.PARTS, count=count, total=whole)
    sketch: Any = decoded([part.sketch for part in own]).astype(np.float64).sum(axis=0)
    return msgspec.structs.replace(
        first, part=(), hash=sum(part.hash for part in own) % (1 << 64), sketch=sketch.astype("<f4").tobytes(),
        squares=sum(part.squares for part in own), total=sum(part.total for part in own),
        low=min(part.low for part in own), high=max(part.high for part in own), turned={},
        casts={dtype: sum(part.casts.get(dtype, 0) for part in own) % (1 << 64) for dtype in first.casts},
    ), lack, differing  # fmt: skip


def _where(part: TensorPrint) -> str:
    return ", ".join(f"{begin}:{begin + size}" for begin, size in part.part)


def _hop(
    sync: int, before: Hop, hop: Hop, known: Mapping[tuple[int, Hop], Sequence[_Copy]],
    earlier: Sequence[CheckpointPrint], *, is_enforced: bool,
) -> Iterator[HopRow]:  # fmt: skip
    golden = known[sync, before][0]
    for copy in known[sync, hop]:
        found = compare_prints(copy.prints, golden.prints, earlier)
        for row in found.rows:
            own, other = copy.prints.prints.get(row.key), golden.prints.prints.get(row.key)
            lack, differing = copy.incomplete.get(row.key), copy.differing.get(row.key)
            fault = WeightFault.INCOMPLETE if lack else _fault(row, own, other, hop)
            if fault is None and differing:
                fault = WeightFault.COPIES
            if fault is None and is_enforced and row.relation is Relation.ONLY_TARGET:
                fault, lack = WeightFault.MISSING, Said.of(TransferCode.UNKNOWN, hop=before.value)
            if fault is not None:
                yield HopRow(
                    sync=sync, before=before.value, hop=hop.value, replica=copy.rank, fault=fault,
                    name=row.golden_name or row.name or row.key, reason=lack or differing or _reason(row, fault),
                    error=row.relative_l2,
                )  # fmt: skip


def _reason(row: TensorRow, fault: WeightFault) -> Said:
    return Said(TransferCode.CAST_TWICE) if fault is WeightFault.CAST_TWICE else row.proof


def _fault(row: TensorRow, own: TensorPrint | None, other: TensorPrint | None, hop: Hop) -> WeightFault | None:
    if row.relation in SAME or row.relation is Relation.ONLY_TARGET:
        return None
    if own is not None and other is not None and _is_cast_twice(row, own, other):
        return WeightFault.CAST_TWICE
    found = _FAULTS.get(row.relation, WeightFault.DIFFERENT)
    # Between loading and use nothing writes weights, so other values are those of other owners of the memory.
    return WeightFault.FREED if hop is Hop.AWAKE and found is WeightFault.DIFFERENT else found


def _is_cast_twice(row: TensorRow, own: TensorPrint, other: TensorPrint) -> bool:
    if own.shape != other.shape or row.relation not in {Relation.CLOSE, Relation.DIFFERENT, Relation.PARTLY}:
        return False
    through = [dtype for dtype in own.casts if other.hash_in(dtype) is not None and dtype not in (own.dtype, "float32")]
    if any(own.casts[dtype] == other.hash_in(dtype) for dtype in through):
        return True
    # Rounded to several dtypes, of which no hash is known: then by no more than the coarsest one rounds.
    coarsest = max(_ROUNDING.get(dtype, 0.0) for dtype in (own.dtype, other.dtype))
    return row.relative_l2 is not None and 0 < row.relative_l2 <= coarsest


def _line(sync: int, before: Hop, hop: Hop, copies: Sequence[_Copy], wrong: Sequence[HopRow]) -> Said:
    total = sum(len(copy.prints.prints) for copy in copies)
    counts = Counter(row.fault for row in wrong)
    told = [Said.of(HeadlineCode.KIND, count=n, kind=fault) for fault, n in counts.most_common()]
    fields = {"sync": sync, "before": before.value, "hop": hop.value, "total": total}
    return Said.of(LineCode.HOP, **fields, counts=told or Said(LineCode.AS_BEFORE))


def _outcome(
    path: Path, syncs: Sequence[int], rows: Sequence[HopRow], lines: Sequence[Said], pairs: Sequence[Mapping[str, Any]]
) -> Outcome:
    findings = [
        Finding(
            verdict=Verdict.ERROR, step=row.sync, place=row.name,
            said=Said(
                TransferCode.HOP,
                fields={
                    "before": row.before, "hop": row.hop, "rank": row.replica, "name": row.name, "fault": row.fault,
                    "reason": row.reason,
                },
            ),
        )
        for row in rows
    ]  # fmt: skip
    said = Said(HeadlineCode.HOPS_AGREE)
    if rows:
        first = rows[0]
        same = [row for row in rows if (row.sync, row.hop) == (first.sync, first.hop)]
        others = [Said.of(HeadlineCode.MORE_OF_HOP, count=len(same) - 1, hop=first.hop)] if same[1:] else []
        where = {"sync": first.sync, "before": first.before, "hop": first.hop, "name": first.name}
        said = Said.of(HeadlineCode.HOP, **where, fault=first.fault, others=others)
    if len(lines) > _MAX_LINES:
        lines = [line for line, pair in zip(lines, pairs, strict=True) if pair["wrong"]][:_MAX_LINES]
    return Outcome(
        command="weights", paths=[path],
        compared=Said.of(ComparedCode.CHAIN, hops=len(pairs), transfers=len(syncs)),
        said=said, findings=findings, lines=lines,
        numbers={"syncs": list(syncs), "hops": len(pairs), "wrong": len(rows), "pairs": list(pairs)},
        tables={"hops": table_of(HopRow, rows)} if rows else {},
    )  # fmt: skip


_MAX_LINES = 20
_MOST_EARLIER = 8
"""Transfers in which a stale tensor is looked for."""
