"""The probe on a device: bitwise the same training, no wait inside a step. The device is simulated; see `Clock`."""

import os
import sys
from functools import cache, partial
from pathlib import Path

import device_runs
import pytest
import simulated_device
from estimates import estimate, numbers

from msprobe_core.store.reading import read_dump

pytestmark = pytest.mark.skipif(
    not simulated_device.has_python_devices(), reason="this PyTorch takes no device that is written in Python"
)

WRITER = "msprobe-writer"


@pytest.fixture(scope="module")
def on_device():
    with simulated_device.device_process() as run:
        yield run


@pytest.fixture(scope="module")
def bare(on_device):
    @cache
    def cached(**settings):
        return on_device(device_runs.train_bare, settings)

    return cached


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


REDUCED = ("statistics", "hash", "sketch", "md5", "xor", "fp8")
QUICK = {("mix", "statistics"), ("L0", "hash"), ("L0", "sketch"), ("L1", "md5")}
KINDS = [
    *(
        pytest.param(level, "statistics", {"summary_mode": mode}, id=f"{level}-{mode}",
                     marks=[] if (level, mode) in QUICK else [pytest.mark.slow])
        for level in ("L0", "L1", "mix") for mode in REDUCED
    ),
    *(
        pytest.param(level, task, {}, id=f"{level}-{task}",
                     marks=[] if (level, task) in {("L0", "tensor"), ("mix", "structure")} else [pytest.mark.slow])
        for level in ("L0", "L1", "mix") for task in ("tensor", "overflow_check", "structure")
        if (level, task) != ("L1", "structure")
    ),
    pytest.param("L1", "acc_check", {"budget": 1000}, id="L1-acc_check"),
]  # fmt: skip

PROGRAMS = [
    slow({"dtype": "bfloat16"}), slow({"dtype": "float16"}), {"dtype": "autocast"}, slow({"recomputes": True}),
    slow({"lag": 1}), slow({"is_on_stream": True}), slow({"overflows": True}),
    slow({"config": {"aten": True, "risk_level": "ALL"}}),
]  # fmt: skip


def check(run, expected):
    assert run.state == expected.state
    assert [wait.stack for wait in run.waits if wait.thread != WRITER] == [wait.stack for wait in expected.waits] == []
    assert run.unordered == []


@pytest.mark.parametrize(("level", "task", "options"), KINDS)
def test_recording_changes_nothing_and_does_not_wait_inside_a_step(on_device, bare, tmp_path, level, task, options):
    run = on_device(device_runs.record, tmp_path, level, task, options, {})
    check(run, bare())
    # Files of tensors are written by a thread of its own, which waits for each; nothing else does.
    assert any(wait.thread == WRITER for wait in run.waits) <= (task == "tensor")
    assert (tmp_path / "run" / "step1").is_dir() or task == "overflow_check"


@pytest.mark.slow
@pytest.mark.parametrize("settings", PROGRAMS, ids=str)
@pytest.mark.parametrize(
    ("level", "task"), [("mix", "statistics"), slow("L0", "statistics"), slow("L1", "tensor"), slow("L0", "tensor"),
                        slow("mix", "overflow_check")]
)  # fmt: skip
def test_programs_of_all_kinds(on_device, bare, tmp_path, level, task, settings):
    if "config" in settings and level == "L0":
        pytest.skip("operators are recorded at L1 and mix")
    run = on_device(device_runs.record, tmp_path, level, task, {}, settings)
    check(run, bare(**{key: value for key, value in settings.items() if key != "config"}))
    if settings.get("dtype") == "autocast":
        assert run.dtypes == {"torch.bfloat16"}


def test_tensors_of_a_stream_of_its_own_are_those_of_the_host(on_device, tmp_path):
    for device, settings in (("npu", {"is_on_stream": True, "lag": 1}), ("cpu", {})):
        run = on_device(device_runs.record, tmp_path / device, "L0", "tensor", {}, {"device": device, **settings})
        assert run.unordered == []
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / name / "run").rglob("*.pt")} for name in ("npu", "cpu")
    ]
    assert len(files[0]) > 40
    assert files[0] == files[1]


CAPTURED = [
    ("mix", "statistics", {}), ("L0", "tensor", {}), ("mix", "statistics", {"summary_mode": "md5"}),
    *(slow("mix", "statistics", {"summary_mode": mode}) for mode in ("hash", "sketch", "xor", "fp8")),
    slow("L1", "tensor", {}), slow("mix", "overflow_check", {}), slow("L1", "acc_check", {"budget": 1000}),
]  # fmt: skip


GRAPHED = r"^(?:Module|Functional)\..*(?:forward|backward)"
"""Entries of calls that the graph has."""


class TestCaptures:
    """Into a graph that is captured, nothing of the probe gets, and nothing waits."""

    @pytest.mark.parametrize(("level", "task", "options"), CAPTURED)
    def test_calls_are_recorded_without_values(self, on_device, bare, tmp_path, level, task, options):
        expected, run = bare(captures=True), on_device(
            device_runs.record, tmp_path, level, task, options, {"captures": True}
        )  # fmt: skip
        check(run, expected)
        assert run.captured == expected.captured
        assert "aten::native_layer_norm_backward" in run.captured
        if task in ("overflow_check", "acc_check"):  # which write what they find only
            return
        captured, eager = (read_dump(next((tmp_path / "run" / name).iterdir())).frame for name in ("step0", "step1"))
        captured, eager = (frame.filter(frame["entry"].str.contains(GRAPHED)) for frame in (captured, eager))
        assert set(captured["entry"]) == set(eager["entry"]) != set()
        numbers = ("num_nan", "checksum", "sketch", "fp8")
        assert all(captured[column].is_null().all() for column in numbers)
        assert any(not eager[column].is_null().all() for column in numbers)

    def test_flight_recorder_and_monitor_leave_it_alone(self, on_device, bare, tmp_path):
        expected = bare(captures=True)
        run, _ = on_device(device_runs.fly, tmp_path, {"captures": True})
        for one in (run, on_device(device_runs.monitor, tmp_path, {"captures": True})):
            check(one, expected)
            assert one.captured == expected.captured


@pytest.mark.parametrize("mode", ["hash", slow("md5"), slow("xor")])
def test_what_arrives_late_is_what_the_host_records(on_device, tmp_path, mode):
    frames = []
    for device, lag in (("npu", 5), ("cpu", 0)):
        place, settings = tmp_path / device, {"device": device, "lag": lag}
        on_device(device_runs.record, place, "L0", "statistics", {"summary_mode": mode}, settings)
        frames.append(read_dump(next((place / "run" / "step1").iterdir())).frame)
    late, host = frames
    assert late["entry"].to_list() == host["entry"].to_list()
    assert late["checksum"].to_list() == host["checksum"].to_list()
    assert late["checksum"].drop_nulls().len() > 40


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["statistics", "hash", "sketch", "xor"])
def test_memory_of_results_does_not_depend_on_the_size_of_tensors(on_device, bare, tmp_path, mode):
    more = []
    for width in (16, 64):
        settings = {"width": width}
        place = tmp_path / str(width)
        run = on_device(device_runs.record, place, "mix", "statistics", {"summary_mode": mode}, settings)
        more.append(run.left[0] - bare(**settings).left[0])
    assert more[0] == more[1]
    assert 0 < more[0] < 3 << 20


SIZES = {"statistics": (6, 32), "hash": (1, 8), "xor": (1, 8), "sketch": (1, 256), "fp8": (1, 40)}
"""Of the results of a tensor: blocks, and bytes once they are combined."""


@pytest.mark.parametrize("mode", ["statistics", "hash", slow("xor"), slow("sketch"), slow("fp8")])
def test_memory_of_results_is_bounded_whatever_the_number_of_tensors(on_device, mode):
    blocks, size = SIZES[mode]
    limits = {"most_separate": 16, "result_bytes": 32 * size}
    few, many = (on_device(device_runs.reduce_many, mode, count, limits) for count in (60, 300))
    assert few.same
    assert many.same
    assert many.waits == []
    assert many.unordered == []
    assert many.most_blocks <= few.most_blocks <= 17 * blocks + 4 + TABLES.get(mode, 0)
    assert many.most_bytes == few.most_bytes


TABLES = {"sketch": 8}
"""Blocks that all tensors share."""


def test_results_that_the_device_cannot_send_by_itself_are_fetched_when_there_are_too_many(on_device):
    bare, limited = (
        on_device(partial(device_runs.reduce_many, pins=False), "statistics", 100, {"most_separate": 16, **limits})
        for limits in ({}, {"result_bytes": 32 * 32})
    )
    assert bare.waits == []
    assert len(limited.waits) == 6
    assert limited.same


@pytest.mark.parametrize("mode", ["statistics", slow("hash"), slow("sketch")])
def test_results_of_several_streams_are_combined_by_their_own(on_device, mode):
    run = on_device(partial(device_runs.reduce_many, streams=2), mode, 60, {"most_separate": 16, "result_bytes": 0})
    assert run.unordered == []
    assert run.waits == []
    assert run.same


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["statistics", "hash", "sketch", "xor", "md5"])
def test_nothing_needs_float64_of_a_device_without_it(on_device, bare, tmp_path, mode):
    with_float64 = on_device(device_runs.record, tmp_path / "with", "mix", "statistics", {"summary_mode": mode}, {})
    settings = {"lacks_float64": True}
    run = on_device(device_runs.record, tmp_path / "without", "mix", "statistics", {"summary_mode": mode}, settings)
    check(run, with_float64)
    one, other = (read_dump(next((tmp_path / name / "run" / "step0").iterdir())).frame for name in ("with", "without"))
    assert one["entry"].to_list() == other["entry"].to_list()


def test_integers_are_summed_exactly_by_a_device_without_float64(on_device):
    rounded = {"seeds", "extremes"}  # their squares do not fit into int64
    for name, late, host in on_device(device_runs.reduced_integers):
        assert (late.max, late.min, late.num_nan, late.num_inf) == (host.max, host.min, 0, 0), name
        tolerance = 1e-6 * host.l2_norm if name in rounded else 0
        assert late.mean == pytest.approx(host.mean, abs=tolerance, rel=0), name
        assert late.l2_norm == pytest.approx(host.l2_norm, abs=tolerance, rel=1e-15), name


@pytest.mark.parametrize("lag", [0, 1])
def test_the_flight_recorder_looks_when_extremes_have_arrived(on_device, bare, tmp_path, lag):
    run, known = on_device(device_runs.fly, tmp_path, {"lag": lag})
    check(run, bare(lag=lag))
    assert [row[:number] for number, row in enumerate(known, 1)] == [[True], [True, True]] if lag == 0 else [
        [False], [True, False],
    ]  # fmt: skip


@pytest.mark.parametrize("lag", [1, slow(0)])
def test_the_monitor_does_not_wait(on_device, bare, tmp_path, lag):
    check(on_device(device_runs.monitor, tmp_path, {"lag": lag}), bare(lag=lag))
    assert [*(tmp_path / "monitor").rglob("*.csv")]


def test_routings_are_fetched_after_the_steps_once_for_each_quantity(on_device):
    inside, fetched, recorded = on_device(device_runs.route, "npu")
    assert [wait.reason for wait in inside] == []
    assert len(fetched) == 3  # experts, weights and scores of all layers, whatever their number
    assert recorded == on_device(device_runs.route, "cpu")[2]


@pytest.mark.parametrize("options", [{}, {"rm_dropout": True}, {"is_enhanced": True}, {"mode": True}], ids=str)
def test_seeding_reaches_the_device(on_device, options):
    assert on_device(device_runs.seeded, options) == {
        "same": True, "differs by seed": True, "drops": "rm_dropout" not in options, "waits": False,
    }  # fmt: skip


SCRIPT = """
import device_runs, sys
from pathlib import Path
device_runs.record(Path("recorded"), "L0", "statistics", {}, {"num_steps": 6})
"""


@pytest.mark.slow
def test_estimate_measures_memory_of_the_device(tmp_path, monkeypatch):
    for name in ("scratch", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("train.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(Path(simulated_device.__file__).parent), *sys.path])
    done = estimate("--levels", "L0", "--modes", "statistics", "--steps", "2", "train.py", PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    found = numbers()
    assert 0 < found["bare"]["peak_device_bytes"] < found["cases"][0]["peak_device_bytes"] < 1 << 20


class TestClock:
    """What the other tests rely on: each way to read the device is a wait, and no other way reads it."""

    def test_reads_are_counted(self, on_device):
        assert on_device(device_runs.ways_to_wait) == {
            "item": 1, "tolist": 1, "cpu": 1, "nonzero": 1, "mask": 1, "equal": 1, "upload": 1, "pageable": 1,
            "synchronize": 1, "event": 1, "arithmetic": 0, "pinned": 0, "event that has happened": 0, "seed": 0,
        }  # fmt: skip

    def test_a_copy_arrives_late(self, on_device):
        assert on_device(device_runs.late_copy) == ["nan", "nan", "2.0"]

    def test_memory_cannot_be_read_without_a_copy(self, on_device):
        assert on_device(device_runs.refused_reads) == ["numpy", "array", "dlpack", "storage"]

    @pytest.mark.slow
    def test_reading_another_stream_needs_an_order(self, on_device):
        assert on_device(device_runs.across_streams) == {"nothing": ["aten::add"], "event": [], "wait_stream": []}
