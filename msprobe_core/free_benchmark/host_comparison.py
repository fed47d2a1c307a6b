"""Sampled calls on the device and on the host: what each gives there, side by side.

The rule is the published one of on-line dispatch: a result fails if its cosine similarity is below 0.99 while an
element is off by more than 0.001, or if the similarity is below 0.9, or if an element is off by more than 1. The
verdict of the noise model is in the lines of ``free_benchmark.jsonl`` beside it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from msprobe_core.config.schema import DumpMode, TaskOptions
from msprobe_core.errors import StoreError
from msprobe_core.model import ReplayTensor
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.store.atomic_file import csv_text, whole_file
from msprobe_core.store.layout import create_file, make_directory

_logger = logging.getLogger(__name__)

COLUMNS = ("step", "api_name", "stage", "output_index", "dtype", "shape", "cosine", "max_abs_error", "result")
_LEAST_COSINE, _LEAST_COSINE_OF_LARGE = 0.9, 0.99
_LARGE_ERROR, _LARGEST_ERROR = 1e-3, 1.0


class Difference(NamedTuple):
    """How far two results are apart; NaN where nothing can be said."""

    cosine: float
    max_abs_error: float

    @property
    def passes(self) -> bool:
        """Whether the published rule accepts it; NaN on one side only does not pass."""
        is_far = self.cosine < _LEAST_COSINE_OF_LARGE and self.max_abs_error > _LARGE_ERROR
        return not (is_far or self.cosine < _LEAST_COSINE or not self.max_abs_error <= _LARGEST_ERROR)


def difference_of(one: ReplayTensor, other: ReplayTensor) -> Difference:
    """Return how far a result on the device is from that on the host."""
    a, b = (np.asarray(each.values).astype(_wide(each.values)).ravel() for each in (one, other))
    if a.shape != b.shape:
        return Difference(0.0, float("inf"))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return Difference(1.0, 0.0)
    with np.errstate(all="ignore"):
        error = float(np.abs(a - b)[~same].max())
        norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
        cosine = float(np.vdot(a, b).real) / norms if norms else 0.0
    return Difference(cosine, error)


def _wide(values: NDArray[np.generic]) -> type[np.complex128 | np.float64]:
    return np.complex128 if np.iscomplexobj(values) else np.float64


@dataclass
class HostComparison:
    """Writes ``msprobe_rank{R}_{time}/compare_result_{time}.csv``, and results of calls as ``dump_mode`` says.

    Attributes:
        root: Directory of the run.
        options: The configuration.
        device: Kind of the device, the name of the directory of its results.
        rank: Of this process.
        step: The current step.
    """

    root: Path
    options: TaskOptions
    device: str
    rank: int | None = None
    step: int = 0
    _stamp: str = field(default_factory=lambda: time.strftime("%Y%m%d%H%M%S"))
    _directory: Path | None = None
    _has_failed: bool = False

    @property
    def directory(self) -> Path:
        """Directory of the files."""
        if self._directory is None:
            self._directory = self.root / f"msprobe_rank{self.rank or 0}_{self._stamp}"
        return self._directory

    def take(
        self, call: RecordedCall, on_device: Mapping[str, ReplayTensor], on_host: Mapping[str, ReplayTensor]
    ) -> None:
        """Write rows for the outputs of a call."""
        if self._has_failed:
            return
        found = {path: difference_of(on_device[path], on_host[path]) for path in call.outputs}
        try:
            self._append([self._row(call, path, on_device[path], each) for path, each in found.items()])
            if self._keeps(call, fails=not all(each.passes for each in found.values())):
                self._save(call, self.device, on_device)
                self._save(call, "cpu", on_host)
        except (StoreError, OSError) as error:
            self._has_failed = True
            _logger.warning("free_benchmark: no further results of both devices are written: %s", error)

    def _row(self, call: RecordedCall, path: str, value: ReplayTensor, found: Difference) -> tuple[object, ...]:
        return (
            self.step, call.entry.removesuffix(f".{call.site.phase.value}"), call.site.phase.value, path, value.dtype,
            list(map(int, value.values.shape)), found.cosine, found.max_abs_error, "pass" if found.passes else "fail",
        )  # fmt: skip

    def _keeps(self, call: RecordedCall, *, fails: bool) -> bool:
        mode = self.options.dump_mode
        if mode is DumpMode.LIST:
            return any(name in call.entry for name in self.options.list)
        return mode is DumpMode.ALL or (mode is DumpMode.AUTO and fails)

    def _append(self, rows: list[tuple[object, ...]]) -> None:
        path = self.directory / f"compare_result_{self._stamp}.csv"
        if not path.exists():
            make_directory(self.directory)
            create_file(path).close()
            rows = [COLUMNS, *rows]
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            file.write(csv_text(rows).encode())

    def _save(self, call: RecordedCall, side: str, results: Mapping[str, ReplayTensor]) -> None:
        directory = self.directory / side
        make_directory(directory)
        for path in call.outputs:
            file = directory / f"step{self.step}.{call.entry}.output.{path}.npy"
            with whole_file(file) as opened:
                np.save(opened, np.asarray(results[path].values), allow_pickle=False)
