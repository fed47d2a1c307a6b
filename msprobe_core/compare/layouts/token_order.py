"""Alignment of dumps that have the same tokens at different positions: rows of tensors are put in one order.

Batches may be padded on another side or packed, cut into other micro-batches, or prefilled in chunks. Tokens are
identified by the recorded token ids: a sequence by the hash of its ids, and a token by its position in the sequence. Of
each module's calls one remains, whose tensors have a row per token; padding is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from msprobe_core import names
from msprobe_core.compare.layouts.layout_view import LayoutView, Row
from msprobe_core.compare.layouts.rows import called_in
from msprobe_core.compare.pairing_codes import MadeAlikeCode
from msprobe_core.errors import CompareError, NothingInCommonError
from msprobe_core.findings import Finding
from msprobe_core.model import Phase, Role
from msprobe_core.protocols.storage import Dump, TensorSource
from msprobe_core.store.frame import COLUMNS, RowKind, sizes_in
from msprobe_core.store.samples import sample_id
from msprobe_core.store.tensor_source import HeldTensor, read_whole

Integers: TypeAlias = NDArray[np.int64]

_IDS = "input_ids"
_MASKS = ("attention_mask", "padding_mask")
_POSITIONS = ("position_ids", "cache_position", "positions")
_BOUNDS = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seqlens")
"""Names under which models receive masks, not 0 for valid tokens; the position of each token in its sequence; and, for
packed rows, the begins of sequences and the end of the last."""

_GIVEN = frozenset((*_MASKS, *_POSITIONS, *_BOUNDS))

_VALUES = ("max", "min", "mean", "norm", "num_nan", "num_inf", "exact", "checksum", "sketch", "distribution")
"""Columns of a row that depend on all elements in their recorded order."""


@dataclass(frozen=True)
class AlignedTokens:
    """Two dumps whose tensors have the same tokens in the same rows.

    Attributes:
        target: The target dump.
        golden: The golden dump.
        notes: Notes on the pairing.
        incomplete: Sequences that only one side has.
    """

    target: Dump
    golden: Dump
    notes: Sequence[Finding]
    incomplete: Sequence[Finding]


@dataclass(frozen=True)
class _Tokens:
    """Positions of some tokens: the number of the batch, and the position in the batch in C order, both [n]."""

    batch: Integers
    place: Integers


@dataclass
class _Sequence:
    """One sequence, as far as its batches have been read."""

    ids: list[Integers] = field(default_factory=list[Integers])
    batches: list[Integers] = field(default_factory=list[Integers])
    places: list[Integers] = field(default_factory=list[Integers])
    end: int = 0

    def add(self, number: int, ids: Integers, places: Integers, end: int) -> None:
        self.ids.append(ids)
        self.batches.append(np.full(len(ids), number))
        self.places.append(places)
        self.end = end

    @property
    def key(self) -> str:
        return sample_id(np.concatenate(self.ids))

    @property
    def tokens(self) -> _Tokens:
        return _Tokens(np.concatenate(self.batches), np.concatenate(self.places))


def align_tokens(target: Dump, golden: Dump) -> AlignedTokens:
    """Return the two dumps with a row per token that both have, in the order of the golden dump.

    Args:
        target: A dump with whole tensors.
        golden: A dump with whole tensors.

    Raises:
        CompareError: a dump has no token ids, or the two have no sequence in common.
        DumpError: token ids cannot be read.
    """
    sides = [_Side(dump) for dump in (target, golden)]
    pairs = [
        pair
        for key, own in sides[1].sequences.items()
        for pair in zip(sides[0].sequences.get(key, ()), own, strict=False)
    ]
    if not pairs:
        raise NothingInCommonError(
            f"{target.path} and {golden.path} have none of their {sides[0].num_sequences:,} and "
            f"{sides[1].num_sequences:,} sequences of token ids in common; where rows are padded, record the model's "
            "attention_mask, and where sequences are packed in one row or prefilled in chunks, its position_ids"
        )
    is_single = all(len(side.batches) == 1 for side in sides)
    chosen = [_joined([pair[i].tokens for pair in pairs]) for i in range(2)]
    relaid = [side.relaid(tokens, is_single=is_single) for side, tokens in zip(sides, chosen, strict=True)]
    left_out = list(dict.fromkeys([*sides[0].left_out, *sides[1].left_out, *_keep_common(relaid)]))
    if not all(each.frame.select(_is_aligned_output().any()).item() for each in relaid):
        raise CompareError(
            f"{target.path} and {golden.path} have no output with a row per token: dimensions must begin with those of "
            f"the token ids, {list(sides[0].batches[0])} and {list(sides[1].batches[0])}"
        )
    lone = [
        Finding(
            MadeAlikeCode.LONE_SEQUENCES,
            fields={"path": str(side.dump.path), "count": side.num_sequences - len(pairs)},
        )
        for side in sides
        if side.num_sequences > len(pairs)
    ]
    notes = [Finding(MadeAlikeCode.TOKENS, fields={"tokens": len(chosen[0].place), "sequences": len(pairs)})]
    if left_out:
        fields = {"count": len(left_out), "first": left_out[0]}
        notes.append(Finding(MadeAlikeCode.WITHOUT_ROWS, fields=fields))
    return AlignedTokens(relaid[0], relaid[1], notes, lone)


def _is_aligned_output() -> pl.Expr:
    """Whether a row is an output; outputs without a row per token have been dropped before."""
    return (pl.col("role") == Role.OUTPUT.value) & (pl.col("kind") == RowKind.TENSOR.value)


def _joined(parts: Sequence[_Tokens]) -> _Tokens:
    return _Tokens(np.concatenate([part.batch for part in parts]), np.concatenate([part.place for part in parts]))


def _keep_common(sides: Sequence[LayoutView]) -> list[str]:
    """Drop values that only one side has, for calls that both have; return their names."""
    frames = [side.frame for side in sides]
    left_out: list[str] = []
    for side, other in ((0, 1), (1, 0)):
        is_shared = pl.col("entry").is_in(frames[other]["entry"].unique().to_list())
        is_lone = is_shared & ~pl.col("key").is_in(frames[other]["key"].to_list())
        left_out += frames[side].filter(is_lone)["name"].to_list()
        sides[side].frame = frames[side].filter(~is_lone)
    return left_out


class _Side:
    """One dump, with the positions of its tokens.

    Attributes:
        dump: The stored dump.
        batches: Shape of the token ids of each call of the model.
        num_sequences: Number of sequences.
        sequences: Sequences by the hash of their ids, in the order of the batches.
        left_out: Names of the values without a row per token; valid after `relaid`.
    """

    def __init__(self, dump: Dump) -> None:
        self.dump = dump
        inputs = dump.frame.filter(
            (pl.col("kind") == RowKind.TENSOR.value)
            & (pl.col("phase") == Phase.FORWARD.value)
            & (pl.col("role") == Role.INPUT.value)
            & pl.col("file_name").is_not_null()
            & pl.col("shape").is_not_null()
        ).rows(named=True)
        self._given: dict[tuple[str, int], list[Row]] = {}
        for row in inputs:
            if (place := _place(row)) in _GIVEN and names.is_module(row["entry"]):
                self._given.setdefault((place, _index(row["entry"])), []).append(row)
        self.left_out: list[str] = []
        self.batches: list[tuple[int, ...]] = []
        found: list[_Sequence] = []
        latest: dict[int, _Sequence] = {}
        for number, row in enumerate(_ids_of(dump, inputs)):
            ids = self._read(row)
            self.batches.append(ids.shape)
            for line, places, begin, end in self._segments(number, ids):
                own = latest.get(line)
                is_next = own is not None and own.batches[-1][0] == number - 1 and own.end == begin
                if own is None or not begin or not is_next:
                    own = _Sequence()
                    found.append(own)
                own.add(number, ids.ravel()[places], places, end)
                latest[line] = own
        self.num_sequences = len(found)
        self.sequences: dict[str, list[_Sequence]] = {}
        for each in found:
            self.sequences.setdefault(each.key, []).append(each)

    def _read(self, row: Row) -> Integers:
        source = self.dump.open_tensor(str(row["file_name"]))
        return read_whole(source).astype(np.int64)

    def _read_given(
        self, keywords: Sequence[str], number: int, fits: Callable[[tuple[int, ...]], bool]
    ) -> Integers | None:
        """Return an input of modules in a batch by one of several names; ``None`` without one of a fitting shape."""
        rows = [row for keyword in keywords for row in self._given.get((keyword, number), ())]
        return next((self._read(row) for row in rows if fits(sizes_in(row["shape"]))), None)

    def _segments(self, number: int, ids: Integers) -> Iterator[tuple[int, Integers, int, int]]:
        """Yield row, places in C order, first position and end of each run of tokens of one sequence in a batch."""
        shape = ids.shape
        lines = np.reshape(np.arange(ids.size), (-1, shape[-1]))
        mask = self._read_given(_MASKS, number, lambda found: found == shape)
        positions = self._read_given(_POSITIONS, number, lambda found: math.prod(found) in {ids.size, shape[-1]})
        bounds = self._read_given(_BOUNDS, number, lambda found: len(found) == 1)
        flat: Any = None
        if positions is not None:
            flat = np.broadcast_to(np.reshape(positions, (-1, shape[-1])), lines.shape).ravel()
        for line, own in enumerate(lines):
            places = own if mask is None else own[mask.ravel()[own] != 0]
            cuts = np.zeros(len(places), bool)
            if bounds is not None:
                cuts |= np.isin(places, bounds)
            elif flat is not None:
                cuts[1:] = np.diff(flat[places]) != 1
            for part in np.split(places, np.flatnonzero(cuts)):
                begin = end = 0
                if flat is not None and part.size:
                    # A chunk of a sequence begins at the start of its row: no sequence continues after padding.
                    begin = int(flat[part[0]]) if part[0] == own[0] else 0
                    end = int(flat[part[-1]]) + 1
                if part.size:
                    yield line, part, begin, end

    def relaid(self, tokens: _Tokens, *, is_single: bool) -> LayoutView:
        """Return the dump with ``tokens`` as the rows of its tensors.

        Args:
            tokens: The tokens, in order.
            is_single: Whether both dumps have one batch, so that calls of APIs and backward can be assigned too.
        """
        relaid = LayoutView(self.dump, self.dump.frame)
        calls: dict[tuple[str, str], dict[int, Row]] = {}
        rows: list[tuple[tuple[str, str], Row]] = []
        for row in self.dump.frame.iter_rows(named=True):
            entry = str(row["entry"])
            number = 0 if is_single else self._batch_of(entry, str(row["phase"]))
            if number is None:
                self.left_out.append(str(row["name"]))
                continue
            own = entry if is_single else str(names.stem_of(entry))
            value = own, str(row["key"]).removeprefix(entry)
            calls.setdefault(value, {})[number] = row
            if number == 0:
                rows.append((value, row))
        kept = (self._relaid_row(relaid, row, calls[value], tokens) for value, row in rows)
        relaid.frame = pl.DataFrame([row for row in kept if row is not None], schema=COLUMNS, strict=False)
        return relaid

    def _batch_of(self, entry: str, phase: str) -> int | None:
        is_forward = phase == Phase.FORWARD.value and names.is_module(entry)
        return _index(entry) if is_forward else None

    def _relaid_row(self, relaid: LayoutView, row: Row, calls: Mapping[int, Row], tokens: _Tokens) -> Row | None:
        if row["role"] not in (Role.INPUT.value, Role.OUTPUT.value):
            return row
        rests: set[tuple[int, ...] | None] = set()
        if row["kind"] == RowKind.TENSOR.value and sorted(calls) == list(range(len(self.batches))):
            rests = {_rest(calls[i], shape) for i, shape in enumerate(self.batches)}
        (rest,) = rests if len(rests) == 1 else (None,)
        if rest is None:
            self.left_out.append(str(row["name"]))
            return None
        shape = (len(tokens.place), *rest)
        openers = [relaid.opener(str(calls[i]["file_name"])) for i in range(len(self.batches))]
        token = f"{row['file_name']} by tokens"

        def view() -> TensorSource:
            return _gathered([opener() for opener in openers], tokens, rest)

        relaid.views[token] = view
        new = {"shape": str(list(shape)), "numel": math.prod(shape), "file_name": token}
        return {**row, **dict.fromkeys(_VALUES), **new}


def _ids_of(dump: Dump, inputs: Sequence[Row]) -> list[Row]:
    """Return the token ids of each call of the model.

    Raises:
        CompareError: there are none, or they cannot be identified.
    """
    integers = [row for row in inputs if "int" in str(row["dtype"]).lower() and len(sizes_in(row["shape"])) in (1, 2)]
    named = [row for row in integers if _place(row) == _IDS]
    found = named or [row for row in integers if _place(row) in ("0", "input") and _is_embedding(row["entry"])]
    what = "record the model's input_ids, or the input of its embedding, with task 'tensor' at level L0 or mix"
    if not found:
        raise CompareError(f"{dump.path}: has no saved token ids, by which tokens could be aligned; {what}")
    if names.is_module(found[0]["entry"]):
        stem = names.stem_of(found[0]["entry"])
        return sorted(
            (row for row in found if names.stem_of(row["entry"]) == stem), key=lambda row: _index(row["entry"])
        )
    if len(found) > 1:
        raise CompareError(
            f"{dump.path}: has {len(found)} calls of embedding, of which nothing says whose ids are tokens; {what}"
        )
    return found


def _is_embedding(entry: str) -> bool:
    called = called_in(entry)
    return "embedding" in (called.type_name or called.texts[0]).lower()


def _index(entry: str) -> int:
    return names.parse_entry(entry).index


def _place(row: Row) -> str:
    """Return the name or position of an argument."""
    return str(row["key"]).removeprefix(f"{row['entry']}.{row['role']}.")


def _rest(row: Row, batch: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the dimensions after those of the tokens; ``None`` for a tensor without a row per token."""
    if row["file_name"] is None or row["shape"] is None:
        return None
    shape = sizes_in(row["shape"])
    if shape[: len(batch)] == batch:
        return shape[len(batch) :]
    return shape[1:] if shape[:1] == (math.prod(batch),) else None


def _gathered(sources: Sequence[TensorSource], tokens: _Tokens, rest: tuple[int, ...]) -> TensorSource:
    made: Any = None
    for number, source in enumerate(sources):
        is_own = tokens.batch == number
        whole: Any = read_whole(source)
        if made is None:
            made = np.empty((len(tokens.place), *rest), whole.dtype)
        made[is_own] = whole.reshape(-1, *rest)[tokens.place[is_own]]
    return HeldTensor(made, sources[0].dtype)
