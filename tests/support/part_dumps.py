"""Dumps of several ranks, made of arrays and held in memory."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from dumps import tensor

from msprobe_core.errors import DumpError
from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.fingerprint.place import Place
from msprobe_core.fingerprint.sketch import Sketcher
from msprobe_core.model import RunHeader
from msprobe_core.store.frame import FrameBuilder

SKETCHER = Sketcher(NumpyArrays())


@dataclass(frozen=True)
class ArraySource:
    values: np.ndarray
    dtype: str = "float32"

    @property
    def shape(self):
        return self.values.shape

    def chunks(self, num_elements: int) -> Iterator[np.ndarray]:
        flat = np.ravel(self.values)
        for begin in range(0, max(flat.size, 1), num_elements):
            yield flat[begin : begin + num_elements]


@dataclass
class ArrayDump:
    """A dump whose tensors are arrays."""

    data: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    rank: int = 0
    parents: Mapping[str, str | None] = field(default_factory=dict)
    stacks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    summary_mode: str = "statistics"
    task: str = "statistics"

    def __post_init__(self):
        builder = FrameBuilder()
        for entry, record in self.data.items():
            builder.add_entry(entry, record)
        self.frame = builder.build()
        self.path = Path(f"/run/step0/rank{self.rank}/dump.json")
        self.header = RunHeader(task=self.task, level="mix", framework="numpy", summary_mode=self.summary_mode)

    def open_tensor(self, file_name):
        if file_name not in self.tensors:
            raise DumpError(f"{file_name}: is missing")
        return ArraySource(self.tensors[file_name])


def part(values: np.ndarray, place: Place | None = None, *, fingerprints: bool = True, **fields: Any) -> dict[str, Any]:
    """Return the record of an array, with hash and sketch that count elements from ``place``."""
    array = np.asarray(values)
    if array.size:
        with np.errstate(all="ignore"):
            record = tensor(array, dtype=f"torch.{array.dtype}", shape=list(array.shape))
        if np.isfinite(array).all() and record["Norm"] == "Infinity":
            largest = float(np.abs(array).max())
            record["Norm"] = largest * float(np.linalg.norm(array / largest))
        record |= {"num_nan": int(np.isnan(array).sum()), "num_inf": int(np.isinf(array).sum())}
    else:
        record = {"type": "torch.Tensor", "dtype": f"torch.{array.dtype}", "shape": list(array.shape)}
        record |= dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    if fingerprints:
        record["md5"] = f"0x{int(hash_of(array, place=place)[0]) & (1 << 64) - 1:016x}"
        if array.size:
            sketch = SKETCHER.sketch(array, place).astype("<f4").tobytes()
            record["sketch"] = base64.b64encode(sketch).decode()
    return record | fields


def sketch_of(values: np.ndarray) -> np.ndarray:
    return SKETCHER.sketch(np.asarray(values))
