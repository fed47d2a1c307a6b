"""Where along the tokens of a tensor its error is."""

import io
import json
import math

import numpy as np
import pytest
from dumps import api, tensor, write_dump
from rich.console import Console
from written_tables import write_report

from msprobe_core.compare import compare_dumps, tensor_pass
from msprobe_core.compare.tokens import has_tokens, token_errors, worst_tokens
from msprobe_core.report.files import TableOptions
from msprobe_core.report.terminal import print_summary
from msprobe_core.store.tensor_source import HeldTensor
from msprobe_core.view.heatmaps import axes_of, map_of

ENTRY = "Functional.linear.0.forward"
RNG = np.random.default_rng(0)


def errors_of(target, golden):
    return token_errors(HeldTensor(target), HeldTensor(golden))


@pytest.mark.parametrize("shape", [(7, 5), (2, 7, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.int32])
def test_the_error_of_a_token_is_that_of_its_row_for_any_chunk_size(monkeypatch, shape, dtype):
    monkeypatch.setattr(tensor_pass, "CHUNK", 3)
    golden, target = (RNG.normal(0, 100, shape).astype(dtype) for _ in range(2))
    wide = np.complex128 if dtype is np.complex64 else np.float64
    squares = (np.abs(target.astype(wide) - golden.astype(wide)) ** 2).mean(-1)
    expected = np.sqrt(squares / (np.abs(golden.astype(wide)) ** 2).mean())
    np.testing.assert_allclose(errors_of(target, golden), expected, rtol=1e-9)


def test_nan_counts_where_only_one_side_has_it():
    golden = np.ones((4, 3))
    target = golden.copy()
    golden[1], target[1] = math.nan, math.nan
    target[2, 0], golden[3, 0], target[3, 0] = math.nan, math.inf, math.inf
    assert errors_of(target, golden).tolist() == [0, 0, math.inf, 0]
    found = worst_tokens(errors_of(target, golden))
    assert (found.positions, found.share, found.largest) == (["2"], 1.0, math.inf)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (5, 1), (1, 1, 5), (2, 3, 4, 5), (0, 5)])
def test_other_shapes_do_not_say_where_their_tokens_are(shape):
    assert not has_tokens(shape)


def test_worst_tokens_are_named_with_their_share():
    errors = np.full((4, 64), 0.01)
    errors[2, 12:16] = [1.0, 0.5, 0.9, 0.6]
    found = worst_tokens(errors)
    share = 1 - (252 * 1e-4) / np.sum(errors**2)
    assert (found.positions, found.sequences, found.num_worst, found.largest) == (["12-15"], ["2"], 4, 1.0)
    assert found.share == pytest.approx(share)
    assert found.sentence() == "tokens 12-15 of 64 (dimension 1) in sequence 2 of 4 have 99% of the squared error"
    one = np.zeros(6)
    one[5] = 1
    assert worst_tokens(one).sentence() == "token 5 of 6 (dimension 0) has 100% of the squared error"
    assert worst_tokens(np.zeros(6)) is None


def test_errors_everywhere_are_spread_and_many_ranges_are_cut():
    spread = worst_tokens(np.linspace(0.5, 1, 10)).sentence()
    assert spread == "the error is spread along the tokens (dimension 0): 10 of 10 have at least half of the largest"
    striped = worst_tokens(np.tile([1.0, 0, 0], 20)).sentence()
    assert striped.startswith("tokens 0, 3, 6, 9, … of 60 (dimension 0) have 100%")


@pytest.fixture
def compared(tmp_path):
    def compared(target, golden, name="output.0"):
        paths = []
        for side, values in (("target", target), ("golden", golden)):
            folder = tmp_path / side / "dump_tensor_data"
            folder.mkdir(parents=True)
            files = {part: f"{ENTRY}.{part}.npy" for part in ("input.0", name)}
            np.save(folder / files["input.0"], np.ones(3, np.float32))
            np.save(folder / files[name], values)
            recorded = tensor(values.tolist(), data_name=files[name])
            given = tensor([1.0, 1.0, 1.0], data_name=files["input.0"])
            paths.append(write_dump(tmp_path / side, {ENTRY: api(given, output=recorded)}, task="tensor"))
        return compare_dumps(*paths)

    return compared


def test_the_first_fault_names_its_tokens(compared, tmp_path):
    golden = RNG.standard_normal((2, 8, 4)).astype(np.float32)
    target = golden.copy()
    target[1, 2:4] += 1
    result = compared(target, golden)
    files = write_report(result, tmp_path / "out", TableOptions(stamp="1"))
    tokens = json.loads(files.summary.read_bytes())["units"][0]["first_fault"]["worst_tensor"]["tokens"]
    assert tokens.pop("largest_error") == pytest.approx(1 / np.sqrt((golden.astype(float) ** 2).mean()), rel=1e-6)
    assert tokens == {
        "dimension": 1, "worst": ["2-3"], "of": 8, "sequences": ["1"], "of_sequences": 2, "share": pytest.approx(1.0),
    }  # fmt: skip
    print_summary(result, files, Console(file=(text := io.StringIO()), width=200))
    line = "output.0  tokens 2-3 of 8 (dimension 1) in sequence 1 of 2 have 100% of the squared error"
    assert f"  {ENTRY}.{line}" in text.getvalue().splitlines()


def test_a_fault_of_nan_names_its_tokens_without_percentiles(compared):
    golden = np.ones((6, 4), np.float32)
    target = golden.copy()
    target[4, 1] = math.nan
    worst = compared(target, golden).units[0].fault.worst_tensor
    assert (worst.absolute, worst.relative, worst.tokens.positions) == ({}, {}, ["4"])


def test_a_tensor_without_tokens_has_percentiles_only(compared):
    worst = compared(np.float32([2, 2]), np.float32([1, 1])).units[0].fault.worst_tensor
    assert (worst.absolute["p50"], worst.tokens) == (1, None)


def test_the_page_has_the_error_of_each_token_and_outliers_stay_in_sight():
    golden = np.ones((2, 3000, 2), np.float32)
    target = golden.copy()
    target[1, 2999] = 3
    found = map_of(0, "n", "output.0", HeldTensor(target), HeldTensor(golden), axes_of(golden.shape)[0])
    assert found.token_sizes == (2, 3000)
    assert [len(line) for line in found.tokens] == [1024, 1024]
    assert (found.tokens[1][-1], sum(map(sum, found.tokens))) == (2.0, 2.0)
    weight = HeldTensor(target[0]), HeldTensor(golden[0])
    assert map_of(0, "n", "parameters.weight", *weight, axes_of((3000, 2))[0]).tokens is None
    vector = map_of(0, "n", "output.0", HeldTensor(target[0, :, 0]), HeldTensor(golden[0, :, 0]), axes_of((3000,))[0])
    assert (vector.tokens, vector.token_sizes) == (None, None)
