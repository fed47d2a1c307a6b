"""Similarity of two checkpoints in the form that ``config_check -c`` of `mindstudio-probe` writes.

One JSON object: for each parameter of both, in order of names, ``l2``, ``cos``, ``numel`` and ``shape``; for other
shapes null, null, and the numbers of both sides.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from msprobe_core.checkpoint.contents import Checkpoint, kinds_of
from msprobe_core.checkpoint.matching import match_tensors
from msprobe_core.checkpoint.pair_pass import compare_pair, measure_pair
from msprobe_core.compare.tensor_metrics import Workspace
from msprobe_core.errors import ExistsError, NothingInCommonError
from msprobe_core.store.atomic_file import write_json


def write_similarity(a: Path, b: Path, out: Path) -> int:
    """Write the similarity of two checkpoints; return the number of parameters of both.

    Args:
        a: A checkpoint.
        b: Another one.
        out: File to write, which must not exist.

    Raises:
        StoreError: there is such a file, or it cannot be written.
        DumpError: a checkpoint cannot be read.
        CompareError: they have no parameter in common.
    """
    from msprobe_core.checkpoint.opening import open_checkpoint

    if out.exists() or out.is_symlink():
        raise ExistsError(f"{out}: exists and is not replaced; choose another file")
    found = similarity_of(open_checkpoint(a), open_checkpoint(b))
    if not found:
        raise NothingInCommonError(f"{a} and {b} have no parameter in common; give two checkpoints of one model")
    write_json(out, found)
    return len(found)


def similarity_of(a: Checkpoint, b: Checkpoint) -> dict[str, dict[str, Any]]:
    """Return the entries, by name in ``a``."""
    workspace = Workspace()
    found: dict[str, dict[str, Any]] = {}
    for pair in match_tensors(a, b, kinds_of(has_optimizer=False)).pairs:
        if pair.target is None or pair.golden is None or pair.is_tied:
            continue
        own, other = pair.target.tensor, pair.golden.tensor
        if own.damage is not None or other.damage is not None:
            continue
        if own.shape != other.shape:
            numel, shape = [own.numel, other.numel], [list(own.shape), list(other.shape)]
            found[pair.target.name] = {"l2": None, "cos": None, "numel": numel, "shape": shape}
            continue
        numbers = compare_pair(own, other, workspace)
        if numbers.rounding is not None:  # it differs by the rounding
            numbers = measure_pair(own, other, workspace)
        cosine = None if math.isnan(numbers.cosine) else numbers.cosine
        entry = {"l2": numbers.l2, "cos": cosine, "numel": own.numel, "shape": list(own.shape)}
        found[pair.target.name] = entry
    return dict(sorted(found.items()))
