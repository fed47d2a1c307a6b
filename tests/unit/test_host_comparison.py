"""Single calls on the device and on the host: the published rule, the table, and what is kept."""

import csv
import json

import numpy as np
import pytest

from msprobe_core.config import load_config
from msprobe_core.config.schema import DumpMode, TaskOptions
from msprobe_core.errors import ConfigError, StoreError
from msprobe_core.free_benchmark import host_comparison
from msprobe_core.free_benchmark.host_comparison import COLUMNS, HostComparison, difference_of
from msprobe_core.model import ReplayTensor
from msprobe_core.names import parse_entry
from msprobe_core.replay.recorded import RecordedCall


def tensor(values, dtype="float32"):
    return ReplayTensor(values=np.asarray(values), dtype=dtype)


@pytest.mark.parametrize(
    ("one", "other", "passes"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, 2.5], True),  # the cosine is 0.994, as the published rule has it
        ([1.0, 1.0], [1.0, 1.4], False),  # cosine 0.986, off by more than 0.001
        ([1e-4, 1e-4], [1e-4, 1.4e-4], True),  # cosine 0.986, off by less than that
        ([1e-4, 1e-4], [1e-4, -1e-4], False),  # cosine 0
        ([1000.0, 1.0], [1002.0, 1.0], False),  # off by more than 1
        ([0.0, 0.0], [0.0, 0.0], True),
        ([np.nan, 1.0], [np.nan, 1.0], True),
        ([np.nan, 1.0], [2.0, 1.0], False),
        ([np.inf, 1.0], [2.0, 1.0], False),
        ([], [], True),
        ([1 + 1j], [1 + 1j], True),
        ([1 + 1j], [1 - 1j], False),
        ([True, False], [True, False], True),
    ],
)
def test_the_published_rule(one, other, passes):
    assert difference_of(tensor(one), tensor(other)).passes is passes


def test_results_of_other_shapes_fail():
    assert not difference_of(tensor([1.0]), tensor([1.0, 1.0])).passes


def call_of(name, **outputs):
    entry = f"{name}.0.forward"
    return RecordedCall(entry=entry, site=parse_entry(entry), outputs={path: tensor(v) for path, v in outputs.items()})


def given(comparison):
    """Give the comparison two calls, of which the second one fails."""
    good, bad = call_of("Torch.add", **{"0": [1.0, 2.0]}), call_of("Torch.mul", **{"0": [1.0, 2.0]})
    comparison.take(good, good.outputs, good.outputs)
    comparison.step = 3
    comparison.take(bad, bad.outputs, {"0": tensor([2.0, -1.0])})


@pytest.mark.parametrize(
    ("mode", "names", "kept"),
    [
        (DumpMode.AUTO, (), {"step3.Torch.mul.0.forward.output.0.npy"}),
        (DumpMode.LIST, ("add",), {"step0.Torch.add.0.forward.output.0.npy"}),
        (DumpMode.OFF, (), set()),
    ],
)
def test_the_table_and_what_is_kept(tmp_path, mode, names, kept):
    comparison = HostComparison(tmp_path, TaskOptions(dump_mode=mode, list=names), "npu", rank=2)
    given(comparison)
    (directory,) = tmp_path.iterdir()
    assert directory.name.startswith("msprobe_rank2_")
    (file,) = directory.glob("compare_result_*.csv")
    assert file.stat().st_mode & 0o77 == 0
    heading, *rows = csv.reader(file.read_text().splitlines())
    assert tuple(heading) == COLUMNS
    assert [(row[0], row[1], row[-1]) for row in rows] == [("0", "Torch.add.0", "pass"), ("3", "Torch.mul.0", "fail")]
    for side in ("npu", "cpu"):
        assert {path.name for path in (directory / side).glob("*")} == kept


def test_a_full_disk_is_said_once_and_ends_the_files(tmp_path, monkeypatch, caplog):
    def full(path):
        raise StoreError(f"{path}: cannot be written (No space left on device)")

    monkeypatch.setattr(host_comparison, "make_directory", full)
    given(HostComparison(tmp_path, TaskOptions(), "npu"))
    assert caplog.text.count("no further results of both devices are written") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"dump_mode": "all"}, "which only the mode to_cpu has"),
        ({"pert_mode": "to_cpu", "fuzz_device": "cpu", "dump_mode": "list"}, "'list' is empty"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path, fields, what):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "free_benchmark", "level": "L1", "free_benchmark": fields}))
    with pytest.raises(ConfigError, match=what):
        load_config(path)
