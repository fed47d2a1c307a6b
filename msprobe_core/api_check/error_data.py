"""Inputs and results of calls that are not right, as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from msprobe_core.model import Phase, ReplayTensor
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory


def save_error_data(directory: Path, call: RecordedCall, oracle: Mapping[str, ReplayTensor]) -> None:
    """Write inputs and results of a call as ``.npy``, with the names of mindstudio-probe 26.x.

    ``{api}.forward.input.{path}``, ``….output.device.{path}`` for recorded results and ``….output.bench.{path}`` for
    those in float64. For a backward, inputs are the gradients of the outputs. bfloat16 and float8 become float32.

    Raises:
        OSError, StoreError: a file cannot be written.
    """
    make_directory(directory)
    is_backward = call.site.phase is Phase.BACKWARD
    given = {path: value for path, value in call.tensors.items() if path.startswith("gradient.") is is_backward}
    parts = {"input": given, "output.device": call.outputs, "output.bench": oracle}
    for part, tensors in parts.items():
        for path, value in tensors.items():
            file = directory / f"{call.entry}.{part}.{path.removeprefix('gradient.')}.npy"
            with whole_file(file) as opened:
                np.save(opened, np.asarray(value.values), allow_pickle=False)
