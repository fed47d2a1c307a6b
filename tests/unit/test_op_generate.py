"""The configuration of op_generate, the records that it extracts, and the metrics that its scripts carry."""

import json

import numpy as np
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.api_check import op_script_parts as parts
from msprobe_core.api_check.op_config import InputMode, OpConfig, Propagation, read_op_config
from msprobe_core.api_check.op_extract import api_of_config, dump_of
from msprobe_core.api_check.op_generate_script import _standard
from msprobe_core.api_check.published import published_columns
from msprobe_core.errors import ConfigError
from msprobe_core.model import ReplayTensor
from msprobe_core.store.reading import read_dump


def written(directory, **fields):
    path = directory / "config_op.json"
    path.write_text(json.dumps(fields))
    return path


def test_fields_have_the_published_defaults(tmp_path):
    config = read_op_config(written(tmp_path, extract_api_path="api.json"))
    assert config == OpConfig(
        extract_api_path="api.json", dump_json_path="", api_name="", propagation=Propagation.FORWARD,
        data_mode=InputMode.RANDOM, random_seed=1234, iter_times=1,
    )  # fmt: skip


GOOD = {"extract_api_path": "api.json", "dump_json_path": "dump.json", "api_name": "Functional.softmax.0"}
WRONG = {
    "unknown": (GOOD | {"iter_time": 3}, "no field 'iter_time'; did you mean 'iter_times'"),
    "propagation": (GOOD | {"propagation": "backwards"}, "did you mean 'backward'"),
    "mode": (GOOD | {"data_mode": "randomdata"}, "did you mean 'random_data'"),
    "type": (GOOD | {"iter_times": "3"}, "'iter_times' is '3'"),
    "bool": (GOOD | {"random_seed": True}, "'random_seed' is True"),
    "many": (GOOD | {"iter_times": 1001}, "'iter_times' is 1001"),
    "none": (GOOD | {"iter_times": 0}, "'iter_times' is 0"),
    "seed": (GOOD | {"random_seed": -1}, "'random_seed' is -1"),
    "real": (GOOD | {"iter_times": 2, "data_mode": "real_data"}, "recorded inputs are the same each time"),
    "missing": ({"api_name": "x"}, "has no 'extract_api_path'"),
    "empty": ({"extract_api_path": ""}, "'extract_api_path' is ''"),
    "name": ({"extract_api_path": "a.json", "dump_json_path": "d.json"}, "has no 'api_name'"),
    "nested": (GOOD | {"data_mode": {"a": []}}, "'data_mode' is"),
}


@pytest.mark.parametrize(("fields", "said"), WRONG.values(), ids=WRONG)
def test_wrong_fields_are_answered_in_one_line(tmp_path, fields, said):
    with pytest.raises(ConfigError) as caught:
        read_op_config(written(tmp_path, **fields))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "3", "{", ""])
def test_what_is_no_object_is_answered(tmp_path, text):
    path = tmp_path / "config_op.json"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_op_config(path)


@pytest.fixture
def dump(tmp_path):
    records = {
        "Torch.exp.0.forward": api(tensor(), output=tensor([2.0])),
        "Torch.exp.1.forward": api(tensor(), output=tensor([3.0])),
        "Torch.exp.10.forward": api(tensor(), output=tensor([4.0])),
    }
    write_dump(tmp_path / "rank0", records, parents={}, stacks={})
    return tmp_path / "rank0" / "dump.json"


def config_of(tmp_path, dump, **changes):
    fields = {"extract_api_path": str(tmp_path / "api.json"), "dump_json_path": str(dump), "api_name": "Torch.exp.1"}
    return OpConfig(**(fields | changes))


def test_records_of_one_api_are_extracted_as_a_dump(tmp_path, dump):
    assert dump_of(config_of(tmp_path, dump)) == dump
    found = read_dump(tmp_path / "api.json")
    assert found.frame["entry"].unique().to_list() == ["Torch.exp.1.forward"]
    again = OpConfig(extract_api_path=str(tmp_path / "api.json"))
    assert dump_of(again) == tmp_path / "api.json"
    assert api_of_config(again, found.frame["entry"]) == "Torch.exp.1"


def test_a_name_that_is_not_there_has_the_nearest(tmp_path, dump):
    with pytest.raises(ConfigError, match=r"did you mean 'Torch.exp.1'"):
        dump_of(config_of(tmp_path, dump, api_name="Torch.expm.1"))
    assert not (tmp_path / "api.json").exists()
    with pytest.raises(ConfigError, match="records of 2 APIs"):
        api_of_config(OpConfig(extract_api_path="x"), ["Torch.exp.0.forward", "Torch.exp.1.forward"])


def test_files_that_are_not_there_are_named(tmp_path, dump):
    with pytest.raises(ConfigError, match="where no file is"):
        dump_of(config_of(tmp_path, tmp_path / "other.json"))
    with pytest.raises(ConfigError, match="where no file is"):
        dump_of(OpConfig(extract_api_path=str(tmp_path / "api.json")))
    with pytest.raises(ConfigError, match="would be overwritten"):
        dump_of(config_of(tmp_path, dump, extract_api_path=str(dump)))
    assert len(json.loads(dump.read_text())["data"]) == 3


COLUMNS = {
    "Relative Error Ratio": "relative_error_rate", "Absolute Error Ratio": "absolute_error_rate",
    "Small Value Error Proportion": "small_value_error_share", "Maximum Relative Error": "max_relative",
    "Mean Relative Error": "mean_relative", "Root Mean Squared Error": "rmse", "Error Balance": "error_balance",
    "Inf/NaN Error Ratio": "non_finite_error_rate", "Thousandth ratio": "within_thousandth",
    "Maximum ULP Error": "max_ulp", "Mean ULP Error": "mean_ulp", "ULP Error Proportion": "ulp_share",
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_metrics_of_scripts_are_those_of_the_tables(dtype):
    random = np.random.default_rng(0)
    exact = random.standard_normal(300) * 10.0 ** random.integers(-9, 6, 300)
    exact[:6] = [0.0, np.inf, np.nan, -np.inf, 1e300, 5.0]
    kind = {"float16": "f2", "float64": "f8", "complex64": "c8"}.get(dtype, "f4")
    if dtype == "complex64":
        exact = exact + 1j * random.standard_normal(300)
    with np.errstate(all="ignore"):
        result = (exact * (1 + 1e-3 * random.standard_normal(300))).astype(kind)
    result[5] = np.nan
    columns = published_columns(ReplayTensor(values=result, dtype=dtype), exact, own=None, api="exp")
    found = parts.measure(result, exact, _standard(dtype, frozenset(), "exp"))
    assert set(found) == {name for name, own in COLUMNS.items() if getattr(columns, own) is not None}
    for name, value in found.items():
        assert value == pytest.approx(getattr(columns, COLUMNS[name]), rel=1e-9, nan_ok=True), name
    assert found["Inf/NaN Error Ratio"] > 0


def test_verdicts_of_ratios_have_three_states():
    of = _standard("float32", frozenset(), "exp")
    own = dict.fromkeys(of["ratios"], 1.0)
    for value, said in ((1.0, "pass"), (2.0, "warning"), (11.0, "error"), (np.nan, "error")):
        found = dict.fromkeys(of["ratios"], value) | {"Inf/NaN Error Ratio": 0.0}
        verdicts = parts.verdicts(found, own, of)
        assert verdicts["Maximum Relative Error"].startswith(said)
        assert verdicts["Inf/NaN Error Ratio"] == "pass"


def test_integers_are_compared_bit_by_bit():
    of = _standard("int64", frozenset(), "argmax")
    assert parts.report(np.array([1, 2]), np.array([1, 2]), np.array([1, 2]), of)[0] is False
    assert parts.report(np.array([1, 3]), np.array([1, 2]), np.array([1, 2]), of)[0] is True
    assert parts.report(np.array([1]), np.array([1, 2]), np.array([1, 2]), of)[0] is True


def test_drawn_numbers_are_of_their_dtype(monkeypatch):
    monkeypatch.setattr(parts, "STEP", [3])
    drawn = parts.load_drawn(None, "<f4", (100,), 0, -2.0, 3.0, 8, -126)
    assert np.array_equal(drawn.view("u4") & 0xFFFF, np.zeros(100))  # bfloat16
    assert (drawn[0], drawn[-1], drawn.min(), drawn.max()) == (-2.0, 3.0, -2.0, 3.0)
    assert set(parts.load_drawn(None, "|b1", (50,), 1, 0, 1, 0, 0).tolist()) == {False, True}
    assert parts.load_drawn(None, "<i8", (0, 3), 2, 0, 0, 0, 0).shape == (0, 3)
    numbers = parts.load_drawn(None, "<c8", (50,), 1, 1.0, 2.0, 0, 0)
    assert np.all((np.abs(numbers) > 0.99) & (np.abs(numbers) < 2.01))
    again = parts.load_drawn(None, "<f4", (100,), 0, -2.0, 3.0, 8, -126)
    assert np.array_equal(drawn, again)
    monkeypatch.setattr(parts, "STEP", [4])
    assert not np.array_equal(drawn, parts.load_drawn(None, "<f4", (100,), 0, -2.0, 3.0, 8, -126))
