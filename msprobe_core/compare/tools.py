"""Two dumps that spell one operation differently, because two frameworks or two tools made them.

Two tools record different APIs, call them by different names, and list the gradients that an API passes on in different
orders: one by argument, another by what the graph returns. Calls that only one tool recorded, and these gradients, are
excused; values of calls that both recorded, and everything of modules that both recorded, are judged.
"""

from __future__ import annotations

from msprobe_core.model import Level, RunHeader


def are_foreign(target: RunHeader, golden: RunHeader) -> bool:
    """Whether two dumps are of two frameworks, or of two tools that record APIs."""
    return target.framework != golden.framework or are_of_two_tools(target, golden)


def are_of_two_tools(target: RunHeader, golden: RunHeader) -> bool:
    """Whether two tools recorded the APIs of one framework.

    Only our dumps say which process recorded them. Modules have the same names in dumps of either tool.
    """
    has_apis = {target.level, golden.level} <= {Level.L1.value, Level.MIX.value}
    return target.framework == golden.framework and has_apis and (target.run is None) != (golden.run is None)
