"""The tables of ``acc_check`` as they are published for MindSpore: nine columns of details, with English names."""

from __future__ import annotations

import math
import string

from msprobe_core.api_check.verdict import OutputVerdict
from msprobe_core.compat.published_tables import (
    BENCH_DTYPE,
    MESSAGE,
    NAME,
    PYTORCH,
    SHAPE,
    TableForm,
    golden_dtype,
    status_cells,
)

_TESTED_DTYPE, _COSINE, _MAX_ABSOLUTE, _MAX_RELATIVE = "Tested Dtype", "Cosine", "MaxAbsErr", "MaxRelativeErr"

MINDSPORE_COLUMNS = (
    NAME, BENCH_DTYPE, _TESTED_DTYPE, SHAPE, _COSINE, _MAX_ABSOLUTE, _MAX_RELATIVE, "Status", MESSAGE,
)  # fmt: skip


def _cells(name: str, output: OutputVerdict, decimals: int) -> dict[str, str]:  # noqa: ARG001 - all digits
    metrics = output.published
    numbers = {
        _COSINE: metrics.cosine, _MAX_ABSOLUTE: metrics.max_absolute, _MAX_RELATIVE: metrics.max_relative
    }  # fmt: skip
    dtypes = {BENCH_DTYPE: _mindspore_dtype(golden_dtype(output.dtype)), _TESTED_DTYPE: _mindspore_dtype(output.dtype)}
    written = {column: _shortest(value) for column, value in numbers.items() if value is not None}
    return {NAME: name, **dtypes, SHAPE: str(output.shape), **status_cells(output), **written}


def _shortest(value: float) -> str:
    """Return the shortest number that reads as this one, such as ``2.384185791015625e-07``."""
    return repr(float(value)) if math.isfinite(value) else str(value)


def _mindspore_dtype(dtype: str) -> str:
    """Return a dtype as MindSpore names it: ``BFloat16``, ``UInt8``, ``Float8E4M3FN``."""
    after = dtype.lstrip(string.ascii_lowercase)
    kind, rest = dtype[: len(dtype) - len(after)], after.lstrip(string.digits)
    digits = after[: len(after) - len(rest)]
    return _KINDS.get(kind, kind.capitalize()) + digits + rest.removeprefix("_").upper()


_KINDS = {"bfloat": "BFloat", "uint": "UInt"}

MINDSPORE = TableForm(columns=MINDSPORE_COLUMNS, cells=_cells, blank="", has_mark=False)
"""The form of the table for MindSpore."""


def form_of(framework: str) -> TableForm:
    """Return the form in which tables for a framework are published; that of PyTorch for all but MindSpore."""
    return {"mindspore": MINDSPORE}.get(framework, PYTORCH)
