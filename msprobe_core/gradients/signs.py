"""Compare gradients by the signs that the task ``grad_probe`` has recorded, here or with an older tool."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe_core.errors import DumpError
from msprobe_core.gradients.gradients_codes import GradientCode
from msprobe_core.gradients.lacking import Lacking
from msprobe_core.gradients.probe_layout import (
    COUNTED_DIRECTORY,
    matched_ranks,
    matched_steps,
    probed_ranks,
    probed_steps,
    sign_files,
    summary_file,
)
from msprobe_core.gradients.similarity import Agreement, Basis, GradientComparison
from msprobe_core.store.layout import tensor_file_name
from msprobe_core.store.tensors import read_tensor
from msprobe_core.untrusted.files import read_plain

_Flags = NDArray[np.bool_]

_MAX_SUMMARY_BYTES = 256 << 20

_NUMBER = re.compile(r"(\d+)", re.ASCII)


def compare_signs(target: Path, golden: Path) -> GradientComparison:
    """Compare the signs of two trainings' gradients.

    Args:
        target: What was recorded of the training under test: the directory of all ranks, or of one.
        golden: That of the trusted one.

    Raises:
        DumpError: a directory cannot be read.
    """
    lacking = Lacking()
    agreements = [
        each
        for rank, own, other in matched_ranks(probed_ranks(target), probed_ranks(golden), lacking)
        for each in _of_rank(rank, own, other, lacking)
    ]
    return GradientComparison(basis=Basis.SIGNS, agreements=agreements, lacking=lacking.result())


def _of_rank(rank: int, target: Path, golden: Path, lacking: Lacking) -> Iterator[Agreement]:
    own, other = probed_steps(target), probed_steps(golden)
    for step in matched_steps(rank, own, other, lacking):
        files, others = sign_files(own[step]), sign_files(other[step])
        names = _names(golden, step) or _names(target, step)
        order = _in_order({*files} | {*others}, names)
        for position, stem in enumerate(order):
            name = names.get(stem, stem)
            if stem not in files or stem not in others:
                lacking.note(GradientCode.PARAMETERS_MISSING, rank=rank, parameter=name, step=step)
                continue
            try:
                found = _agreement(files[stem], others[stem])
            except DumpError as error:
                lacking.note(GradientCode.UNREADABLE, rank=rank, parameter=name, step=step, why=str(error))
                continue
            if isinstance(found, tuple):
                sizes = {"own": found[0], "other": found[1]}
                lacking.note(GradientCode.SIZE_DIFFERS, rank=rank, parameter=name, step=step, **sizes)
                continue
            if found.counts_all:
                lacking.note(GradientCode.ALL_COUNT)
            yield Agreement(
                rank=rank,
                step=step,
                parameter=name,
                position=position,
                num_elements=found.num_elements,
                similarity=1 - found.num_differing / found.num_elements if found.num_elements else 1.0,
                num_counted=found.num_counted,
                counted_similarity=1 - found.num_counted_differing / found.num_counted if found.num_counted else 1.0,
            )


def _names(directory: Path, step: int) -> dict[str, str]:
    """Return the parameters' names by what their files are named, in the order of the step's table; may be empty."""
    try:
        text = read_plain(summary_file(directory, step), _MAX_SUMMARY_BYTES).decode("utf-8", "replace")
        rows = list(csv.reader(io.StringIO(text)))
    except (OSError, csv.Error):
        return {}
    names = [row[0] for row in rows[1:] if row]
    return {tensor_file_name(name, ".npy").removesuffix(".npy"): name for name in names}


def _in_order(stems: set[str], names: Mapping[str, str]) -> list[str]:
    """Return the files of parameters in the order of the model if the table says it, else by name."""
    known = [stem for stem in names if stem in stems]
    unknown = stems.difference(known)
    return [*known, *sorted(unknown, key=_by_numbers)]


def _by_numbers(text: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part[:18]), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(text))


@dataclass(frozen=True, kw_only=True)
class _Counts:
    num_elements: int
    num_differing: int
    num_counted: int
    num_counted_differing: int
    counts_all: bool


def _agreement(target: Path, golden: Path) -> _Counts | tuple[int, int]:
    """Count the signs of two files; return both sizes if they differ.

    Raises:
        DumpError: a file cannot be read.
    """
    own, other = _flags(target), _flags(golden)
    if own.size != other.size:
        return own.size, other.size
    differs = own != other
    num_differing = int(differs.sum())
    counted = [_counted(path, own.size) for path in (target, golden)]
    if counted[0] is None or counted[1] is None:
        num_counted, num_counted_differing = own.size, num_differing
    else:
        counts = counted[0] | counted[1]
        num_counted, num_counted_differing = int(counts.sum()), int((counts & differs).sum())
    return _Counts(
        num_elements=own.size,
        num_differing=num_differing,
        num_counted=num_counted,
        num_counted_differing=num_counted_differing,
        counts_all=any(each is None for each in counted),
    )


def _flags(path: Path) -> _Flags:
    """Return whether elements are positive, as a vector.

    Raises:
        DumpError: it cannot be read, or has no numbers.
    """
    values: Any = read_tensor(path)
    if values.dtype.kind not in "biuf":
        raise DumpError(f"{path}: holds values of the type {values.dtype}, not signs of a gradient")
    flags: Any = values if values.dtype.kind == "b" else values > 0
    return flags.ravel()


def _counted(path: Path, num_elements: int) -> _Flags | None:
    """Return which elements count, as a vector; ``None`` if that was not recorded."""
    bits = path.parents[1] / COUNTED_DIRECTORY / path.parent.name / path.with_suffix(".npy").name
    if path.suffix != ".npy" or not bits.is_file():
        return None
    packed: Any = read_tensor(bits)
    if packed.dtype != np.uint8 or packed.size != -(-num_elements // 8):
        raise DumpError(f"{bits}: does not belong to {path}: it has {packed.size:,} bytes; copy both again")
    return np.unpackbits(packed.ravel(), count=num_elements).astype(np.bool_)
