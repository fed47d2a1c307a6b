"""Compare the errors of two devices by the published benchmark standard: how much worse the first may be."""

from __future__ import annotations

from msprobe_core.api_check.published import ratio_to
from msprobe_core.api_check.standards import Algorithm, standards
from msprobe_core.api_check.three_way_codes import ThreeWayCode
from msprobe_core.api_check.verdict import OutputVerdict
from msprobe_core.findings import Finding, Level


def benchmark_ratio(target: OutputVerdict, golden: OutputVerdict) -> Finding | None:
    """Return which metrics of a result exceed those of the golden device by more than its class allows.

    The golden metric counts as the dtype's minimum error at least; limits are those of ``standards.yaml``.

    Args:
        target: The result of the device that is judged.
        golden: That of the device that it need only be as good as, for the same inputs.

    Returns: a warning; ``None`` if all ratios are within their limits, or another standard applies.
    """
    mine, others, table = target.published, golden.published, standards()
    if mine.standard != Algorithm.BENCHMARK.value or mine.api_class not in table.classes:
        return None
    limits, least = table.classes[mine.api_class], table.constants(target.dtype).minimum_error
    exceeded: list[Finding] = []
    for name, limit in table.ratio_limits(limits).items():
        value, benchmark = getattr(mine, name), getattr(others, name)
        if value is None or benchmark is None:
            continue
        ratio = ratio_to(value, benchmark, least)
        if not ratio <= limit:
            fields = {"metric": name, "ratio": ratio, "limit": limit}
            exceeded.append(Finding(ThreeWayCode.RATIO, Level.WARNING, fields))
    if not exceeded:
        return None
    fields = {"device": target.side, "golden": golden.side, "output": target.path, "metrics": exceeded}
    return Finding(ThreeWayCode.RATIOS, Level.WARNING, fields)
