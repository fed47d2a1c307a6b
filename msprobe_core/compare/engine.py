"""Compare two dumps, two steps or two runs, and hold the result in memory."""

from __future__ import annotations

from pathlib import Path

from msprobe_core.compare.divergence import first_of_steps
from msprobe_core.compare.pairs import Chosen, find_pairs_of_modes
from msprobe_core.compare.result import ComparisonResult, UnitResult
from msprobe_core.compare.tensor_pass import Progress
from msprobe_core.compare.unit import CompareOptions, compare_unit
from msprobe_core.errors import CompareError, DumpError


def compare_dumps(
    target: Path | str,
    golden: Path | str,
    *,
    stack_path: Path | str | None = None,
    options: CompareOptions | None = None,
    chosen: Chosen | None = None,
    progress: Progress | None = None,
) -> ComparisonResult[UnitResult]:
    """Compare two dumps, all in this process and with all rows in memory; `msprobe_core.report.run` does without.

    Args:
        target: The run under test: a ``dump.json`` or ``dump.arrow``, a rank's, a step's or a run's directory.
        golden: The trusted run, of the same kind.
        stack_path: The target's ``stack.json`` if it is not beside the dump.
        options: How to compare; ``stack_path`` may be given there instead.
        chosen: Which steps and ranks.
        progress: Told how many tensors have been compared, and of how many.

    Returns: the result; a numeric difference is not an error.

    Raises:
        CompareError: the two have nothing in common, or are not of the same kind.
        DumpError: one of them cannot be read.
    """
    target, golden = Path(target), Path(golden)
    if options is None:
        options = CompareOptions(stack_path=None if stack_path is None else Path(stack_path))
    pairing = find_pairs_of_modes(target, golden, chosen)
    units: list[UnitResult] = []
    failed: list[str] = []
    for pair in pairing.pairs:
        try:
            units.append(compare_unit(pair, options, progress))
        except (CompareError, DumpError) as error:  # noqa: PERF203  # a pair of ranks costs more than a try
            if len(pairing.pairs) == 1:
                raise
            failed.append(f"{pair.label} could not be compared: {error}")
    if not units:
        raise CompareError(f"no rank of {target} and {golden} could be compared; {failed[0]}")
    first = [unit.label for unit in next(first_of_steps(units), ())]
    missing = [*pairing.missing, *failed]
    return ComparisonResult(target, golden, units, missing, options.limits, parted_first=first)
