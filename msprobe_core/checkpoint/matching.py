"""Which tensor of one checkpoint is which of the other: by name, by translated name, and by the parts of fused ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msprobe_core.checkpoint.boxes import rows_of
from msprobe_core.checkpoint.canonical import Heads, heads_in, key_of, order_of, qkv_ranges
from msprobe_core.checkpoint.contents import Checkpoint, Kind, LogicalTensor
from msprobe_core.checkpoint.difference_codes import DifferenceCode
from msprobe_core.checkpoint.framework_names import Translation, translations_between
from msprobe_core.findings import Finding, Level

QKV = ("q", "k", "v")
GATE_UP = ("gate", "up")


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One side of a row.

    Attributes:
        name: The stored name; of a part of a fused tensor with the part in brackets: ``….linear_qkv.weight[q]``.
        tensor: The tensor, or the part.
    """

    name: str
    tensor: LogicalTensor


@dataclass(frozen=True, kw_only=True)
class Match:
    """A pair, or a tensor without a partner.

    Attributes:
        key: Name in the common vocabulary.
        target: The target's tensor.
        golden: The golden one.
        is_tied: Whether one of them is the embedding, of a checkpoint that ties the head to it.
        finding: Why they were paired, if not by name.
    """

    key: str
    target: Slot | None
    golden: Slot | None
    is_tied: bool = False
    finding: Finding | None = None


@dataclass
class Matches:
    """All pairs.

    Attributes:
        pairs: Pairs and lone tensors, in the target's order.
        notes: What could not be decided.
        heads: Sizes of the attention, as far as they are known.
    """

    pairs: list[Match]
    heads: Heads | None
    notes: list[Finding] = field(default_factory=list[Finding])


def slots_of(checkpoint: Checkpoint, kinds: Iterable[Kind], names: Mapping[str, str] | None = None) -> dict[str, Slot]:
    """Return the tensors of a checkpoint by key; names whose keys collide keep their own name as key.

    Args:
        checkpoint: The checkpoint.
        kinds: Kinds to include.
        names: Names of a mapping file: the name on the other side for names of this one.
    """
    wanted = frozenset(kinds)
    entries = {name: tensor for name, tensor in checkpoint.tensors.items() if tensor.kind in wanted}
    for name, other in checkpoint.aliases.items():
        if name not in entries and other in entries:
            entries[name] = entries[other]
    keys = {name: key_of((names or {}).get(name, name)) for name in entries}
    counts = Counter(keys.values())
    return {
        (keys[name] if counts[keys[name]] == 1 else name): Slot(name=name, tensor=tensor)
        for name, tensor in entries.items()
    }


def match_tensors(
    target: Checkpoint, golden: Checkpoint, kinds: Iterable[Kind], names: Mapping[str, str] | None = None
) -> Matches:
    """Return which tensors are compared with which.

    Args:
        target: The target.
        golden: The golden checkpoint.
        kinds: Kinds of tensors to compare.
        names: Names of a mapping file: golden names by target names.
    """
    kinds = list(kinds)
    heads = heads_in(golden.settings) or heads_in(target.settings)
    own, other = _in_one_vocabulary(slots_of(target, kinds, names), slots_of(golden, kinds))
    found = Matches([], heads)
    for first, second in ((own, other), (other, own)):
        _split_qkv(first, second, found)
        _split_gate_up(first, second)
    keys = dict.fromkeys([*own, *other])
    found.pairs = [Match(key=key, target=own.get(key), golden=other.get(key)) for key in keys]
    found.pairs = _with_ties(found.pairs, own, other)
    if names:
        unused = [name for name in names if name not in target.tensors and name not in target.aliases]
        if unused:
            found.notes.append(Finding.of(DifferenceCode.UNUSED_MAP, Level.WARNING, count=len(unused), name=unused[0]))
    return found


def _in_one_vocabulary(own: dict[str, Slot], other: dict[str, Slot]) -> tuple[dict[str, Slot], dict[str, Slot]]:
    """Return the tensors of both sides by keys in which the words of their frameworks are translated."""
    first, second = translations_between(_named(own), _named(other))
    return _renamed(own, first, second), _renamed(other, second, first)


def _named(slots: Mapping[str, Slot]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {key: (slot.name, slot.tensor.shape) for key, slot in slots.items()}


def _renamed(slots: Mapping[str, Slot], own: Translation, other: Translation) -> dict[str, Slot]:
    excused = {key: replace(slots[key], tensor=replace(slots[key].tensor, kind=Kind.BUFFER)) for key in other.excused}
    return own.renamed({**slots, **excused})


def split_all(slots: dict[str, Slot], heads: Heads | None, *, is_gated: bool) -> None:
    """Replace all fused projections by their parts, whatever the other side has; for files that meet any other side."""
    for key in [key for key in slots if _stem(key, "qkv") is not None]:
        if heads is not None:
            _replace_by_parts(slots, key, QKV, heads)
    if is_gated:
        for key in [key for key in slots if _stem(key, "gate_up") is not None]:
            _replace_by_halves(slots, key)


def _stem(key: str, part: str) -> tuple[str, str] | None:
    """Return what is around a part of a key: ``layers.0.attn.`` and ``.weight``."""
    head, found, tail = key.rpartition(f".{part}.")
    return (head + ".", "." + tail) if found else None


def _split_qkv(fused: dict[str, Slot], parts: Mapping[str, Slot], found: Matches) -> None:
    for key in list(fused):
        around = _stem(key, "qkv")
        if around is None:
            continue
        single = parts.get(key)
        if single is not None and order_of(single.name) is order_of(fused[key].name):
            continue
        others = [parts.get(around[0] + part + around[1]) for part in QKV]
        if single is None and not all(others):
            continue
        heads = found.heads or _guessed(fused[key], [slot for slot in others if slot is not None])
        is_split = heads is not None and _replace_by_parts(fused, key, QKV, heads)
        if not is_split and not any(note.code is DifferenceCode.NO_HEADS for note in found.notes):
            found.notes.append(Finding.of(DifferenceCode.NO_HEADS, Level.WARNING, name=fused[key].name))


def _guessed(fused: Slot, parts: Sequence[Slot]) -> Heads | None:
    """Return sizes that fit the rows of the parts, with the most common size of a head among those that do."""
    if len(parts) != len(QKV) or fused.tensor.shape[0] != sum(part.tensor.shape[0] for part in parts):
        return None
    num_q, num_k = parts[0].tensor.shape[0], parts[1].tensor.shape[0]
    for width in _COMMON_WIDTHS:
        if num_k % width == 0 and num_q % num_k == 0:
            return Heads(num_q // width, num_k // width, width)
    return None


_COMMON_WIDTHS = (128, 64, 96, 80, 256, 192, 112, 32, 16, 8, 4)


def _replace_by_parts(slots: dict[str, Slot], key: str, names: Sequence[str], heads: Heads) -> bool:
    slot = slots[key]
    dim = next((d for d, n in enumerate(slot.tensor.shape[:2]) if n == heads.num_rows), None)
    around = _stem(key, "qkv")
    if dim is None or around is None:
        return False
    order = order_of(slot.name)
    made: dict[str, Slot] = {}
    for part, ranges in zip(names, qkv_ranges(heads, order), strict=True):
        name = f"{slot.name}[{part}]"
        rule = f"{slot.tensor.rule}; " if slot.tensor.rule else ""
        tensor = rows_of(slot.tensor, ranges, name, f"{rule}{part} of qkv, {order.value}", dim)
        made[around[0] + part + around[1]] = Slot(name=name, tensor=tensor)
    _replace(slots, key, made)
    return True


def _split_gate_up(fused: dict[str, Slot], parts: Mapping[str, Slot]) -> None:
    for key in list(fused):
        around = _stem(key, "gate_up")
        if around is None or key in parts:
            continue
        if all(around[0] + part + around[1] in parts for part in GATE_UP):
            _replace_by_halves(fused, key)


def _replace_by_halves(slots: dict[str, Slot], key: str) -> None:
    slot = slots[key]
    around = _stem(key, "gate_up")
    num_rows = slot.tensor.shape[0] if slot.tensor.shape else 0
    if around is None or num_rows % 2:
        return
    half = num_rows // 2
    made: dict[str, Slot] = {}
    for part, ranges in zip(GATE_UP, ([(0, half)], [(half, num_rows)]), strict=True):
        name = f"{slot.name}[{part}]"
        rule = f"{slot.tensor.rule}; " if slot.tensor.rule else ""
        made[around[0] + part + around[1]] = Slot(
            name=name, tensor=rows_of(slot.tensor, ranges, name, f"{rule}{part} of gate and up")
        )
    _replace(slots, key, made)


def _replace(slots: dict[str, Slot], key: str, made: Mapping[str, Slot]) -> None:
    items = list(slots.items())
    slots.clear()
    for name, slot in items:
        slots.update(made if name == key else {name: slot})


HEAD, EMBED = "head.weight", "embed.weight"
"""Keys of a head and of the embedding that it may be tied to."""


def _with_ties(pairs: list[Match], own: Mapping[str, Slot], other: Mapping[str, Slot]) -> list[Match]:
    """Pair a head that one side has alone with the other side's embedding, which it is tied to."""
    found: list[Match] = []
    for pair in pairs:
        if pair.key == HEAD and (pair.target is None or pair.golden is None):
            target, golden = pair.target or own.get(EMBED), pair.golden or other.get(EMBED)
            found.append(replace(pair, target=target, golden=golden, is_tied=target is not None and golden is not None))
        else:
            found.append(pair)
    return found
