"""Arguments that one side passes by position and the other by keyword are partners."""

import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare import compare_dumps

X = tensor([[1.0, -2.0], [3.0, 4.0]])
Y = tensor([[5.0, 6.0], [7.0, 8.0]])
SOFTMAX = "Functional.softmax.0.forward"


def number(value):
    return {"type": type(value).__name__, "value": value}


WAYS = {
    "all by position": api(X, number(-1), number(True), output=X),
    "one by keyword": api(X, number(-1), keepdim=number(True), output=X),
    "two by keyword": api(X, dim=number(-1), keepdim=number(True), output=X),
    "all by keyword": api(input=X, dim=number(-1), keepdim=number(True), output=X),
    "in another order": api(keepdim=number(True), dim=number(-1), input=X, output=X),
}


@pytest.fixture
def compare(tmp_path):
    def compare(target, golden, *more):
        extra = {f"Torch.relu.{i}.forward": api(X, output=X) for i in more}
        sides = ("target", {SOFTMAX: target}), ("golden", {**extra, SOFTMAX: golden})
        return compare_dumps(*(write_dump(tmp_path / name, data) for name, data in sides))

    return compare


@pytest.mark.parametrize("golden", list(WAYS))
@pytest.mark.parametrize("target", list(WAYS))
def test_every_way_to_pass_arguments_is_the_same(compare, target, golden):
    unit = compare(WAYS[target], WAYS[golden]).units[0]
    assert unit.agrees, unit.counts
    assert unit.counts["pass"] == 4


def test_values_are_still_compared(compare):
    result = compare(WAYS["all by position"], api(X, dim=number(1), keepdim=number(True), output=X))
    bad = result.units[0].rows.filter(verdict="error")
    assert bad.select("name_target", "name_golden").rows() == [(f"{SOFTMAX}.input.1", f"{SOFTMAX}.input.dim")]


def test_values_inside_an_argument_are_paired(compare):
    assert compare(api([X, Y], number(0), output=X), api(tensors=[X, Y], dim=number(0), output=X)).agrees
    assert not compare(api([X, Y], output=X), api(tensors=[X, X], output=X)).agrees


def test_another_argument_has_no_partner(compare):
    result = compare(api(X, number(-1), output=X), api(X, rounding_mode=number("floor"), output=X))
    assert result.units[0].counts["unmatched"] == 2


def test_also_where_one_side_has_more_calls(compare):
    unit = compare(WAYS["all by position"], WAYS["all by keyword"], 0, 1).units[0]
    assert (unit.counts["pass"], unit.counts["only target"], unit.counts["only golden"]) == (4, 0, 4)
