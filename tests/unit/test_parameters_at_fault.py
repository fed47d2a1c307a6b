"""A wrong parameter is reported as such, even if a call got it as an argument; and values that were not recorded."""

import io

import pytest
from dumps import api, tensor, write_dump
from rich.console import Console
from written_tables import write_report

from msprobe_core.compare import compare_dumps
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.errors import CompareError
from msprobe_core.judge.noise import NoiseModel
from msprobe_core.locate import LocateOptions, LocateVerdict, locate
from msprobe_core.report.terminal import print_summary

X, W = [[1.0, -2.0], [3.0, 4.0]], [[0.5, 0.25], [-0.75, 2.0]]


def times(factor, values):
    return [[v * factor for v in row] for row in values]


@pytest.fixture
def compare(tmp_path):
    def compare(target, golden, parents=None, **header):
        sides = (("target", target), ("golden", golden))
        return compare_dumps(*[write_dump(tmp_path / side, data, parents=parents, **header) for side, data in sides])

    return compare


@pytest.mark.parametrize(
    ("entry", "arguments", "keywords"),
    [
        ("Functional.linear.3.forward", ["x", "w"], {}),
        ("Functional.embedding.0.forward", ["x", "w"], {}),
        ("Functional.layer_norm.1.forward", ["x", {"type": "int", "value": 2}, "w"], {}),
        ("NPU.npu_rms_norm.1.forward", ["x"], {"weight": "w"}),
    ],
)
def test_a_weight_given_to_a_call_is_a_parameter(compare, entry, arguments, keywords):
    def dump(factor):
        values = {"x": tensor(X), "w": tensor(times(factor, W))}
        given = [values[a] if isinstance(a, str) else a for a in arguments]
        named = {name: values[a] for name, a in keywords.items()}
        return {entry: api(*given, output=tensor(times(factor, X)), **named)}

    unit = compare(dump(3.0), dump(1.0)).units[0]
    assert (unit.fault.entry, unit.fault.is_culprit, unit.fault.parts) == (entry, True, ["parameters", "outputs"])
    assert unit.fault.input_error == 0.0


def test_what_flows_into_the_call_is_no_parameter(compare):
    def dump(factor):
        return {"Functional.linear.0.forward": api(tensor(times(factor, X)), tensor(W), output=tensor(X))}

    fault = compare(dump(3.0), dump(1.0)).units[0].fault
    assert (fault.is_culprit, fault.parts) == (False, ["inputs"])


def test_what_is_computed_from_a_parameter_is_none(tmp_path):
    """Such as ``1 + weight``, whose rounding may differ, where parameters would have to be equal."""

    def step(place, rounding, weight=1.0):
        own = tensor(times(weight, W), dtype="torch.bfloat16")
        made = tensor([[1 + weight * w + rounding for w in row] for row in W], dtype="torch.bfloat16")
        x = tensor(X, dtype="torch.bfloat16")
        data = {
            "Tensor.__add__.0.forward": api(own, {"type": "float", "value": 1.0}, output=made),
            "Functional.layer_norm.0.forward": api(x, weight=made, output=x),
        }
        return write_dump(place, data)

    golden = step(tmp_path / "golden", 0.0)
    options = LocateOptions(compare=CompareOptions(noise=NoiseModel()))
    assert locate(step(tmp_path / "target", 2.0**-8), golden, options).verdict is LocateVerdict.AGREE
    assert locate(step(tmp_path / "other", 0.0, weight=1.5), golden, options).verdict is LocateVerdict.FAULT


class TestModuleOfTheParameter:
    """The call comes before its module; the module gives the parameter's name."""

    call, module = "Tensor.__mul__.0.forward", "Module.norm.RMSNorm.forward.0"

    def dump(self, factor, *, input_factor=1.0, own=None):
        weight = tensor(times(factor, W))
        record = api(tensor(X), output=tensor(times(factor, X)))
        record["parameters"] = {"weight": own or weight}
        return {
            self.call: api(weight, tensor(times(input_factor, X)), output=tensor(times(factor * input_factor, X))),
            self.module: record,
        }

    def fault(self, compare, target, golden):
        return compare(target, golden, {self.call: self.module, self.module: None}).units[0].fault

    def test_is_named(self, compare):
        fault = self.fault(compare, self.dump(2.0), self.dump(1.0))
        assert (fault.entry, fault.is_culprit) == (self.module, True)
        assert fault.parts == ["parameters", "outputs"]
        assert fault.findings[0][0] == f"{self.module}.parameters.weight"

    def test_is_not_where_the_argument_is_another_tensor(self, compare):
        other = [self.dump(factor, own=tensor(W)) for factor in (2.0, 1.0)]
        fault = self.fault(compare, *other)
        assert (fault.entry, fault.parts) == (self.module, ["outputs"])  # made inside of it, by what is not recorded

    def test_is_not_at_fault_if_the_input_is_wrong(self, compare):
        fault = self.fault(compare, self.dump(2.0, input_factor=2.0), self.dump(1.0))
        assert fault.entry == self.module
        assert "parameters" in fault.parts


FAILED = {"type": "error", "error": "RuntimeError: out of memory"}


def test_values_that_were_not_recorded_are_said_with_the_verdict(compare, tmp_path):
    good = api(tensor(X), output=tensor(X))
    target = {"Torch.a.0.forward": good, "Torch.b.0.forward": api(FAILED, output=FAILED)}
    result = compare(target, {"Torch.a.0.forward": good, "Torch.b.0.forward": good})
    assert result.agrees
    assert result.units[0].counts["unrecorded"] == 2
    assert result.units[0].counts["warning"] == 2
    console = Console(file=io.StringIO(), width=200)
    print_summary(result, write_report(result, tmp_path / "out"), console)
    assert console.file.getvalue().splitlines()[-1] == (
        "AGREE: every row is matched and within its limit; values that were not recorded and could not be judged: 2."
    )


@pytest.mark.parametrize("side", ["target", "golden"])
def test_a_dump_without_one_recorded_tensor_cannot_be_compared(compare, side):
    number = {"type": "float", "value": 0.1}
    good, bad = api(tensor(X), number, output=tensor(X)), api(FAILED, number, output=FAILED)
    sides = (bad, good) if side == "target" else (good, bad)
    with pytest.raises(CompareError, match=rf"{side}.*none of its 2 tensors could be recorded.*out of memory"):
        compare(*[{"Torch.a.0.forward": record} for record in sides])
