"""Dumps that spell one operation differently, because they are of two frameworks or two tools.

Two tools record different APIs, use different names for them, and list the gradients of an API in different orders: one
by argument, another in the order of the graph. At any level one may record the outermost module, or the parameters of
modules that are not called themselves, and the other may not. Such records of one tool alone, and these gradients, are
excused; values of calls that both recorded are judged.
"""

from __future__ import annotations

from msprobe_core.model import Level, RunHeader

_CALLS = frozenset({Level.L0.value, Level.L1.value, Level.MIX.value})
_APIS = _CALLS - {Level.L0.value}


def are_foreign(target: RunHeader, golden: RunHeader) -> bool:
    """Whether two dumps are of two frameworks, or of two tools that record APIs."""
    have_apis = {target.level, golden.level} <= _APIS
    return target.framework != golden.framework or (have_apis and are_of_two_tools(target, golden))


def are_of_two_tools(target: RunHeader, golden: RunHeader) -> bool:
    """Whether two tools recorded the calls of one framework.

    Only our dumps contain the recording process. Modules have the same names in dumps of both tools.
    """
    have_calls = {target.level, golden.level} <= _CALLS
    return target.framework == golden.framework and have_calls and (target.run is None) != (golden.run is None)
