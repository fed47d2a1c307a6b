"""What a comparison of checkpoints returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe_core.checkpoint.canonical import layer_of
from msprobe_core.checkpoint.difference_codes import DifferenceCode
from msprobe_core.checkpoint.structure import SAME, Relation
from msprobe_core.findings import Finding, Level


@dataclass(frozen=True, kw_only=True)
class TensorRow:
    """One tensor, or one part of a fused tensor.

    Attributes:
        key: Name in the common vocabulary, such as ``layers.3.attn.q.weight``.
        name: Name in the target; ``None`` if it has none. A part of a fused tensor is named in brackets.
        golden_name: Name in the golden checkpoint.
        shape: Shape in the target.
        golden_shape: Shape in the golden checkpoint.
        dtype: Dtype in the target.
        golden_dtype: Dtype in the golden checkpoint.
        rule: By which rules pieces were put together.
        relation: The class.
        proof: What the class follows from.
        l2: Euclidean distance; ``None`` if it was not measured.
        relative_l2: The same over the golden norm.
        cosine: Cosine similarity.
        max_abs: Largest absolute difference.
        share_differing: Share of elements that differ, 0 to 1.
        first_differing: Index of the first one.
        units: Distance in units of one step's update.
        is_estimate: Whether distances are estimated from sketches.
    """

    key: str
    name: str | None
    golden_name: str | None
    relation: Relation
    proof: Finding
    shape: tuple[int, ...] | None = None
    golden_shape: tuple[int, ...] | None = None
    dtype: str | None = None
    golden_dtype: str | None = None
    rule: str = ""
    l2: float | None = None
    relative_l2: float | None = None
    cosine: float | None = None
    max_abs: float | None = None
    share_differing: float | None = None
    first_differing: tuple[int, ...] | None = None
    units: float | None = None
    is_estimate: bool = False

    @property
    def is_same(self) -> bool:
        """Whether both sides have the same tensor."""
        return self.relation in SAME

    @property
    def layer(self) -> int | None:
        """Number of its layer."""
        return layer_of(self.key)


@dataclass(frozen=True, kw_only=True)
class LayerRange:
    """Layers next to each other that differ in the same way.

    Attributes:
        relation: The class.
        first: First layer; ``None`` outside of layers.
        last: Last layer.
        count: Number of tensors.
    """

    relation: Relation
    first: int | None
    last: int | None
    count: int


@dataclass(frozen=True, kw_only=True)
class CheckpointResult:
    """Result of comparing two checkpoints.

    Attributes:
        target: Path of the target.
        golden: Path of the golden checkpoint.
        rows: All tensors, those that differ first.
        notes: What was assumed or could not be decided.
    """

    target: Path
    golden: Path
    rows: Sequence[TensorRow]
    notes: Sequence[Finding] = ()

    @property
    def counts(self) -> dict[Relation, int]:
        """Number of tensors of each class, in the order of `Relation`."""
        found = Counter(row.relation for row in self.rows)
        return {relation: found[relation] for relation in Relation if found[relation]}

    @property
    def differing(self) -> list[TensorRow]:
        """Tensors that are not the same, the worst first."""
        return [row for row in self.rows if not row.is_same]

    @property
    def is_same_model(self) -> bool:
        """Whether all tensors are equal, but for casts, padding and ties."""
        return bool(self.rows) and not self.differing

    @property
    def is_exact(self) -> bool:
        """Whether all tensors are equal; ties and buffers of one side are no differences, casts and padding are."""
        return self.is_same_model and all(row.relation in (Relation.EQUAL, Relation.BUFFER) for row in self.rows)

    @property
    def is_judged(self) -> bool:
        """Whether something was compared, and nothing but damage prevents an answer."""
        read = [row for row in self.rows if row.relation is not Relation.DAMAGED]
        return any(row.name and row.golden_name for row in read)

    @property
    def headline(self) -> Finding:
        """The answer in a sentence."""
        counts = [f"{relation.value}: {count}" for relation, count in self.counts.items()]
        if not self.is_judged:
            return Finding(DifferenceCode.NOTHING, Level.ERROR)
        if self.is_exact:
            return Finding.of(DifferenceCode.SAME_MODEL, count=len(self.rows))
        if self.is_same_model:
            return Finding.of(DifferenceCode.SAME_BUT, counts=counts)
        fields = {"count": len(self.differing), "total": len(self.rows), "counts": counts}
        return Finding(DifferenceCode.DIFFERENT, Level.ERROR, fields)

    @property
    def ranges(self) -> list[LayerRange]:
        """Where the classes of differing tensors are."""
        layers: dict[Relation, Counter[int | None]] = {}
        for row in self.differing:
            layers.setdefault(row.relation, Counter())[row.layer] += 1
        found: list[LayerRange] = []
        for relation, counts in layers.items():
            if outside := counts.pop(None, 0):
                found.append(LayerRange(relation=relation, first=None, last=None, count=outside))
            numbers = sorted(number for number in counts if number is not None)
            begin = 0
            for i, number in enumerate(numbers):
                if i + 1 == len(numbers) or numbers[i + 1] != number + 1:
                    own = numbers[begin : i + 1]
                    total = sum(counts[each] for each in own)
                    found.append(LayerRange(relation=relation, first=own[0], last=own[-1], count=total))
                    begin = i + 1
        return found
