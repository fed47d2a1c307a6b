"""The text of scripts that repeat one call. Everything from a dump is a literal in it, or a comment of one line."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_core.interception import literal
from msprobe_core.model import CallScript, ReplayTensor
from msprobe_core.store.atomic_file import whole_file

MOST_INLINE = 4096
"""Limit of the size of all tensors that are written in a script, in bytes; larger ones are in a file beside it."""

_READABLE = 16
"""Largest number of elements that are written as numbers."""

_STANDARD = {
    "argparse": "argparse.", "functools": "functools.", "math": "math.", "sys": "sys.", "b64decode": "b64decode(",
    "Path": "Path(",
}  # fmt: skip
"""Names that scripts import, by a text that uses them."""

_FROM = {"b64decode": "base64", "Path": "pathlib"}


def script_text(
    title: Sequence[str],
    constants: Sequence[str],
    script: CallScript,
    functions: Iterable[str],
    end: str,
    *,
    is_packed: bool = False,
) -> str:
    """Return a script.

    Args:
        title: Lines of comments at its top.
        constants: Blocks of lines at the top.
        script: The call.
        functions: Sources of functions beside those of the call.
        end: What the script does.
        is_packed: Whether no empty lines are between its functions.
    """
    above = [*constants, *([script.constants] if script.constants else [])]
    formula = [script.formula] if script.formula else []
    blocks = ["\n".join(above), *formula, script.call, *script.parts, *functions, end]
    code = ("\n" if is_packed else "\n\n").join(blocks)
    needed = [name for name, use in _STANDARD.items() if use in code]
    plain = [name for name in needed if name not in _FROM]
    plain = [f"import {', '.join(plain)}"] if is_packed else [f"import {name}" for name in plain]
    of_names = sorted(f"from {_FROM[name]} import {name}" for name in needed if name in _FROM)
    third = ["try:", "    import numpy as np", f"    {script.imports}", "except ImportError as error:"]
    third += ['    sys.exit(print(f"could not run: {error}", file=sys.stderr) or 2)']
    space = [] if is_packed else [""]
    return "\n".join(["#!/usr/bin/env python3", *title, *plain, *of_names, *space, *third, *space, f"{code}\n"])


def comment(text: str) -> str:
    """Return a text for a comment: nothing in it ends the line, or reads otherwise than it is."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def table(name: str, rows: Sequence[str], *, is_packed: bool) -> str:
    """Return the assignment of a dict, with one row per line, or in one line."""
    if is_packed or not rows:
        return f"{name} = {{{' '.join(rows).rstrip(',')}}}"
    return "\n".join((f"{name} = {{", *(f"    {row}" for row in rows), "}"))


def inline_rows(tensors: Mapping[str, ReplayTensor], dtypes: Mapping[str, str]) -> list[str]:
    """Return rows of a table with the values of tensors, as numbers if there are few and in base64 otherwise.

    Args:
        tensors: By name.
        dtypes: Expressions of their dtypes; the others are written as texts.
    """
    return [_row(name, value, dtypes, _values_text(_portable(value.values))) for name, value in tensors.items()]


def stored_rows(
    tensors: Mapping[str, ReplayTensor], dtypes: Mapping[str, str], offsets: Mapping[str, int]
) -> list[str]:
    """Return rows of a table with the places of tensors in a file; see `inline_rows`."""
    return [_row(name, value, dtypes, str(offsets[name])) for name, value in tensors.items()]


def _row(name: str, value: ReplayTensor, dtypes: Mapping[str, str], values: str) -> str:
    kind, shape = _portable(value.values).dtype.str, tuple(map(int, value.values.shape))
    dtype = dtypes.get(value.dtype) or literal(value.dtype)
    return f"{literal(name)}: ({dtype}, {literal(kind)}, {literal(shape)}, {values}),"


def _portable(values: Any) -> Any:
    """Return an array in C order and little-endian."""
    array: Any = np.ascontiguousarray(values)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _values_text(array: Any) -> str:
    if array.size <= _READABLE and array.dtype.kind in "biuf":
        return literal(array.reshape(-1).tolist())
    return literal(b64encode(array.tobytes()).decode("ascii"))


JUDGING = """\
parser = argparse.ArgumentParser(description="Is the result of this call right?")
parser.add_argument("--device", default=DEVICE, help="where to compute it again: cpu, cuda or npu")
device, status = parser.parse_args().device, 0
try:
    exact = EXACT
    for side in ("recorded", device):
        results = run(device, is_wide=False) if side == device else {name: load(*RECORDED[name]) for name in RECORDED}
        for name in [name for name in ALLOWED if name in results]:
            is_right, words = JUDGE(results[name].ravel(), exact[name].ravel(), ALLOWED[name])
            print(f"{side:8} {name}: {'right' if is_right else 'WRONG'}, {words}")
            status = status if is_right else 1
except Exception as error:
    print(f"could not run: {type(error).__name__}: {error}", file=sys.stderr)
    status = status or 2
sys.exit(status)"""
"""What a reproducer does.

``JUDGE`` is the function that judges its results, ``EXACT`` an expression of what they are compared with, and
``DEVICE`` one of where the call is made again.
"""


# --- files beside scripts -----------------------------------------------------------------------------------------

_KINDS = {
    "<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8", "<u8": "U64",
    "<u4": "U32", "<u2": "U16", "|u1": "U8", "|b1": "BOOL", "<c8": "C64",
}  # fmt: skip
"""Source: https://github.com/huggingface/safetensors, section Format."""


def write_safetensors(path: Path, tensors: Mapping[str, ReplayTensor]) -> dict[str, int]:
    """Write a ``.safetensors`` file for its owner, and return the offset of each tensor in it, in bytes.

    Complex numbers of 16 bytes, which the format does not have, are pairs of float64.

    Raises:
        StoreError: it cannot be written.
    """
    header: dict[str, Any] = {}
    end = 0
    for name, value in tensors.items():
        array, shape = _portable(value.values), [int(length) for length in value.values.shape]
        kind, begin, end = _KINDS.get(array.dtype.str), end, end + array.nbytes
        shape = shape if kind is not None else [*shape, 2]
        header[name] = {"dtype": kind or "F64", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # elements are aligned
    with whole_file(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            file.write(_portable(value.values).tobytes())
    return {name: 8 + len(text) + entry["data_offsets"][0] for name, entry in header.items()}


def num_bytes(tensors: Mapping[str, ReplayTensor]) -> int:
    """Return the size of tensors in a script or a file."""
    return sum(math.prod(value.values.shape) * value.values.dtype.itemsize for value in tensors.values())
