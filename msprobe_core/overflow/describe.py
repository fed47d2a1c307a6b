"""Description of an origin: its kind, its evidence, its impact, and what to do next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import polars as pl

from msprobe_core import names
from msprobe_core.config.ranges import format_ranges
from msprobe_core.findings import Field, Finding, Level
from msprobe_core.judge.origins import ancestors
from msprobe_core.model import Phase, Role
from msprobe_core.overflow.overflow_codes import OverflowCode
from msprobe_core.overflow.propagation import Origin, OriginKind
from msprobe_core.overflow.result import Evidence, Kind, OverflowOrigin
from msprobe_core.overflow.values import Bad, RankValues
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind
from msprobe_core.store.reading import read_dump
from msprobe_core.store.stack_text import frames_of_user

MAX_EVIDENCE = 24

_MAX_HEALERS = 2
_MAX_ARRIVALS = 4
_MAX_RANGES = 8


@dataclass(frozen=True)
class Step:
    """One step to search.

    Attributes:
        number: Its number; ``None`` if only one was given.
        directory: Its directory.
        ranks: Directory, or file, of each rank.
        is_job: Whether the numbers are ranks; otherwise they count processes.
        run: Directory of all steps; ``None`` if only one was given.
    """

    number: int | None
    directory: Path
    ranks: Mapping[int, Path]
    is_job: bool
    run: Path | None
    notes: Sequence[Finding] = ()

    def shown(self, rank: int) -> int | None:
        """Return the number of a rank for reports."""
        return rank if self.is_job else None


class Describer:
    """Describes the origins of one step."""

    def __init__(self, step: Step, values: Mapping[int, RankValues], unheard: Sequence[int] = ()) -> None:
        """Prepare.

        Args:
            step: The step.
            values: Values that are not finite, by rank.
            unheard: Ranks whose sent data are not completely known.
        """
        self.step = step
        self._unheard = unheard
        self._values = values
        self._dump = lru_cache(maxsize=2)(self._read)

    def _read(self, rank: int) -> Dump:
        return read_dump(self.step.ranks[rank])

    def describe(self, origin: Origin, layer: int, same_on: Sequence[int]) -> OverflowOrigin:
        """Return the description of an origin.

        Args:
            origin: The origin.
            layer: Number of exchanges before it.
            same_on: Other ranks with the same origin.
        """
        dump = self._dump(origin.rank)
        place = _Place(dump.frame, origin)
        entry, kind = origin.entry, self.kind_of(origin)
        culprit = place.writes_in_place() if kind in {Kind.DATA, Kind.UNRECORDED} else None
        if culprit is not None:
            entry, kind = culprit, Kind.OPERATOR
            reason = Finding(OverflowCode.IN_PLACE, Level.ERROR, {"first": origin.entry})
        else:
            reason = _reason(origin, kind, place, self._unheard)
        advice, command = self._next(origin, entry, kind)
        stack = dump.stacks.get(entry) or dump.stacks.get(names.forward_of(entry) or "", ())
        return OverflowOrigin(
            rank=self.step.shown(origin.rank),
            entry=entry,
            kind=kind,
            value=origin.value,
            reason=reason,
            advice=advice,
            command=command,
            harm=self.harm_of(origin),
            evidence=place.evidence(entry),
            parents=list(ancestors(entry, dump.parents)),
            stack=list(frames_of_user(stack)),
            layer=layer,
            ranks=sorted(origin.ranks),
            same_on=sorted(same_on),
        )

    def kind_of(self, origin: Origin) -> Kind:
        """Return the kind of an origin for reports."""
        if origin.kind is OriginKind.OPERATOR:
            return Kind.OPERATOR if origin.phase in {Phase.FORWARD, Phase.DEBUG} else Kind.BACKWARD
        if origin.kind is OriginKind.COMMUNICATION and self._unheard:
            return Kind.UNRECORDED
        if origin.kind is not OriginKind.INPUT:
            return Kind(origin.kind.value)
        values = self._values[origin.rank]
        around = set(ancestors(origin.entry, values.parents))
        value = next(value for value in origin.values if value.name == origin.value)
        for call in values.entries:
            is_outermost = (call.entry in around or call.entry == origin.entry) and names.is_module(call.entry)
            if is_outermost and values.parents.get(call.entry) is None and call.phase is Phase.FORWARD:
                inputs = (own.identity for own in call.values if own.role == Role.INPUT.value)
                if value.identity in inputs:
                    return Kind.DATA
        if origin.phase is not Phase.FORWARD or around:
            return Kind.UNRECORDED
        place = _Place(self._dump(origin.rank).frame, origin)
        return Kind.UNRECORDED if place.was_seen_before(value.shape, value.dtype) else Kind.DATA

    def harm_of(self, origin: Origin) -> Finding:
        """Return the impact of an origin."""
        return Finding(OverflowCode.HARM, fields={"clauses": self._harms_of(origin)})

    def _harms_of(self, origin: Origin) -> list[Finding]:
        found: list[Finding] = []
        if origin.first_nan is not None and origin.first_nan != origin.node:
            found.append(Finding(OverflowCode.BECOMES_NAN, fields={"place": self._at(*origin.first_nan)}))
        found += [
            Finding(
                OverflowCode.ARRIVES,
                fields={"rank": rank, "entry": entry, "sender": sender[1], "from_rank": sender[0]},
            )
            for rank, entry, sender in origin.arrivals[:_MAX_ARRIVALS]
        ]
        if len(origin.arrivals) > _MAX_ARRIVALS:
            further = len(origin.arrivals) - _MAX_ARRIVALS
            found.append(Finding(OverflowCode.ARRIVES_ELSEWHERE, fields={"count": further}))
        if origin.is_in_gradient and origin.phase is Phase.FORWARD:
            found.append(Finding(OverflowCode.REACHES_GRADIENTS))
        if origin.kind is OriginKind.CONSTANT:
            found.append(Finding(OverflowCode.PASSED_AS_MASK))
        if origin.healers:
            places = [self._at(*node) for node in origin.healers[:_MAX_HEALERS]]
            found.append(Finding(OverflowCode.FINITE_AGAIN, fields={"places": places}))
        elif not found and origin.kind is OriginKind.UNINITIALISED:
            found.append(Finding(OverflowCode.UNUSED))
        elif not found and not origin.num_handed_on:
            found.append(Finding(OverflowCode.NOT_HANDED_ON))
        return found or [Finding(OverflowCode.HANDED_ON, fields={"count": origin.num_handed_on})]

    def _at(self, rank: int, entry: str) -> Field:
        if self.step.is_job and len(self.step.ranks) > 1:
            return Finding(OverflowCode.CALL_OF_RANK, fields={"entry": entry, "rank": rank})
        return entry

    # --- advice -----------------------------------------------------------------------------------------------------

    def _next(self, origin: Origin, entry: str, kind: Kind) -> tuple[Finding, str]:
        if kind is Kind.WEIGHT:
            return self._before(self.step.number)
        return Finding(_ADVICE[kind]), self._record_command(origin, entry)

    def _before(self, number: int | None) -> tuple[Finding, str]:
        if number == 0:
            return Finding(OverflowCode.LOOK_AT_START), "msprobe control config.json set level=mix step='[\"0\"]'"
        before = None if number is None else number - 1
        advice = Finding(OverflowCode.LOOK_AT_STEP_BEFORE)
        if before is not None and self.step.run is not None and (self.step.run / f"step{before}").is_dir():
            return advice, f"msprobe overflow_check {shlex.quote(str(self.step.run / f'step{before}'))}"
        step = "PREVIOUS" if before is None else before
        return advice, f"msprobe control config.json set level=mix step='[\"{step}\"]'"

    def _record_command(self, origin: Origin, entry: str) -> str:
        settings = [] if self.step.number is None else [f"step={json.dumps([str(self.step.number)])}"]
        if self.step.is_job:
            settings.append(f"rank={json.dumps([str(origin.rank)])}")
        stem = names.forward_of(entry) or entry
        is_module = names.is_module(entry)
        settings.append(f"level={'L0' if is_module else 'L1'}")
        settings.append(f"statistics.tensor_list={json.dumps([stem.removesuffix('.forward')])}")
        return "msprobe control config.json set task=statistics " + " ".join(map(shlex.quote, settings))


_ADVICE = {
    Kind.OPERATOR: OverflowCode.LOOK_AT_OPERATOR,
    Kind.BACKWARD: OverflowCode.LOOK_AT_BACKWARD,
    Kind.DATA: OverflowCode.LOOK_AT_DATA,
    Kind.UNRECORDED: OverflowCode.RECORD_MORE,
    Kind.COMMUNICATION: OverflowCode.LOOK_AT_COMMUNICATION,
    Kind.UNINITIALISED: OverflowCode.SET_MEMORY,
    Kind.CONSTANT: OverflowCode.LOOK_AT_CONSTANT,
}


class _Place:
    """The rows of an origin and of the calls before it."""

    def __init__(self, frame: pl.DataFrame, origin: Origin) -> None:
        self._frame = frame
        self._origin = origin

    def rows(self, entry: str) -> pl.DataFrame:
        """Return the rows of a call."""
        return self._frame.filter(pl.col("entry") == entry)

    def evidence(self, entry: str) -> list[Evidence]:
        """Return the values of a call, those that are not finite first."""
        rows = self.rows(entry).filter(pl.col("kind") != RowKind.NONE.value)
        listed = [
            Evidence(
                name=row["name"],
                role=row["role"],
                dtype=row["dtype"] or "",
                shape=row["shape"] or "",
                max=row["max"],
                min=row["min"],
                num_nan=row["num_nan"],
                num_inf=row["num_inf"],
                is_finite=_is_finite(row),
            )
            for row in rows.select(
                "name", "role", "dtype", "shape", "max", "min", "num_nan", "num_inf", "numel"
            ).iter_rows(named=True)
            if row["max"] is not None or row["num_nan"] is not None
        ]
        return sorted(listed, key=lambda value: value.is_finite is not False)[:MAX_EVIDENCE]

    def inputs(self) -> list[tuple[float, float]]:
        """Return maximum and minimum of each finite input tensor."""
        rows = self.rows(self._origin.entry).filter(
            pl.col("role").is_in([Role.INPUT.value, Role.PARAMETERS.value])
            & (pl.col("kind") == RowKind.TENSOR.value)
            & pl.col("max").is_finite()
            & pl.col("min").is_finite()
        )
        return rows.select("max", "min").rows()

    def has_inputs(self) -> bool:
        """Whether any input of the call was recorded."""
        rows = self.rows(self._origin.entry).filter(pl.col("role") == Role.INPUT.value)
        return bool(rows.height)

    def was_seen_before(self, shape: str, dtype: str) -> bool:
        """Whether an earlier call has returned a tensor of this shape and dtype."""
        return bool(self._before().filter((pl.col("shape") == shape) & (pl.col("dtype") == dtype)
                                          & (pl.col("role") == Role.OUTPUT.value)).height)  # fmt: skip

    def writes_in_place(self) -> str | None:
        """Return the last earlier call that wrote in place to such a tensor, without a recorded result."""
        value = next(own for own in self._origin.values if own.name == self._origin.value)
        before = self._before()
        got = before.filter(
            (pl.col("shape") == value.shape) & (pl.col("dtype") == value.dtype) & (pl.col("role") == Role.INPUT.value)
            & pl.col("entry").str.contains(names.IN_PLACE_FORWARD)
        )  # fmt: skip
        returned = before.filter((pl.col("role") == Role.OUTPUT.value) & (pl.col("kind") == RowKind.TENSOR.value))
        left = got.join(returned, on="entry", how="anti")
        return left["entry"][-1] if left.height else None

    def _before(self) -> pl.DataFrame:
        return self._frame.filter(pl.col("entry").rle_id() < self._origin.position)


def _is_finite(row: Mapping[str, object]) -> bool | None:
    counts = [row["num_nan"], row["num_inf"]]
    extremes = [value for value in (row["max"], row["min"]) if isinstance(value, float)]
    if any(counts) or any(value != value or abs(value) == float("inf") for value in extremes):
        return False
    return True if extremes or None not in counts else None


def _reason(origin: Origin, kind: Kind, place: _Place, unheard: Sequence[int]) -> Finding:
    holds = _held_by(next((value for value in origin.values if value.name == origin.value), origin.values[0]))
    if origin.kind is OriginKind.COMMUNICATION and unheard:
        of_ranks = OverflowCode.ONE_RANK if len(unheard) == 1 else OverflowCode.SEVERAL_RANKS
        ranks = Finding(of_ranks, fields={"ranks": format_ranges(unheard)[:_MAX_RANGES]})
        return _happened(OverflowCode.SENT_UNKNOWN_IN_PART, holds=holds, ranks=ranks)
    if kind in {Kind.OPERATOR, Kind.BACKWARD, Kind.COMMUNICATION}:
        return _reason_of_call(origin, kind, place, holds)
    if kind is Kind.UNINITIALISED:
        return _happened(OverflowCode.UNINITIALISED, holds=holds)
    return _happened(_PASSED_IN.get(kind, OverflowCode.UNRECORDED), value=origin.value, holds=holds)


_PASSED_IN = {
    Kind.WEIGHT: OverflowCode.WEIGHT,
    Kind.DATA: OverflowCode.DATA,
    Kind.CONSTANT: OverflowCode.CONSTANT,
}


def _reason_of_call(origin: Origin, kind: Kind, place: _Place, holds: Finding) -> Finding:
    ranges = place.inputs()
    if origin.phase is Phase.DEBUG:
        return _happened(OverflowCode.SAVED_VALUE, holds=holds)
    if origin.inf_from:
        return _happened(OverflowCode.INF_GIVEN, source=origin.inf_from, holds=holds)
    if kind is Kind.COMMUNICATION:
        if not place.has_inputs() or not ranges:
            return _happened(OverflowCode.SENT_UNKNOWN, holds=holds)
        # Of several tensors it is unknown which one was reduced.
        return _happened(OverflowCode.COMMUNICATION, given=_finite(ranges if len(ranges) == 1 else ()), holds=holds)
    if origin.phase is Phase.PARAMETERS_GRAD:
        return _happened(OverflowCode.GRADIENTS_ADDED_UP, holds=holds)
    if not place.has_inputs():
        return _happened(OverflowCode.GIVEN_UNKNOWN, holds=holds)
    code = OverflowCode.BACKWARD if kind is Kind.BACKWARD else OverflowCode.OPERATOR
    return _happened(code, given=_finite(ranges), holds=holds)


def _happened(code: OverflowCode, **fields: Field) -> Finding:
    return Finding(code, Level.ERROR, fields)


def _finite(ranges: Sequence[tuple[float, float]]) -> Finding:
    """Return the finding that values are finite, with their range if it is known."""
    if not ranges:
        return Finding(OverflowCode.FINITE)
    low, high = min(low for _, low in ranges), max(high for high, _ in ranges)
    return Finding(OverflowCode.FINITE_BETWEEN, fields={"low": low, "high": high})


def _held_by(value: Bad) -> Finding:
    nan = _counted(value.num_nan, OverflowCode.NUM_NAN, OverflowCode.NAN)
    inf = _counted(value.num_inf, OverflowCode.NUM_INF, OverflowCode.INF)
    if value.has_nan and value.has_inf:
        return Finding(OverflowCode.NAN_AND_INF, fields={"nan": nan, "inf": inf})
    return nan if value.has_nan else inf


def _counted(count: int | None, counted: OverflowCode, uncounted: OverflowCode) -> Finding:
    return Finding(counted, fields={"count": count}) if count else Finding(uncounted)
