"""Say what an origin is, with its evidence, and what to do next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import polars as pl

from msprobe_core import names
from msprobe_core.compare.reading import read_dump
from msprobe_core.config.ranges import format_ranges
from msprobe_core.model import Phase, Role
from msprobe_core.overflow.propagation import Origin, OriginKind, ancestors
from msprobe_core.overflow.result import Evidence, Finding, Kind
from msprobe_core.overflow.values import RankValues
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stack_text import frames_of_user

MAX_EVIDENCE = 24

_MAX_HEALERS = 2
_MAX_ARRIVALS = 4
_MAX_RANGES = 8


@dataclass(frozen=True)
class Step:
    """What belongs to one step.

    Attributes:
        number: ``None`` where only one was given.
        directory: Where it is.
        ranks: Directory, or file, of each rank.
        is_job: Whether the numbers are ranks; or else processes, counted.
        run: Directory of all steps; ``None`` where only one was given.
    """

    number: int | None
    directory: Path
    ranks: Mapping[int, Path]
    is_job: bool
    run: Path | None
    notes: Sequence[str] = ()

    def shown(self, rank: int) -> int | None:
        """Return the number of a rank for reports."""
        return rank if self.is_job else None


class Describer:
    """Describes the origins of one step."""

    def __init__(self, step: Step, values: Mapping[int, RankValues], unheard: Sequence[int] = ()) -> None:
        """Prepare.

        Args:
            step: Whose.
            values: What is not finite on each rank.
            unheard: Ranks of which not all that they sent is known.
        """
        self.step = step
        self._unheard = unheard
        self.notes: list[str] = []
        self._values = values
        self._dump = lru_cache(maxsize=2)(self._read)

    def _read(self, rank: int) -> Dump:
        return read_dump(self.step.ranks[rank])

    def describe(self, origin: Origin, layer: int, same_on: Sequence[int]) -> Finding:
        """Return what there is to say of an origin.

        Args:
            origin: The origin.
            layer: How many exchanges are before it.
            same_on: Other ranks with the same.
        """
        dump = self._dump(origin.rank)
        place = _Place(dump.frame, origin)
        entry, kind = origin.entry, self.kind_of(origin)
        culprit = place.writes_in_place() if kind in {Kind.DATA, Kind.UNRECORDED} else None
        if culprit is not None:
            entry, kind = culprit, Kind.OPERATOR
            reason = (
                f"It works in place, and what it made was not recorded; {origin.entry} is the first call that has NaN "
                "or Inf, and gets it from there."
            )
        else:
            reason = _reason(origin, kind, place, self._unheard)
        advice, command = self._next(origin, entry, kind)
        stack = dump.stacks.get(entry) or dump.stacks.get(names.forward_of(entry) or "", ())
        return Finding(
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
        """Return what is to blame."""
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

    def harm_of(self, origin: Origin) -> str:
        """Return what became of an origin, in words."""
        parts: list[str] = []
        if origin.first_nan is not None and origin.first_nan != origin.node:
            parts.append(f"it becomes NaN at {self._at(*origin.first_nan)}")
        for rank, entry, sender in origin.arrivals[:_MAX_ARRIVALS]:
            parts.append(f"it comes to rank {rank} with {entry}, sent by {sender[1]} of rank {sender[0]}")
        if len(origin.arrivals) > _MAX_ARRIVALS:
            parts.append(f"and to {len(origin.arrivals) - _MAX_ARRIVALS:,} more ranks")
        if origin.is_in_gradient and origin.phase is Phase.FORWARD:
            parts.append("it reaches gradients")
        if origin.kind is OriginKind.CONSTANT:
            parts.append("the program passes it as an argument, as masks are made")
        if origin.healers:
            healers = ", ".join(self._at(*node) for node in origin.healers[:_MAX_HEALERS])
            parts.append(f"it is finite again behind {healers}")
        elif not parts and origin.kind is OriginKind.UNINITIALISED:
            parts.append("nobody has used it")
        elif not parts and not origin.num_handed_on:
            parts.append("no recorded call hands it on")
        return "; ".join(parts) or f"{origin.num_handed_on:,} more calls return it"

    def _at(self, rank: int, entry: str) -> str:
        return f"{entry} of rank {rank}" if self.step.is_job and len(self.step.ranks) > 1 else entry

    # --- what to do -------------------------------------------------------------------------------------------------

    def _next(self, origin: Origin, entry: str, kind: Kind) -> tuple[str, str]:
        number = self.step.number
        if kind is Kind.WEIGHT:
            return self._before(number)
        record = self._record_command(origin, entry)
        advices = {
            Kind.OPERATOR: "Look at the values of this call: record it whole, and run it alone on them",
            Kind.BACKWARD: "Look at the gradient that reaches this call and at what its forward has saved; with a loss "
            "scaler in fp16, Inf here may be what that is for: it halves the scale and repeats the step",
            Kind.DATA: "Look at the batch and at what makes it: tokenizer, normalisation, a mean over nothing",
            Kind.UNRECORDED: "Record more: level mix, risk_level ALL, no list; or look at the code between the calls",
            Kind.COMMUNICATION: "Sum in a wider dtype or divide before; then look at the transport between these ranks",
            Kind.UNINITIALISED: "Set the memory before it is read, or do not read it: zeros instead of empty",
            Kind.CONSTANT: "Look at why the program passes it",
        }
        return advices[kind], record

    def _before(self, number: int | None) -> tuple[str, str]:
        if number == 0:
            return (
                "It is so from the start: look at what initialises or loads the weights",
                "msprobe control config.json set level=mix step='[\"0\"]'",
            )
        before = None if number is None else number - 1
        advice = "It was so before this step: look at the backward and the optimizer of the step before"
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


class _Place:
    """The rows of an origin, and what is around them."""

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
        """Whether anything is known of what the call was given."""
        rows = self.rows(self._origin.entry).filter(pl.col("role") == Role.INPUT.value)
        return bool(rows.height)

    def was_seen_before(self, shape: str, dtype: str) -> bool:
        """Whether a call before has returned a tensor of this shape and dtype."""
        return bool(self._before().filter((pl.col("shape") == shape) & (pl.col("dtype") == dtype)
                                          & (pl.col("role") == Role.OUTPUT.value)).height)  # fmt: skip

    def writes_in_place(self) -> str | None:
        """Return the last call before that has written to such a tensor, with no result that was recorded."""
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


def _reason(origin: Origin, kind: Kind, place: _Place, unheard: Sequence[int]) -> str:
    bad = next((value for value in origin.values if value.name == origin.value), origin.values[0])
    holds = _holds(bad.num_nan, bad.num_inf, has_nan=bad.has_nan, has_inf=bad.has_inf)
    if origin.kind is OriginKind.COMMUNICATION and unheard:
        ranks = ", ".join(format_ranges(unheard)[:_MAX_RANGES])
        whose = f"rank {ranks}" if len(unheard) == 1 else f"ranks {ranks}"
        return (
            f"What came holds {holds}, and all that is known to have been sent is finite. Not all that {whose} sent is "
            "known: a dump ended early, is missing or cannot be read."
        )
    if kind in {Kind.OPERATOR, Kind.BACKWARD, Kind.COMMUNICATION}:
        return _reason_of_call(origin, kind, place, holds)
    if kind is Kind.WEIGHT:
        return f"The weight {origin.value} holds {holds}; what else this call got is finite."
    if kind is Kind.DATA:
        return f"What the program passes in as {origin.value} holds {holds}; nothing before it does."
    if kind is Kind.UNINITIALISED:
        return f"It returns memory as it is, which holds {holds}, and that was used before it was set."
    if kind is Kind.CONSTANT:
        return f"The program passes {holds} as {origin.value}."
    return (
        f"It is given {holds} as {origin.value}, and no call before it returns any: it was made between the recorded "
        "calls."
    )


def _reason_of_call(origin: Origin, kind: Kind, place: _Place, holds: str) -> str:
    ranges = place.inputs()
    if origin.phase is Phase.DEBUG:
        return f"This saved value holds {holds}, and none before it does."
    if origin.inf_from:
        return (
            f"It is given Inf, which may be meant, from {origin.inf_from}, and makes {holds} of it: Inf - Inf, "
            "0 * Inf, or a softmax over a row that is masked as a whole."
        )
    between = ""
    if ranges:
        high, low = max(high for high, _ in ranges), min(low for _, low in ranges)
        between = f" (from {low:.4g} to {high:.4g})"
    if kind is Kind.COMMUNICATION:
        if not place.has_inputs() or not ranges:
            return f"What came holds {holds}; what was sent is not recorded."
        return f"What every rank sends is finite{between if len(ranges) == 1 else ''}, what came holds {holds}."
    if origin.phase is Phase.PARAMETERS_GRAD:
        return f"The gradients that were added up hold {holds}, while those that reached the module are finite."
    if not place.has_inputs():
        return f"It returns {holds}; what it was given was not recorded."
    given = "The gradient that reaches it is" if kind is Kind.BACKWARD else "All its inputs are"
    return f"{given} finite{between}, what it returns holds {holds}."


def _holds(num_nan: int | None, num_inf: int | None, *, has_nan: bool, has_inf: bool) -> str:
    parts: list[str] = []
    if has_nan:
        parts.append(f"{num_nan:,} NaN" if num_nan else "NaN")
    if has_inf:
        parts.append(f"{num_inf:,} Inf" if num_inf else "Inf")
    return " and ".join(parts)
