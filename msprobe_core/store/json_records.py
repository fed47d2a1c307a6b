"""Decode records of ``dump.json`` with the most common structure without intermediate objects.

A record that deviates in anything is rejected here, and decoded again without expectations. That takes several times as
long and accepts every valid structure.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from msprobe_core.fingerprint.distance import SIZE_BYTES
from msprobe_core.model import Fp8Stats

LARGEST_EXACT = 2**53
"""Float64 represents all integers up to this one."""


def exact_text(high: Any, low: Any) -> str | None:
    """Return extremes as text if they are integers that float64 cannot represent."""
    if any(isinstance(value, int) and abs(value) > LARGEST_EXACT for value in (high, low)):
        return f"{high} and {low}"
    return None


class Leaf(
    msgspec.Struct,
    gc=False,
    rename={
        "high": "Max",
        "low": "Min",
        "mean": "Mean",
        "norm": "Norm",
        "checksum": "md5",
        "extra": "extra_statistics",
    },
):
    """A tensor, or another value with a type; a frame does not need any other field of a tensor."""

    type: str
    dtype: str | UnsetType = UNSET
    shape: tuple[int, ...] | UnsetType = UNSET
    high: Any = None
    low: Any = None
    mean: Any = None
    norm: Any = None
    requires_grad: bool | None = None
    num_nan: int | None = None
    num_inf: int | None = None
    checksum: str | None = None
    sketch: Annotated[bytes, Meta(min_length=SIZE_BYTES, max_length=SIZE_BYTES)] | None = None
    fp8: Fp8Stats | None = None
    extra: dict[str, Any] | None = None
    error: str | None = None
    data_name: str | int | None = None
    placements: Any = UNSET  # only for a part of a distributed tensor
    value: Any = UNSET


Node: TypeAlias = Leaf | list[Any] | None
"""A value of a part. Lists among the values are decoded without expectations."""

Part: TypeAlias = list[Node] | dict[str, Node]


class Call(msgspec.Struct):
    """A forward or backward record."""

    input_args: Part | None = None
    input: Part | None = None
    input_kwargs: Part | None = None
    parameters: Part | None = None
    output: Part | None = None
    output_kwargs: Part | None = None
    type: Any = UNSET  # only for the replacement of a record that could not be written


decode_call = msgspec.json.Decoder(Call).decode
"""Decode a forward or backward record. Raises `msgspec.MsgspecError`."""

decode_gradients = msgspec.json.Decoder(dict[str, list[Node] | dict[str, Any]]).decode
"""Decode a record of parameters' gradients by name; an object instead of a list is an execution field, or unusual."""
