"""Compare sent and received weights, tensor by tensor, by fingerprints that survive casts, fusions and padding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec
import numpy as np

from msprobe_core.checkpoint.canonical import key_of
from msprobe_core.checkpoint.contents import Kind
from msprobe_core.checkpoint.fingerprints import CheckpointPrint, TensorPrint, compare_prints
from msprobe_core.checkpoint.result import TensorRow
from msprobe_core.checkpoint.structure import Relation
from msprobe_core.findings import Finding as Said
from msprobe_core.judge.limits import Precision, precision_of
from msprobe_core.rl.files import RLStage, Weight, WeightsFile
from msprobe_core.rl.recorded import RecordedRun
from msprobe_core.rl.rl_codes import TransferCode


class Transfer(str, Enum):
    """Result of a parameter's transfer to the engine."""

    EQUAL = "equal"
    CAST = "cast"
    PADDED = "padded"
    TIED = "tied"
    OUTDATED = "as sent earlier"
    DIFFERS = "differs"
    MISSING = "missing"
    EXTRA = "not sent"
    UNVERIFIED = "not compared"

    @property
    def is_fault(self) -> bool:
        """Whether the engine does not have the value that it should have."""
        return self in {Transfer.OUTDATED, Transfer.DIFFERS, Transfer.MISSING}


_TRANSFERS: Mapping[Relation, Transfer] = {
    Relation.EQUAL: Transfer.EQUAL,
    Relation.CAST: Transfer.CAST,
    Relation.PADDED: Transfer.PADDED,
    Relation.STALE: Transfer.OUTDATED,
    Relation.ONLY_GOLDEN: Transfer.MISSING,
    Relation.ONLY_TARGET: Transfer.EXTRA,
}
"""All other relations are differences."""


@dataclass(frozen=True, kw_only=True)
class Transferred:
    """One parameter, or one part of a fused one.

    Attributes:
        name: Name as sent; if it was not sent, as received.
        transfer: Result of the transfer.
        relation: How the received values were made of the sent ones.
        sent: The parameter as sent; ``None`` if it was not sent.
        received: The parameter as received; ``None`` if it was not received.
        error: Estimated distance over the norm, if the values differ; ``None`` if unknown.
        reason: Further explanation.
        is_unchanged: Whether the sent value is that of the previous step; ``None`` if unknown.
    """

    name: str
    transfer: Transfer
    relation: Relation
    sent: Weight | None
    received: Weight | None
    error: float | None = None
    reason: Said | None = None
    is_unchanged: bool | None = None


def transfers(
    sent: WeightsFile, received: WeightsFile, earlier: Sequence[WeightsFile] = (), *, num_shards: int = 1
) -> Iterator[Transferred]:
    """Yield the result of each parameter's transfer, in the order in which they were sent.

    Args:
        sent: Weights sent by the trainer.
        received: Weights received by a replica of the engine.
        earlier: Weights sent before, the latest last; used to detect an older version in the engine.
        num_shards: Number of processes over which the engine distributes its tensors.
    """
    own, other = _by_key(sent), _by_key(received)
    last = _by_key(earlier[-1]) if earlier else {}
    found = compare_prints(prints_of(received), prints_of(sent), [prints_of(file) for file in earlier])
    order = {key: number for number, key in enumerate(dict.fromkeys([*own, *other]))}
    for row in sorted(found.rows, key=lambda row: order.get(row.key, len(order))):
        weight, arrived = own.get(row.key), other.get(row.key)
        before = last.get(row.key)
        unchanged = None if before is None or weight is None else before.identity == weight.identity
        yield _transferred(row, weight, arrived, num_shards, is_unchanged=unchanged)


def _transferred(
    row: TensorRow, sent: Weight | None, received: Weight | None, num_shards: int, *, is_unchanged: bool | None
) -> Transferred:
    transfer, reason = _TRANSFERS.get(row.relation, Transfer.DIFFERS), row.proof
    # A head that one side ties to its embedding is compared with that.
    is_tied = (row.name is None) == (row.golden_name is None) and (sent is None or received is None)
    if is_tied and row.relation in {Relation.EQUAL, Relation.CAST, Relation.PADDED}:
        transfer = Transfer.TIED
    known = [weight for weight in (sent, received) if weight is not None]
    if transfer is Transfer.DIFFERS and sent is not None and received is not None:
        if not all(weight.hash for weight in known) and sent.dtype != received.dtype:
            transfer = Transfer.UNVERIFIED
            reason = Said.of(TransferCode.NO_DIGEST, own=received.dtype, other=sent.dtype)
        elif not all(weight.hash for weight in known):
            reason = Said(TransferCode.BYTES)
        elif _is_shard(received.shape, sent.shape, num_shards):
            transfer = Transfer.UNVERIFIED
            shapes = {"own": str(list(received.shape)), "other": str(list(sent.shape))}
            reason = Said.of(TransferCode.SHARD, count=num_shards, **shapes)
    if transfer is Transfer.MISSING:
        reason = Said(TransferCode.NOT_RECEIVED)
    elif transfer is Transfer.EXTRA:
        reason = Said(TransferCode.NOT_SENT)
    elif transfer is Transfer.CAST and sent is not None and received is not None:
        reason = Said.of(TransferCode.BECAME, own=received.dtype, other=sent.dtype)
    name = sent.name if sent is not None else (row.golden_name if received is None else row.name)
    return Transferred(
        name=name or row.key, transfer=transfer, relation=row.relation, sent=sent, received=received,
        error=row.relative_l2, reason=reason, is_unchanged=is_unchanged,
    )  # fmt: skip


def _is_shard(received: Sequence[int], sent: Sequence[int], num_shards: int) -> bool:
    """Whether a shape is that of one of several equal shards along a dimension; rows of padding may be among them."""
    if num_shards < 2 or len(received) != len(sent) or tuple(received) == tuple(sent):
        return False
    others = [(own, whole) for own, whole in zip(received, sent, strict=True) if own != whole]
    return len(others) == 1 and others[0][0] >= math.ceil(others[0][1] / num_shards)


def _by_key(file: WeightsFile) -> dict[str, Weight]:
    return {weight.key or key_of(weight.name): weight for weight in file.parameters}


def prints_of(file: WeightsFile) -> CheckpointPrint:
    """Return the fingerprints in a file of a recorded transfer."""
    prints = {key: _print(key, weight) for key, weight in _by_key(file).items()}
    return CheckpointPrint(path=Path(), prints=prints, step=file.step)


def _print(key: str, weight: Weight) -> TensorPrint:
    count = math.prod(weight.shape)
    found = TensorPrint(
        key=key, name=weight.name, kind=Kind.WEIGHT, shape=weight.shape, dtype=weight.dtype,
        hash=int(weight.identity or "0", 16), casts={dtype: int(digest, 16) for dtype, digest in weight.casts.items()},
        turned={dtype: int(digest, 16) for dtype, digest in weight.turned.items()},
        squares=math.nan if weight.l2 is None else weight.l2**2,
        total=math.nan if weight.mean is None else weight.mean * count,
        low=math.nan if weight.min is None else weight.min, high=math.nan if weight.max is None else weight.max,
    )  # fmt: skip
    # Of a file of a former version, distances are not known.
    sketch = (
        weight.sketch if len(weight.sketch) == len(found.sketch) else np.full(len(found.sketch) // 4, np.nan, "<f4")
    )
    return msgspec.structs.replace(found, sketch=bytes(sketch))


def coarser_of(*dtypes: str) -> Precision | None:
    """Return the coarser precision; ``None`` if none is a floating-point dtype."""
    found = [precision for precision in map(precision_of, dtypes) if precision is not None]
    return max(found, default=None)


def assumed_precision(*dtypes: str) -> Precision:
    """Return the coarser precision; float32 if none is a floating-point dtype."""
    found = coarser_of(*dtypes)
    return Precision.FLOAT32 if found is None else found  # float64 is 0, so not ``or``


@dataclass(frozen=True, kw_only=True)
class Sync:
    """One transfer of all parameters to one replica.

    Attributes:
        step: The trainer's step.
        replica: Number of the replica.
        parameters: Result of each parameter's transfer.
    """

    step: int
    replica: int
    parameters: tuple[Transferred, ...]

    @property
    def faults(self) -> list[Transferred]:
        """Parameters whose value in the engine differs from the one sent."""
        return [one for one in self.parameters if one.transfer.is_fault]

    @property
    def cast(self) -> Precision | None:
        """Coarsest precision to which parameters were cast; ``None`` if none was."""
        dtypes = [
            one.received.dtype
            for one in self.parameters
            if one.received is not None and one.sent is not None and one.received.dtype != one.sent.dtype
        ]
        return coarser_of(*dtypes)


def syncs(run: RecordedRun, step: int) -> list[Sync]:
    """Return the transfers of the parameters sent in a step, by replica; empty if nothing was received.

    Raises:
        DumpError: a file cannot be read.
    """
    sent = run.weights(RLStage.WEIGHTS_SENT, step)
    if not sent:
        return []
    first = sent[min(sent)]
    earlier = [
        files[min(files)]
        for other in run.steps(RLStage.WEIGHTS_SENT.value)
        if other < step and (files := run.weights(RLStage.WEIGHTS_SENT, other))
    ]
    received = run.weights(RLStage.WEIGHTS_RECEIVED, step)
    num_shards = run.number("actor_rollout_ref.rollout.tensor_model_parallel_size") or 1
    return [
        Sync(step=step, replica=replica, parameters=tuple(transfers(first, file, earlier, num_shards=int(num_shards))))
        for replica, file in sorted(received.items())
    ]
