"""Compare two checkpoints tensor by tensor, across formats and layouts, in bounded memory.

Names decide what is compared. Equal bytes end the matter; a cast is verified against the rounding of the coarser dtype.
What is left is explained: each explanation is a proposal from numbers of rows and columns, and is then verified by
reading. What no explanation fits is close, or unrelated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from msprobe_core.checkpoint.boxes import Array, Box, boxes_of, read_box, read_values, rows_of, stacked
from msprobe_core.checkpoint.canonical import Heads, key_of, layer_of, without_part
from msprobe_core.checkpoint.contents import Checkpoint, Kind, LogicalTensor, Piece, kinds_of
from msprobe_core.checkpoint.difference_codes import DifferenceCode
from msprobe_core.checkpoint.matching import Match, Slot, match_tensors, slots_of
from msprobe_core.checkpoint.pair_pass import (
    PairNumbers,
    Rounding,
    chunk_elements,
    compare_pair,
    measure_pair,
    same_codes,
)
from msprobe_core.checkpoint.result import CheckpointResult, TensorRow
from msprobe_core.checkpoint.signatures import Signature, permutation_of, rounded, signature_of
from msprobe_core.checkpoint.structure import (
    CODE_OF,
    SAME,
    Answer,
    Relation,
    has_rows,
    named_order,
    num_moved,
    relation_of_keys,
    stack_order,
    structure_of,
)
from msprobe_core.compare.tensor_metrics import Workspace
from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding, Level, noted

_CLOSE = 0.3
"""Relative distance below which a tensor is close to its counterpart: training further moves weights less."""

_NEAR = 0.01
"""Relative distance below which no other order of rows can explain a difference that is in all rows."""

_UNRELATED_COSINE = 0.1


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """How checkpoints are compared.

    Attributes:
        names: Golden names by target names, for tensors that are named otherwise.
        only: Regular expression that a name on either side must contain; ``None`` for all.
        has_optimizer: Whether moments and master weights are compared too.
        earlier: Earlier checkpoints of the golden run, the latest last.
    """

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    only: str | None = None
    has_optimizer: bool = False
    earlier: Sequence[Checkpoint] = ()


@dataclass
class _Open:
    """A pair that differs, and is not explained yet."""

    match: Match
    target: Slot
    golden: Slot
    numbers: PairNumbers
    signatures: tuple[Signature, Signature] | None = None
    answer: Answer | None = None
    part: float | None = None
    """Relative distance of the rows that differ, if others do not."""


def compare_checkpoints(
    target: Checkpoint,
    golden: Checkpoint,
    options: CheckpointOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CheckpointResult:
    """Compare two opened checkpoints.

    Args:
        target: The checkpoint to judge.
        golden: The one to trust.
        options: How to compare.
        progress: Called with the number of compared tensors and that of all.
    """
    options = options or CheckpointOptions()
    kinds = kinds_of(has_optimizer=options.has_optimizer)
    matches = match_tensors(target, golden, kinds, options.names)
    pairs = [pair for pair in matches.pairs if _is_asked(pair, options.only)]
    pairs.sort(
        key=lambda pair: (layer_of(pair.key) is not None, layer_of(pair.key) or 0)
    )  # groups end with their layer
    work = _Comparison(matches.heads)
    layer: int | None = None
    for number, pair in enumerate(_with_same_values(pairs)):
        if layer_of(pair.key) != layer:
            work.close_layer()
            layer = layer_of(pair.key)
        work.add(pair)
        if progress is not None:
            progress(number + 1, len(pairs))
    work.close_layer()
    work.search_elsewhere(slots_of(golden, kinds))
    rows = [*work.settled(), *_unlike_replicas(target, kinds), *_unlike_replicas(golden, kinds)]
    notes = [*target.notes, *golden.notes, *matches.notes]
    if options.earlier:
        rows = _with_earlier(rows, pairs, golden, options.earlier, kinds, notes)
    rows.sort(key=_badness)
    return CheckpointResult(target=target.path, golden=golden.path, rows=rows, notes=notes)


def _badness(row: TensorRow) -> tuple[bool, bool, float]:
    distance = row.relative_l2 if row.relative_l2 is not None and not math.isnan(row.relative_l2) else math.inf
    return row.is_same, row.relation is Relation.CLOSE, -distance


def _is_asked(pair: Match, only: str | None) -> bool:
    if only is None:
        return True
    names = [slot.name for slot in (pair.target, pair.golden) if slot is not None]
    return any(re.search(only, name) for name in names)


def _unlike_replicas(checkpoint: Checkpoint, kinds: Sequence[Kind]) -> Iterator[TensorRow]:
    """Yield tensors of one checkpoint whose copies on several ranks are not equal."""
    for name, tensor in checkpoint.tensors.items():
        if tensor.kind not in kinds or tensor.damage is not None or not tensor.replicas:
            continue
        try:
            ranks = [piece.rank or str(piece.file) for piece in tensor.replicas if not _is_copy(piece, tensor)]
        except DumpError:
            continue
        if ranks:
            slot = Slot(name=name, tensor=tensor)
            pair = Match(key=key_of(name), target=slot, golden=slot)
            yield _row(pair, Relation.REPLICAS, Finding.of(DifferenceCode.REPLICAS, Level.ERROR, ranks=ranks))


def _is_copy(piece: Piece, tensor: LogicalTensor) -> bool:
    own = replace(tensor, shape=tuple(piece.source.shape), pieces=[replace(piece, begin=(0,) * len(piece.begin))])
    for box, _ in boxes_of(own.shape, chunk_elements(own)):
        place = Box(tuple(a + b for a, b in zip(box.begin, piece.begin, strict=True)), box.sizes)
        if not same_codes(read_box(own, box), read_box(tensor, place)):
            return False
    return True


class _Comparison:
    """The comparison of all pairs, one after the other; what differs is kept until it is explained."""

    def __init__(self, heads: Heads | None) -> None:
        self._heads = heads
        self._workspace = Workspace()
        self._rows: list[TensorRow] = []
        self._layer: list[_Open] = []
        self._open: list[_Open] = []

    def add(self, pair: Match) -> None:
        """Compare a pair."""
        if pair.target is None or pair.golden is None:
            self._rows.append(_lone(pair))
            return
        damage = pair.target.tensor.damage or pair.golden.tensor.damage
        if damage is not None:
            proof = Finding.of(DifferenceCode.DAMAGED, Level.ERROR, why=damage)
            self._rows.append(_row(pair, Relation.DAMAGED, proof))
            return
        try:
            self._compare(pair, pair.target, pair.golden)
        except DumpError as error:
            self._rows.append(_unreadable(pair, error))

    def close_layer(self) -> None:
        """Explain what differs in a layer by its parts together: queries, keys and values, gate and up."""
        groups: dict[str, list[_Open]] = {}
        for each in self._layer:
            if each.answer is None and each.signatures is not None:
                groups.setdefault(without_part(each.match.key), []).append(each)
        for key, group in groups.items():
            if len(group) > 1 and any(each.match.key != key for each in group):
                self._explain_group(key, group)
        for each in self._layer:
            each.signatures = None if each.answer is not None else _without_lines(each.signatures)
        self._open += self._layer
        self._layer = []

    def search_elsewhere(self, golden: Mapping[str, Slot]) -> None:
        """Search the values of unexplained tensors among all golden tensors, by a few elements first."""
        left = [each for each in self._open if each.answer is None and _may_be_elsewhere(each)]
        if not left:
            return
        shapes = {each.target.tensor.shape for each in left}
        places: dict[tuple[object, ...], list[str]] = {}
        for key, slot in golden.items():
            if slot.tensor.shape in shapes and slot.tensor.damage is None:
                probe = _probe(slot.tensor)
                if probe is not None:
                    places.setdefault(probe, []).append(key)
        for each in left:
            probe = _probe(each.target.tensor)
            keys = [key for key in places.get(probe, []) if key != each.match.key] if probe is not None else []
            keys.sort(key=lambda key: relation_of_keys(each.match.key, key) is Relation.MISPLACED)
            for key in keys[:_MOST_CANDIDATES]:
                if self._is_same(each.target.tensor, golden[key].tensor):
                    relation = relation_of_keys(each.match.key, key)
                    proof = Finding.of(CODE_OF[relation], Level.ERROR, name=golden[key].name)
                    each.answer = Answer(relation, proof)
                    break

    def settled(self) -> list[TensorRow]:
        """Return the rows of all pairs."""
        for each in self._open:
            answer = each.answer or _last_resort(each)
            self._rows.append(_row(each.match, answer.relation, answer.proof, each.numbers))
        self._open = []
        return self._rows

    def _is_same(self, target: LogicalTensor, golden: LogicalTensor) -> bool:
        try:
            return compare_pair(target, golden, self._workspace, measures=False).is_same
        except DumpError:
            return False

    def _compare(self, pair: Match, target: Slot, golden: Slot) -> None:
        own, other = target.tensor, golden.tensor
        if own.shape != other.shape:
            self._compare_shapes(pair, target, golden)
            return
        numbers = compare_pair(own, other, self._workspace)
        if numbers.is_same:
            relation, proof = _sameness(pair, numbers)
            self._rows.append(_row(pair, relation, proof, numbers))
        elif pair.is_tied:
            self._rows.append(_row(pair, Relation.TIED_BROKEN, _untied(pair), numbers))
        else:
            found = _Open(pair, target, golden, numbers)
            self._explain(found)
            self._layer.append(found)

    def _compare_shapes(self, pair: Match, target: Slot, golden: Slot) -> None:
        own, other = target.tensor, golden.tensor
        fields = {"target": str(list(own.shape)), "golden": str(list(other.shape))}
        if len(own.shape) > 1 and own.shape[:-2] + own.shape[:-3:-1] == other.shape:
            signatures = _signatures(own, other)
            answer = structure_of(own, other, signatures, pair.key, self._heads)
            if answer is not None:
                self._rows.append(_row(pair, answer.relation, answer.proof))
                return
        if own.shape and other.shape and own.shape[1:] == other.shape[1:]:
            count = min(own.shape[0], other.shape[0])
            parts = [rows_of(each, [(0, count)], each.name, each.rule) for each in (own, other)]
            numbers = compare_pair(parts[0], parts[1], self._workspace)
            if numbers.is_same:
                is_vocabulary = pair.key in ("embed.weight", "head.weight", "head.bias") or "embed" in pair.key
                relation = Relation.PADDED if is_vocabulary else Relation.SHAPE
                code = DifferenceCode.PADDED if is_vocabulary else DifferenceCode.RESIZED
                level = Level.NOTE if is_vocabulary else Level.ERROR
                self._rows.append(_row(pair, relation, Finding.of(code, level, count=count, **fields)))
                return
            if pair.is_tied:
                self._rows.append(_row(pair, Relation.TIED_BROKEN, _untied(pair), numbers))
                return
        self._rows.append(_row(pair, Relation.SHAPE, Finding(DifferenceCode.SHAPES, Level.ERROR, fields)))

    def _explain(self, found: _Open) -> None:
        """Explain a difference by the tensor alone, if possible."""
        numbers = found.numbers
        own, other = found.target.tensor, found.golden.tensor
        if numbers.has_other_nan:
            found.answer = Answer(Relation.DIFFERENT, Finding(DifferenceCode.NON_FINITE, Level.ERROR))
            return
        found.answer = _zeros(numbers) or self._scaled(found)
        if found.answer is not None:
            return
        if numbers.rows is not None and not numbers.rows.all():
            found.answer = self._explain_rows(found)
            if found.answer is not None:
                return
        is_everywhere = numbers.share_differing > 0.5
        if numbers.relative_l2 < _NEAR and is_everywhere:
            return
        found.signatures = _signatures(own, other)
        found.answer = (
            _constant(found.signatures)
            or self._shifted(found, found.signatures)
            or structure_of(own, other, found.signatures, found.match.key, self._heads)
        )

    def _explain_rows(self, found: _Open) -> Answer | None:
        """Explain a difference that only some rows have by these rows."""
        assert found.numbers.rows is not None
        index = np.flatnonzero(found.numbers.rows)
        breaks = np.flatnonzero(np.diff(index) != 1) + 1
        runs = np.split(index, breaks)
        if len(runs) > _MOST_RUNS:
            return None
        ranges = [(int(run[0]), int(run[-1]) + 1) for run in runs]
        own, other = (
            rows_of(slot.tensor, ranges, slot.name, slot.tensor.rule) for slot in (found.target, found.golden)
        )
        found.part = measure_pair(own, other, self._workspace).relative_l2
        signatures = _signatures(own, other)
        part = permutation_of(signatures[0].rows, signatures[1].rows)
        if part is not None and has_rows(own, other, part):
            order: Any = np.arange(found.numbers.rows.size)
            order[index] = index[part]
            return named_order(order, found.match.key, self._heads, along=0, ndim=len(own.shape))
        constant = _constant(signatures)
        if constant is None and found.match.key == without_part(found.match.key):
            constant = _initial(signatures) if found.part > _CLOSE else None
        if constant is None:
            return None
        fields = {"first": ranges[0][0], "last": ranges[-1][1] - 1, "count": index.size, "why": constant.proof}
        return Answer(constant.relation, Finding(DifferenceCode.PART_DIFFERS, Level.ERROR, fields))

    def _explain_group(self, key: str, group: Sequence[_Open]) -> None:
        tensors = [(each.target.tensor, each.golden.tensor) for each in group]
        if len({tensor.shape[1:] for pair in tensors for tensor in pair}) > 1 or any(
            len({pair[side].dtype for pair in tensors}) > 1 for side in (0, 1)
        ):
            return
        lines = [(s[0].rows, s[1].rows) for each in group if (s := each.signatures) is not None]
        known = [(own, other) for own, other in lines if own is not None and other is not None]
        if len(known) < len(group):
            return
        order = stack_order(known)
        if order is None:
            return
        stacks = [stacked([pair[side] for pair in tensors], key, "") for side in (0, 1)]
        if not has_rows(stacks[0], stacks[1], order):
            return
        is_gate = any(f".{part}." in group[0].match.key for part in ("gate", "up"))
        fields = {"moved": num_moved(order), "total": order.size}
        relation, code = (
            (Relation.GATE_UP, DifferenceCode.GATE_UP) if is_gate else (Relation.QKV_ORDER, DifferenceCode.QKV_ORDER)
        )
        for each in group:
            each.answer = Answer(relation, Finding(code, Level.ERROR, fields))

    def _scaled(self, found: _Open) -> Answer | None:
        """Return that the target is a multiple of golden, if each element is, but for rounding."""
        factor, numbers = found.numbers.scale, found.numbers
        if factor is None or factor == 0 or abs(factor - 1) < _LEAST_FACTOR:
            return None
        if abs(numbers.cosine) < _SAME_DIRECTION:
            return None
        if not _is_made_by(found, lambda values: values * factor):
            return None
        return Answer(Relation.SCALED, Finding.of(DifferenceCode.SCALED, Level.ERROR, factor=factor))

    def _shifted(self, found: _Open, signatures: tuple[Signature, Signature]) -> Answer | None:
        """Return that the target is golden plus a constant, if each element is, but for rounding."""
        offset, size = signatures[0].mean - signatures[1].mean, math.sqrt(found.target.tensor.numel)
        if abs(abs(offset) * size - found.numbers.l2) > _SAME_OFFSET * found.numbers.l2:
            return None
        if found.target.tensor.numel < _LEAST_SHIFTED or not _is_made_by(found, lambda values: values + offset):
            return None
        return Answer(Relation.SHIFTED, Finding.of(DifferenceCode.SHIFTED, Level.ERROR, offset=offset))


def _is_made_by(found: _Open, make: Callable[[Array], Array]) -> bool:
    """Whether each element of the target is made of the golden one, but for rounding."""
    own, other = found.target.tensor, found.golden.tensor
    unit = max(_UNITS.get(own.dtype, 0.0), _UNITS.get(other.dtype, 0.0))
    for box, _ in boxes_of(own.shape, chunk_elements(own, other)):
        first, golden = read_values(own, box).astype(np.float64), read_values(other, box).astype(np.float64)
        second = make(golden)
        limit = 2 * unit * np.maximum(np.maximum(np.abs(first), np.abs(second)), np.abs(golden)) + _TINY
        if not (np.abs(first - second) <= limit).all():
            return False
    return unit > 0


_MOST_CANDIDATES = 4
_MOST_RUNS = 4096
_LEAST_FACTOR = 1e-6
_SAME_DIRECTION = 0.999
_SAME_OFFSET = 1e-3
_LEAST_SHIFTED = 8
_TINY = 1e-30
_UNITS = {
    "float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2,
}  # fmt: skip
"""Distance of 1 to the next larger number; an element of a multiple is off by at most half of it, relatively."""


def _signatures(own: LogicalTensor, other: LogicalTensor) -> tuple[Signature, Signature]:
    coarser = None
    if own.dtype != other.dtype:
        coarser = max(own.dtype, other.dtype, key=lambda dtype: _UNITS.get(dtype, 0.0))
    return signature_of(own, coarser), signature_of(other, coarser)


def _without_lines(signatures: tuple[Signature, Signature] | None) -> tuple[Signature, Signature] | None:
    if signatures is None:
        return None
    return replace(signatures[0], rows=None, columns=None), replace(signatures[1], rows=None, columns=None)


def _zeros(numbers: PairNumbers) -> Answer | None:
    if (numbers.norms[0] == 0) == (numbers.norms[1] == 0):
        return None
    side = "target" if numbers.norms[0] == 0 else "golden"
    return Answer(Relation.UNINITIALISED, Finding.of(DifferenceCode.ZEROS, Level.ERROR, side=side))


def _constant(signatures: tuple[Signature, Signature]) -> Answer | None:
    own, other = signatures
    if own.is_constant == other.is_constant or own.numel < 2:
        return None
    side, value = ("target", own.low) if own.is_constant else ("golden", other.low)
    if value == 0:
        return Answer(Relation.UNINITIALISED, Finding.of(DifferenceCode.ZEROS, Level.ERROR, side=side))
    return Answer(Relation.UNINITIALISED, Finding.of(DifferenceCode.CONSTANT, Level.ERROR, side=side, value=value))


def _initial(signatures: tuple[Signature, Signature]) -> Answer | None:
    own, other = signatures
    if own.looks_initial == other.looks_initial:
        return None
    side, found = ("target", own) if own.looks_initial else ("golden", other)
    fields = {"side": side, "distribution": found.distribution, "std": found.std}
    return Answer(Relation.UNINITIALISED, Finding(DifferenceCode.INITIALISED, Level.ERROR, fields))


def _may_be_elsewhere(found: _Open) -> bool:
    least = _NEAR if len(found.target.tensor.shape) == 1 else _CLOSE  # all weights of norms are near 1
    return found.numbers.relative_l2 > least and found.target.tensor.numel > 1


def _last_resort(found: _Open) -> Answer:
    """Return the class of a tensor whose difference has no explanation."""
    numbers = found.numbers
    fields = {"relative": numbers.relative_l2, "cosine": numbers.cosine}
    if max(numbers.relative_l2, found.part or 0.0) < _CLOSE:
        return Answer(Relation.CLOSE, Finding(DifferenceCode.CLOSE, Level.WARNING, fields))
    if numbers.rows is not None and (num_rows := int(numbers.rows.sum())) < numbers.rows.size:
        index = np.flatnonzero(numbers.rows)
        own = {"first": int(index[0]), "last": int(index[-1]), "count": num_rows}
        why = Finding(DifferenceCode.UNRELATED, Level.ERROR, fields)
        return Answer(Relation.PARTLY, Finding.of(DifferenceCode.PART_DIFFERS, Level.ERROR, **own, why=why))
    signatures = found.signatures
    if signatures is not None and abs(numbers.cosine) < _UNRELATED_COSINE:
        answer = _initial(signatures)
        if answer is not None:
            return answer
        if signatures[0].looks_initial and signatures[1].looks_initial:
            return Answer(Relation.UNRELATED, Finding(DifferenceCode.BOTH_INITIAL, Level.ERROR, fields))
    return Answer(Relation.UNRELATED, Finding(DifferenceCode.UNRELATED, Level.ERROR, fields))


def _sameness(pair: Match, numbers: PairNumbers) -> tuple[Relation, Finding]:
    if numbers.rounding is not None:
        code = {
            Rounding.EXACT: DifferenceCode.CAST_EXACT, Rounding.NEAREST: DifferenceCode.CAST_NEAREST,
            Rounding.TOWARDS_ZERO: DifferenceCode.CAST_TOWARDS_ZERO, Rounding.BOTH: DifferenceCode.CAST_BOTH,
        }[numbers.rounding]  # fmt: skip
        assert pair.target is not None
        assert pair.golden is not None
        return Relation.CAST, Finding.of(code, target=pair.target.tensor.dtype, golden=pair.golden.tensor.dtype)
    if pair.is_tied:
        return Relation.EQUAL, Finding(DifferenceCode.TIED)
    if pair.finding is not None:
        return Relation.EQUAL, pair.finding
    return Relation.EQUAL, Finding(DifferenceCode.EQUAL if numbers.is_equal else DifferenceCode.EQUAL_VALUES)


def _untied(pair: Match) -> Finding:
    names = [slot.name for slot in (pair.target, pair.golden) if slot is not None]
    return Finding.of(DifferenceCode.TIED_BROKEN, Level.ERROR, target=names[0], golden=names[1])


_BUFFERS = re.compile(r"(inv_freq|rotary_emb|position_ids|masked_bias|causal_mask|_extra_state|\.rope\.freqs)")


def _lone(pair: Match) -> TensorRow:
    slot = pair.target or pair.golden
    assert slot is not None
    is_mask = slot.name.endswith("attn.bias") and len(slot.tensor.shape) == 4
    if slot.tensor.kind is Kind.BUFFER or is_mask or _BUFFERS.search(slot.name):
        side = "target" if pair.target is not None else "golden"
        return _row(pair, Relation.BUFFER, Finding.of(DifferenceCode.ONLY_BUFFER, side=side))
    if pair.target is not None:
        return _row(pair, Relation.ONLY_TARGET, Finding(DifferenceCode.ONLY_TARGET, Level.ERROR))
    return _row(pair, Relation.ONLY_GOLDEN, Finding(DifferenceCode.ONLY_GOLDEN, Level.ERROR))


def _unreadable(pair: Match, error: DumpError) -> TensorRow:
    proof = Finding.of(DifferenceCode.UNREADABLE, Level.ERROR, why=noted(str(error)))
    return _row(pair, Relation.DAMAGED, proof)


def _row(pair: Match, relation: Relation, proof: Finding, numbers: PairNumbers | None = None) -> TensorRow:
    own = None if pair.target is None else pair.target.tensor
    other = None if pair.golden is None else pair.golden.tensor
    rules = dict.fromkeys(tensor.rule for tensor in (own, other) if tensor is not None and tensor.rule)
    row = TensorRow(
        key=pair.key, name=None if pair.target is None else pair.target.name,
        golden_name=None if pair.golden is None else pair.golden.name, relation=relation, proof=proof,
        shape=None if own is None else own.shape, golden_shape=None if other is None else other.shape,
        dtype=None if own is None else own.dtype, golden_dtype=None if other is None else other.dtype,
        rule=" | ".join(rules),
    )  # fmt: skip
    if numbers is None or numbers.rounding is not None:
        return row
    return replace(
        row, l2=numbers.l2, relative_l2=numbers.relative_l2, cosine=numbers.cosine, max_abs=numbers.max_abs,
        share_differing=numbers.share_differing, first_differing=numbers.first_differing,
    )  # fmt: skip


def _probe(tensor: LogicalTensor) -> tuple[object, ...] | None:
    """Return a few elements as bfloat16, by which tensors are searched that may be equal."""
    if not tensor.shape or tensor.numel == 0:
        return None
    found: list[bytes] = []
    for row in dict.fromkeys((0, tensor.shape[0] // 2, tensor.shape[0] - 1)):
        sizes = (1, *[min(n, 16) for n in tensor.shape[1:]])
        try:
            values = read_values(tensor, Box((row, *[0] * (len(sizes) - 1)), sizes))
        except DumpError:
            return None
        found.append(np.ascontiguousarray(rounded(values, "bfloat16")).astype(np.float32).tobytes())
    return tensor.shape, b"".join(found)


def _with_same_values(pairs: Sequence[Match]) -> list[Match]:
    """Pair tensors without a partner whose shape and a few elements are unique on both sides and equal."""
    lone = [[pair for pair in pairs if (pair.golden if side else pair.target) is None] for side in (0, 1)]
    if not all(lone):
        return list(pairs)
    places: list[dict[tuple[object, ...], list[Match]]] = [{}, {}]
    for side, own in enumerate(lone):
        for pair in own:
            slot = pair.golden or pair.target
            probe = None if slot is None else _probe(slot.tensor)
            if probe is not None:
                places[side].setdefault(probe, []).append(pair)
    partners: dict[str, Match] = {}
    gone: set[str] = set()
    for probe, goldens in places[0].items():
        targets = places[1].get(probe, [])
        if len(goldens) == len(targets) == 1:
            finding = Finding(DifferenceCode.MAYBE, Level.WARNING)
            partners[targets[0].key] = replace(targets[0], golden=goldens[0].golden, finding=finding)
            gone.add(goldens[0].key)
    return [partners.get(pair.key, pair) for pair in pairs if pair.key not in gone or pair.key in partners]


def _with_earlier(
    rows: Sequence[TensorRow],
    pairs: Iterable[Match],
    golden: Checkpoint,
    earlier: Sequence[Checkpoint],
    kinds: Sequence[Kind],
    notes: list[Finding],
) -> list[TensorRow]:
    """Return the rows with distances in units of one step's update, and with tensors that were not updated."""
    workspace = Workspace()
    by_key = {pair.key: pair for pair in pairs}
    sides: list[tuple[Checkpoint, Mapping[str, Slot]]] = []
    for checkpoint in earlier:
        matches = match_tensors(checkpoint, golden, kinds)
        paired = [(pair, pair.target) for pair in matches.pairs if pair.target is not None]
        by_name = {pair.golden.name: slot for pair, slot in paired if pair.golden is not None}
        sides.append((checkpoint, by_name | {pair.key: slot for pair, slot in paired}))
    last, _ = sides[-1]
    num_steps = None if golden.step is None or last.step is None else golden.step - last.step
    if not num_steps or num_steps < 0:
        notes.append(Finding(DifferenceCode.NO_STEP, Level.NOTE))
        num_steps = 1
    found: list[TensorRow] = []
    for row in rows:
        pair = by_key.get(row.key)
        if row.relation in SAME or row.l2 is None or pair is None or pair.target is None or pair.golden is None:
            found.append(row)
            continue
        try:
            found.append(_beside_earlier(row, pair.target.tensor, pair.golden.tensor, sides, num_steps, workspace))
        except DumpError:
            found.append(row)
    return found


def _beside_earlier(
    row: TensorRow,
    target: LogicalTensor,
    golden: LogicalTensor,
    earlier: Sequence[tuple[Checkpoint, Mapping[str, Slot]]],
    num_steps: int,
    workspace: Workspace,
) -> TensorRow:
    distance = row.l2 or 0.0
    nearest: tuple[float, Checkpoint] | None = None
    for checkpoint, slots in earlier:
        slot = _earlier_of(row, slots)
        if slot is None or slot.tensor.shape != target.shape:
            continue
        numbers = compare_pair(target, slot.tensor, workspace)
        if numbers.is_same:
            proof = Finding.of(DifferenceCode.STALE, Level.ERROR, path=str(checkpoint.path), step=checkpoint.step)
            row = replace(row, relation=Relation.STALE, proof=proof)
            nearest = None
            break
        if numbers.l2 < distance / 2 and (nearest is None or numbers.l2 < nearest[0]):
            nearest = numbers.l2, checkpoint
    if nearest is not None:
        fields = {"path": str(nearest[1].path), "step": nearest[1].step, "times": distance / max(nearest[0], _TINY)}
        row = replace(row, relation=Relation.STALE, proof=Finding(DifferenceCode.STALE_NEARER, Level.ERROR, fields))
    last = _earlier_of(row, earlier[-1][1])
    if last is not None and last.tensor.shape == golden.shape:
        update = compare_pair(golden, last.tensor, workspace).l2 / num_steps
        row = replace(row, units=distance / update if update else None)
    return row


def _earlier_of(row: TensorRow, slots: Mapping[str, Slot]) -> Slot | None:
    """Return a row's tensor in an earlier checkpoint; its key may be in the words of the target's framework."""
    return slots.get(row.key) or slots.get(row.golden_name or "")
