"""Compare sent and received weights, parameter by parameter: by checksums, and by norms if those differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from msprobe.verl._compare.recorded import RecordedRun
from msprobe.verl._files import Stage, Weight, WeightsFile
from msprobe.verl._module_maps import FSDP
from msprobe_core.comparison import UNIT_ROUNDOFF, Precision, precision_of


class Transfer(str, Enum):
    """Result of a parameter's transfer to the engine."""

    EQUAL = "equal"
    CAST = "cast"
    FUSED = "fused"
    OUTDATED = "as sent earlier"
    DIFFERS = "differs"
    MISSING = "missing"
    EXTRA = "not sent"

    @property
    def is_fault(self) -> bool:
        """Whether the engine does not have the value that it should have."""
        return self in {Transfer.OUTDATED, Transfer.DIFFERS, Transfer.MISSING}


@dataclass(frozen=True, kw_only=True)
class Transferred:
    """One parameter.

    Attributes:
        name: Name as sent; for fused parameters, as received.
        transfer: Result of the transfer.
        sent: The parameter as sent; ``None`` if it was not sent.
        received: The parameter as received; ``None`` if it was not received.
        error: Relative difference of the norms, if the bytes differ; ``None`` if unknown.
        reason: Further explanation.
        is_unchanged: Whether the sent value is that of the previous step; ``None`` if unknown.
    """

    name: str
    transfer: Transfer
    sent: Weight | None
    received: Weight | None
    error: float | None = None
    reason: str = ""
    is_unchanged: bool | None = None


_CAST_ROUNDOFFS = 4.0
"""Largest difference of a cast tensor's norm, in unit round-offs: roundings of elements average out."""


def transfers(sent: WeightsFile, received: WeightsFile, earlier: Sequence[WeightsFile] = ()) -> Iterator[Transferred]:
    """Yield the result of each parameter's transfer.

    Args:
        sent: Weights sent by the trainer.
        received: Weights received by a replica of the engine.
        earlier: Weights sent before, the latest last; used to detect an older version in the engine.
    """
    own = {weight.name: weight for weight in received.parameters}
    fused = _fused_parts(own, {weight.name: weight for weight in sent.parameters})
    of_parts = {part.name for parts in fused.values() for part in parts}
    last = {weight.name: weight for weight in earlier[-1].parameters} if earlier else {}
    known = {(weight.name, weight.crc32) for file in earlier for weight in file.parameters}
    for weight in sent.parameters:
        before = last.get(weight.name)
        unchanged = None if before is None else before.crc32 == weight.crc32
        if weight.name in own:
            yield _transferred(weight, own[weight.name], known, is_unchanged=unchanged)
        elif weight.name not in of_parts:
            yield Transferred(
                name=weight.name, transfer=Transfer.MISSING, sent=weight, received=None, is_unchanged=unchanged,
                reason="sent and not received",
            )  # fmt: skip
    names = {weight.name for weight in sent.parameters}
    for name, weight in own.items():
        if name in fused:
            yield _fused(weight, fused[name])
        elif name not in names:
            yield Transferred(
                name=name, transfer=Transfer.EXTRA, sent=None, received=weight, reason="received and not sent"
            )


def _transferred(
    sent: Weight, received: Weight, earlier: set[tuple[str, str]], *, is_unchanged: bool | None
) -> Transferred:
    error = _relative(received.l2, sent.l2)
    if sent.dtype == received.dtype and sent.crc32 == received.crc32 and sent.shape == received.shape:
        transfer, reason, error = Transfer.EQUAL, "", 0.0
    elif sent.shape != received.shape:
        transfer, reason = Transfer.DIFFERS, f"shape {list(sent.shape)} became {list(received.shape)}"
    elif sent.dtype != received.dtype:
        transfer, reason = _cast(sent, received, error)
    elif (sent.name, received.crc32) in earlier:
        transfer, reason = Transfer.OUTDATED, "the engine has what was sent at an earlier step"
    else:
        transfer, reason = Transfer.DIFFERS, "the bytes differ"
    return Transferred(
        name=sent.name, transfer=transfer, sent=sent, received=received, error=error, reason=reason,
        is_unchanged=is_unchanged,
    )  # fmt: skip


def _cast(sent: Weight, received: Weight, error: float | None) -> tuple[Transfer, str]:
    coarser = coarser_of(sent.dtype, received.dtype)
    said = f"{sent.dtype} became {received.dtype}"
    if coarser is None or error is None:
        return Transfer.CAST, f"{said}; the values could not be compared"
    if error <= _CAST_ROUNDOFFS * UNIT_ROUNDOFF[coarser]:
        return Transfer.CAST, said
    return Transfer.DIFFERS, f"{said}, and the norm is {error:.2g} off, which the cast does not explain"


def _relative(norm: float | None, expected: float | None) -> float | None:
    """Return the difference of a norm from the expected one, relative to the latter; ``None`` if one is unknown."""
    if norm is None or expected is None:
        return None
    return abs(norm - expected) / expected if expected else (0.0 if not norm else math.inf)


def coarser_of(*dtypes: str) -> Precision | None:
    """Return the coarser precision; ``None`` if none is a floating-point dtype."""
    found = [precision for precision in map(precision_of, dtypes) if precision is not None]
    return max(found, default=None)


def assumed_precision(*dtypes: str) -> Precision:
    """Return the coarser precision; float32 if none is a floating-point dtype."""
    found = coarser_of(*dtypes)
    return Precision.FLOAT32 if found is None else found  # float64 is 0, so not ``or``


def _fused_parts(received: Mapping[str, Weight], sent: Mapping[str, Weight]) -> dict[str, list[Weight]]:
    """Return, by name of a fused parameter, the parameters that it consists of."""
    found: dict[str, list[Weight]] = {}
    for name in received:
        if name in sent:
            continue
        modules = name.split(".")
        for whole, parts in FSDP.fused.items():
            if whole not in modules[1:]:
                continue
            place = len(modules) - 1 - modules[::-1].index(whole)
            names = [".".join([*modules[:place], part, *modules[place + 1 :]]) for part in parts]
            if all(part in sent for part in names):
                found[name] = [sent[part] for part in names]
    return found


def _fused(received: Weight, parts: Sequence[Weight]) -> Transferred:
    """Compare a fused parameter with its parts by the norm, ``|whole|^2 = sum |part|^2``."""
    made = partial(Transferred, name=received.name, sent=None, received=received)
    named = " + ".join(part.name.rpartition(".")[0].rpartition(".")[2] for part in parts)
    rows = sum(part.shape[0] for part in parts if part.shape)
    if received.shape and rows != received.shape[0]:
        return made(transfer=Transfer.DIFFERS, reason=f"{named} have {rows} rows and it has {received.shape[0]}")
    norms = [part.l2 for part in parts if part.l2 is not None]
    whole = math.sqrt(sum(norm * norm for norm in norms)) if len(norms) == len(parts) else None
    error = _relative(received.l2, whole)
    if error is None:
        return made(transfer=Transfer.FUSED, reason=f"{named}; norms are not known")
    precision = assumed_precision(received.dtype, *(part.dtype for part in parts))
    is_cast = any(part.dtype != received.dtype for part in parts)
    allowed = _CAST_ROUNDOFFS * UNIT_ROUNDOFF[precision] if is_cast else UNIT_ROUNDOFF[Precision.FLOAT32]
    if error <= allowed:
        return made(transfer=Transfer.FUSED, error=error, reason=f"{named}, by the norm")
    return made(transfer=Transfer.DIFFERS, error=error, reason=f"its norm is {error:.2g} off that of {named}")


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
    sent = run.weights(Stage.WEIGHTS_SENT, step)
    if not sent:
        return []
    first = sent[min(sent)]
    earlier = [
        files[min(files)]
        for other in run.steps(Stage.WEIGHTS_SENT.value)
        if other < step and (files := run.weights(Stage.WEIGHTS_SENT, other))
    ]
    received = run.weights(Stage.WEIGHTS_RECEIVED, step)
    return [
        Sync(step=step, replica=replica, parameters=tuple(transfers(first, file, earlier)))
        for replica, file in sorted(received.items())
    ]
