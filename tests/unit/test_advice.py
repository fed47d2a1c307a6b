"""The adviser names a row of the call where the dumps part, not the first that rounding has taken over a limit."""

import polars as pl
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare import compare_dumps
from msprobe_core.compat.advice import advise

X, NEAR, TWICE = [[1.0, -2.0], [3.0, 4.0]], [[1.0001, -2.0], [3.0, 4.0]], [[2.0, -4.0], [6.0, 8.0]]
FIRST, SECOND, THIRD = "Functional.relu.0.forward", "Functional.gelu.0.forward", "Torch.exp.0.forward"
MODULE = "Module.fc.Linear.forward.0"


@pytest.fixture
def advice(tmp_path):
    """Compare two dumps, take all rows that differ at all for suspicious, and return what is advised."""

    def advice(data, *, suspicious=None):
        for side, is_target in (("target", True), ("golden", False)):
            write_dump(tmp_path / side, data(is_target))
        (unit,) = compare_dumps(tmp_path / "target" / "dump.json", tmp_path / "golden" / "dump.json").units
        names = unit.rows["name_target"]
        differs = unit.rows["judged_error"].fill_null(0.0) > 0 if suspicious is None else names.is_in(suspicious)
        results = differs.replace_strict({True: "Warning", False: ""}, return_dtype=pl.String)
        return advise(unit.rows, results, unit.first_fault)

    return advice


def test_rounding_before_the_fault_is_passed_over(advice):
    def data(is_target):
        near, wrong = (tensor(NEAR), tensor(TWICE)) if is_target else (tensor(X), tensor(X))
        return {
            FIRST: api(near, output=near),
            SECOND: api(near, output=wrong),
            THIRD: api(wrong, output=wrong),
        }

    found = advice(data)
    assert (found.line, found.node) == (5, f"{SECOND}.output.0")
    assert found.text.startswith("The output of a forward differs.")


def test_what_came_from_outside_is_said_to(advice):
    def data(is_target):
        wrong = tensor(TWICE if is_target else X)
        return {FIRST: api(tensor(X), output=tensor(X)), SECOND: api(wrong, output=wrong)}

    found = advice(data)
    assert found.node == f"{SECOND}.input.0"
    assert "nothing that was recorded before it does" in found.text


def test_a_parameter_is_said_to_be_one(advice):
    def data(is_target):
        weight, wrong = (tensor(TWICE if is_target else X) for _ in range(2))
        entry = api(tensor(X), output=wrong) | {"parameters": {"weight": weight}}
        return {FIRST: api(tensor(X), output=tensor(X)), MODULE: entry}

    found = advice(data)
    assert found.node == f"{MODULE}.parameters.weight"
    assert "its parameters do not" in found.text


def test_it_names_the_call_that_the_terminal_names_also_where_their_rules_do_not(advice):
    def data(is_target):
        return {
            FIRST: api(tensor(NEAR if is_target else X), output=tensor(X)),
            SECOND: api(tensor(X), output=tensor(TWICE if is_target else X)),
        }

    for suspicious in ([f"{FIRST}.input.0"], []):
        found = advice(data, suspicious=suspicious)
        assert (found.line, found.node) == (5, f"{SECOND}.output.0")


def test_without_a_fault_it_is_the_first_suspicious_row(advice):
    def data(is_target):
        return {FIRST: api(tensor(NEAR if is_target else X), output=tensor(X))}

    found = advice(data, suspicious=[f"{FIRST}.input.0"])
    assert found.node == f"{FIRST}.input.0"
    assert "may have been changed in place" in found.text
    assert advice(data, suspicious=[]).lines()[:2] == ("Line: NA", "Suspect Nodes: NA")
