"""Names of the curves of a monitor."""

from __future__ import annotations


def tag_of(stage: int | None, name: str, micro_step: int | None, statistic: str) -> str:
    """Return the name of a curve, as the established monitor's converter has it: ``vp0:up.weight:micro1/norm``."""
    micro = "" if micro_step is None else f":micro{micro_step}"
    return f"vp{max(stage or 0, 0)}:{name}{micro}/{statistic}"
