"""``scope``, ``list`` and ``data_mode``."""

import pytest

from msprobe_core.capture.selection import _MAX_UNMATCHED, Selection
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


def test_a_scope_that_never_opened_is_complained_about_with_the_nearest_names():
    selection = Selection(TaskOptions(scope=("Cell.fc.Linear.forward.0", "Cell.fc.Linear.forward.0")))
    for entry in ("Tensor.add.0.forward", "Module.fc.Linear.forward.0"):
        selection.begin(entry)
    said = selection.complaint()
    assert said.endswith("calls that there were: Module.fc.Linear.forward.0, Tensor.add.0.forward")
    selection.restart()
    assert selection.complaint().endswith("no call was seen")


def test_a_list_that_matches_nothing_is_complained_about_with_the_nearest_names():
    selection = Selection(TaskOptions(list=("fc1.linear",)))
    assert selection.complaint() is None  # there were no calls
    calls = ["Functional.relu.0.forward", "Module.fc1.Linear.forward.0", "Module.fc2.Linear.forward.0"]
    assert not any(selection.matches(entry) for entry in calls)
    said = selection.complaint()
    assert said.startswith("nothing was recorded: no call matched 'list' ['fc1.linear']; calls that there were: ")
    assert "Module.fc1.Linear.forward.0" in said
    assert selection.matches("Module.fc1.linear.forward.0")
    assert selection.complaint() is None
    selection.restart()
    assert not selection.matches(calls[0])
    assert "Functional.relu.0.forward" in selection.complaint()


def test_the_names_that_are_kept_for_a_complaint_are_bounded():
    selection = Selection(TaskOptions(list=("fc1",)))
    for i in range(2 * _MAX_UNMATCHED):
        selection.matches(f"Tensor.add.{i}.forward")
    assert len(selection._unmatched) == _MAX_UNMATCHED
