"""Compare the gradients of two trainings, whatever has recorded them."""

from __future__ import annotations

import os
from pathlib import Path

from msprobe_core.errors import CompareError, NothingInCommonError
from msprobe_core.gradients.norms import compare_norms
from msprobe_core.gradients.probe_layout import probed_ranks, tabled_ranks
from msprobe_core.gradients.signs import compare_signs
from msprobe_core.gradients.similarity import GradientComparison
from msprobe_core.gradients.sketched import compare_sketches, sketched_ranks


def compare_gradients(target: str | os.PathLike[str], golden: str | os.PathLike[str]) -> GradientComparison:
    """Compare gradients that the task ``grad_probe`` or a training monitor has recorded.

    Args:
        target: Directory of the training under test.
        golden: Directory of the trusted one.

    Raises:
        CompareError: there are no gradients, or they were recorded in different ways, or have nothing in common.
        DumpError: something cannot be read.
    """
    target, golden = Path(target), Path(golden)
    if probed_ranks(target) and probed_ranks(golden):
        found = compare_signs(target, golden)
    elif sketched_ranks(target) and sketched_ranks(golden):
        found = compare_sketches(target, golden)
    elif tabled_ranks(target) and tabled_ranks(golden):
        found = compare_norms(target, golden)
    else:
        lacking = next((path for path in (target, golden) if not probed_ranks(path) and not sketched_ranks(path)), None)
        raise CompareError(
            f"{target} and {golden}: one has signs and the other has sketches of gradients; record both alike"
            if lacking is None
            else f"{lacking}: has neither gradients of the task 'grad_probe' nor sketches of a monitor "
            '("msprobe": {"sketch": "grad"}); norms of a monitor are compared by `msprobe monitor compare`'
        )
    if not found.agreements:
        reasons = "; ".join(each.text for each in found.lacking)
        raise NothingInCommonError(f"{target} and {golden} have no gradient in common: {reasons}")
    return found
