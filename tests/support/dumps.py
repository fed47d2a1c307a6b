"""Small dumps written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def tensor(values: Any = 1.0, *, dtype: str = "torch.float32", shape: list[int] | None = None, **fields: Any) -> dict:
    """Return a tensor record with the statistics of ``values``."""
    array = np.asarray(values, np.float64)
    record = {
        "type": "torch.Tensor",
        "dtype": dtype,
        "shape": list(array.shape) if shape is None else shape,
        "Max": number(array.max()),
        "Min": number(array.min()),
        "Mean": number(array.mean()),
        "Norm": number(np.sqrt((array**2).sum())),
        "requires_grad": True,
    }
    return record | fields


def number(value: float) -> float | str:
    """Return a number as strict JSON has it."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(value)


def api(*inputs: Any, output: Any, **kwargs: Any) -> dict:
    """Return the forward record of an API call."""
    return {"input_args": list(inputs), "input_kwargs": kwargs, "output": [output]}


def write_dump(
    directory: Path, data: dict[str, Any], *, parents: dict | None = None, stacks: dict | None = None, **header
):
    """Write a dump and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": data}
    path = directory / "dump.json"
    path.write_text(json.dumps(content | header))
    if parents is not None:
        (directory / "construct.json").write_text(json.dumps(parents))
    if stacks is not None:
        (directory / "stack.json").write_text(json.dumps(stacks))
    return path
