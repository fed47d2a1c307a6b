"""``scope``, ``list`` and ``data_mode``."""

import pytest

from msprobe_core.capture.selection import Selection
from msprobe_core.config import DataMode, TaskOptions
from msprobe_core.model import Phase, Role

BOTH_PHASES = {Phase.FORWARD, Phase.BACKWARD}
BOTH_SIDES = {Role.INPUT, Role.OUTPUT}


@pytest.mark.parametrize(
    ("modes", "phases", "sides"),
    [
        ((DataMode.ALL,), BOTH_PHASES, BOTH_SIDES),
        ((), BOTH_PHASES, BOTH_SIDES),
        ((DataMode.FORWARD,), {Phase.FORWARD}, BOTH_SIDES),
        ((DataMode.INPUT,), BOTH_PHASES, {Role.INPUT}),
        ((DataMode.BACKWARD, DataMode.OUTPUT), {Phase.BACKWARD}, {Role.OUTPUT}),
        ((DataMode.FORWARD, DataMode.BACKWARD, DataMode.INPUT), BOTH_PHASES, {Role.INPUT}),
    ],
)
def test_a_missing_axis_is_filled_with_both(modes, phases, sides):
    selection = Selection(TaskOptions(data_mode=modes))
    for phase in BOTH_PHASES:
        assert selection.takes_phase(phase) == (phase in phases)
        for side in BOTH_SIDES:
            assert selection.takes(phase, side) == (phase in phases and side in sides)
    assert selection.takes(Phase.FORWARD, Role.PARAMETERS) == (Phase.FORWARD in phases and Role.INPUT in sides)
    expected = Phase.BACKWARD in phases and Role.OUTPUT in sides
    assert selection.takes(Phase.PARAMETERS_GRAD, Role.PARAMETERS_GRAD) == expected


def test_list_is_a_case_sensitive_substring():
    selection = Selection(TaskOptions(list=("linear", "layers.0.")))
    assert selection.matches("Functional.linear.0.forward")
    assert selection.matches("Module.layers.0.mlp.MLP.forward.0")
    assert not selection.matches("Module.layers.10.mlp.Linear.forward.0")
    assert Selection(TaskOptions()).matches("anything")


def test_scope_includes_both_ends_and_opens_again_in_the_next_step():
    selection = Selection(TaskOptions(scope=("a", "c")))
    seen = []
    for entry in "zabcd":
        selection.begin(entry)
        seen.append((entry, selection.is_inside))
        selection.end(entry)
    assert seen == [("z", False), ("a", True), ("b", True), ("c", True), ("d", False)]
    assert selection.complaint() is None
    selection.restart()
    assert not selection.is_inside


def test_a_window_of_one_entry():
    selection = Selection(TaskOptions(scope=("a", "a")))
    selection.begin("a")
    assert selection.is_inside
    selection.end("a")
    assert not selection.is_inside


def test_a_window_that_never_opens_or_closes_is_complained_about():
    selection = Selection(TaskOptions(scope=("a", "c")))
    assert "never opened" in selection.complaint()
    selection.begin("a")
    assert "never closed" in selection.complaint()
    assert Selection(TaskOptions()).complaint() is None
