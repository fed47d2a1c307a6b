"""Configuration: strict, typed, and helpful about what is wrong."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe_core.config import DataMode, RiskLevel, load_config
from msprobe_core.config.ranges import parse_ranges
from msprobe_core.errors import ConfigError, UnknownFieldError
from msprobe_core.former_names import table as former
from msprobe_core.model import Level, Task


@pytest.fixture
def write(tmp_path):
    def write(content, name="config.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_defaults():
    config = load_config()
    assert (config.task, config.level, config.risk_level) == (Task.STATISTICS, Level.L1, RiskLevel.FOCUS)
    assert (config.step, config.rank, config.extra_info, config.async_dump) == ((), (), True, False)
    assert config.options.data_mode == (DataMode.ALL,)
    assert config.options.summary_mode == "statistics"
    assert config.directory.name == "dump_path"
    assert config.selects_step(10**6)
    assert config.last_step is None


def test_a_published_template_is_read(write):
    path = write(
        {
            "task": "statistics",
            "dump_path": "/home/data_dump",
            "rank": [],
            "step": [0, "2-4"],
            "level": "mix",
            "async_dump": False,
            "extra_info": True,
            "precision": "high",
            "risk_level": "ALL",
            "statistics": {
                "scope": [], "list": ["linear"], "tensor_list": [], "data_mode": ["forward", "input"],
                "summary_mode": "md5", "slice": [{"dim": 0, "size": 8, "begin": 1}], "request_id": None,
            },
            "tensor": {"scope": [], "list": [], "data_mode": ["all"], "bench_path": None, "diff_nums": 1},
            "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"},
            "structure": {},
        }
    )  # fmt: skip
    config = load_config(path)
    assert config.step == (0, 2, 3, 4)
    assert config.last_step == 4
    assert not config.selects_step(1)
    assert config.level is Level.MIX
    assert config.options.list == ("linear",)
    assert config.options.data_mode == (DataMode.FORWARD, DataMode.INPUT)
    assert config.options.summary_mode == "md5"
    assert (config.options.slice[0].size, config.options.slice[0].begin, config.options.slice[0].end) == (8, 1, None)


def test_only_the_block_of_the_task_counts_but_all_are_checked(write):
    path = write({"task": "tensor", "statistics": {"list": ["a"]}, "tensor": {"list": ["b"]}})
    assert load_config(path).options.list == ("b",)
    with pytest.raises(ConfigError, match=r"'structure': unknown field 'list'.*no field is allowed here"):
        load_config(write({"task": "tensor", "structure": {"list": []}}))


def test_yaml_and_json_give_the_same(write):
    as_json = load_config(write({"level": "L0", "step": ["1-3"], "statistics": {"list": ["x"]}}))
    as_yaml = load_config(write("level: L0\nstep: ['1-3']\nstatistics:\n  list: [x]\n", "config.yaml"))
    assert as_json == as_yaml


def test_arguments_win_over_the_file(write):
    path = write({"level": "L0", "task": "tensor", "dump_path": "a", "step": [1], "statistics": {"list": ["x"]}})
    config = load_config(path, level="mix", task="statistics", dump_path="b", step=[2], rank=None)
    assert (config.level, config.task, config.dump_path, config.step) == (Level.MIX, Task.STATISTICS, "b", (2,))
    assert config.options.list == ("x",)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"lists": []}, ["'lists'", "did you mean 'list', which belongs into the block of a task"]),
        ({"dumppath": "x"}, ["'dumppath'", "did you mean 'dump_path'", "allowed: task, dump_path"]),
        ({"statistics": {"summary_mod": "md5"}}, ["'statistics'", "'summary_mod'", "did you mean 'summary_mode'"]),
        ({"statistics": {"bench_path": "x"}}, ["'statistics'", "unknown field 'bench_path'"]),
        ({"level": "l1"}, ["'level' is 'l1'", "did you mean 'L1'", "L0, L1, L2, mix, debug"]),
        ({"task": "statistic"}, ["'task' is 'statistic'", "did you mean 'statistics'"]),
        ({"task": "grad_probe", "grad_probe": {"bounds": [0, 0]}}, ["'bounds' is [0", "each above the one before"]),
        ({"overflow_check": {"overflow_nums": 0}}, ["'overflow_nums' is 0", "-1 for no limit"]),
        ({"task": "overflow_check", "overflow_check": {"data_mode": ["input"]}}, ["needs both"]),
        ({"risk_level": "HIGH"}, ["'risk_level' is 'HIGH'", "CORE, FOCUS, ALL"]),
        ({"extra_info": "yes"}, ["'extra_info' is 'yes'", "expected 'bool'"]),
        ({"async_dump": 1}, ["'async_dump' is 1", "expected 'bool'"]),
        ({"dump_path": 3}, ["'dump_path' is 3", "expected 'str'"]),
        ({"dump_path": ""}, ["'dump_path' is empty"]),
        ({"step": 3}, ["'step' is 3", "must be a list"]),
        ({"step": [True]}, ["'step' has the element True"]),
        ({"step": ["5-2"]}, ["'5-2'", "runs backwards", '"2-5"']),
        ({"rank": [-1]}, ["'rank' has the element -1", "count from 0"]),
        ({"step": ["a"]}, ["'step' has the element 'a'"]),
        ({"statistics": {"data_mode": ["forwards"]}}, ["'data_mode'", "did you mean 'forward'"]),
        ({"statistics": {"data_mode": ["all", "forward"]}}, ["'data_mode' has 'all' among others"]),
        ({"statistics": {"scope": ["a"]}}, ["'scope' is ['a']", "first and last entry name"]),
        ({"statistics": {"scope": ["a", "b"]}}, ["'scope' has 'a'", "which no call is named"]),
        (
            {"level": "L0", "statistics": {"scope": ["Module.fc.Linear.forward.0", "Tensor.add.0.forward"]}},
            ["'scope' has 'Tensor.add.0.forward'", "level L0 records modules only"],
        ),
        (
            {"level": "mix", "statistics": {"scope": ["Module.fc.Linear.parameters_grad.0", "Tensor.add.0.forward"]}},
            ["'scope' has 'Module.fc.Linear.parameters_grad.0'"],
        ),
        (
            {"statistics": {"data_mode": ["forward", "backward", "input", "output", "input"]}},
            ["'data_mode' is ['forward',", "give each value once"],
        ),
        ({"statistics": {"list": "linear"}}, ["'list' is 'linear'", "expected 'array'"]),
        ({"statistics": []}, ["'statistics' is []", "must be an object"]),
        ({"statistics": {"slice": [{"dim": -1}]}}, ["'slice' has a negative"]),
        ({"statistics": {"slice": [{"dims": 1}]}}, ["'slice'", "dims"]),
        ({"statistics": {"slice": [{"begin": 3, "end": 2}]}}, ["'slice' has 'begin' 3 and 'end' 2", "keeps nothing"]),
        ({"tensor": {"diff_nums": 0}}, ["'diff_nums' is 0"]),
        ({"tensor": {"bench_path": "x"}}, ["'bench_path' needs", "md5"]),
        ({"load": {"path": "x"}}, ["'load' lacks the field 'modules'"]),
        ({"load": {"path": "x", "modules": [], "stepp": []}}, ["'load'", "'stepp'", "did you mean 'step'"]),
        ([], ["holds list", "must hold an object"]),
        ("{", ["is not valid JSON"]),
        ("", ["is not valid JSON"]),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_with_file_field_value_and_remedy(write, content, expected):
    path = write(content)
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    message = str(raised.value)
    assert message.startswith(str(path))
    for part in expected:
        assert part in message


def test_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "missing.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'{"level": "\xff"}')
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "latin.json")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(tmp_path / "bad.yaml")
    (tmp_path / "code.yaml").write_text("a: !!python/object/apply:os.system ['true']")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(tmp_path / "code.yaml")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("c.json", '{"task": ["statistics"]}', "'task' is ['statistics']; "),
        ("c.json", '{"task": {}}', "'task' is {}; "),
        ("c.json", "[" * 100_000, "is not valid JSON"),
        ("c.yaml", "1: 2", "unknown field '1' (value 2); "),
        ("c.yaml", "on: x", "unknown field 'on' (value 'x'); "),
        ("c.yaml", "null: 1", "unknown field 'None' (value 1); "),
        ("c.yaml", "statistics: {null: 1}", "'statistics': unknown field 'None' (value 1); "),
        ("c.yaml", "load: {1: 2}", "'load': unknown field '1' (value 2); "),
        ("c.yaml", "dump_path: 2001-99-99", "is not valid YAML (month must be in 1..12"),
        ("c.yaml", "a: &a [*a]", "is not valid YAML (an alias stands within what it stands for, line 1)"),
    ],
)  # fmt: skip
def test_values_of_odd_types(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as raised:
        load_config(tmp_path / name)
    assert str(raised.value).startswith(f"{tmp_path / name}: ")
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("c.json", '{"step": [1], "step": [2]}', "step"),
        ("c.json", '{"tensor": {"list": ["a"], "list": ["b"]}}', "list"),
        ("c.yaml", "level: L0\nlevel: L1\n", "level"),
        ("c.yaml", "statistics:\n  list: [a]\n  scope: []\n  list: [b]\n", "list"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(tmp_path, name, content, key):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=f"{name}: an object has the key '{key}' twice; keep the one"):
        load_config(tmp_path / name)


def test_comments_may_have_equal_keys(tmp_path):
    (tmp_path / "c.json").write_text('{"//": "one", "//": "two", "_note": 1, "_note": 2, "step": [1]}')
    assert load_config(tmp_path / "c.json").step == (1,)


@pytest.mark.parametrize("path", [{"task": "statistics"}, 3, "a\0b", "x" * 5000])
def test_what_is_no_path(path):
    with pytest.raises(ConfigError, match=r"the path of a configuration is text, not|cannot be read"):
        load_config(path)


@pytest.mark.parametrize(
    ("level", "expected", "warns"),
    [(None, "mix", False), ("L0", "L0", False), ("mix", "mix", False), ("L1", "mix", True)],
)
def test_structure_is_recorded_with_modules(write, caplog, level, expected, warns):
    content = {"task": "structure"} | ({"level": level} if level else {})
    assert load_config(write(content)).level.value == expected
    assert ("is recorded at level mix, not L1" in caplog.text) == warns


def test_structure_without_extra_info_is_nothing(write):
    with pytest.raises(ConfigError, match="'extra_info' is false, but the task 'structure' records nothing else"):
        load_config(write({"task": "structure", "extra_info": False}))


def test_a_wrong_argument_is_named_as_such():
    with pytest.raises(ConfigError, match=r"the arguments of PrecisionDebugger: 'level' is 'L9'"):
        load_config(None, level="L9")
    with pytest.raises(ConfigError, match=r"unknown field 'setp'.*did you mean 'step'"):
        load_config(None, setp=[1])


def test_a_block_among_the_arguments_is_said_to_belong_into_a_file():
    with pytest.raises(UnknownFieldError, match=r"'statistics' is the block of a task, which only a file has"):
        load_config(statistics={"list": ["norm"]})


@pytest.mark.parametrize("task", former.TASKS)
def test_tasks_of_other_releases(write, task, caplog):
    fields = {task: {"whatever": [1], "white_list": []}, "level": "L0"}
    with caplog.at_level(logging.WARNING):
        assert load_config(write(fields)) == load_config(write({"level": "L0"}))
    assert not caplog.messages  # templates have blocks of all tasks
    for config in (lambda: load_config(write({"task": task, **fields})), lambda: load_config(task=task)):
        with pytest.raises(ConfigError, match=f"there is no task '{task}': ") as raised:
            config()
        assert str(raised.value).endswith(former.TASKS[task])


def test_comments_in_files(write):
    fields = {
        "_comment": "of the whole", "//": {"anything": 1}, "level": "L0", "// step": [0], "_level": "L1",
        "statistics": {"_list": ["a"], "list": ["b"], "//": "of the block"}, "perturb": {"_": "x", "seed": 3},
    }  # fmt: skip
    config = load_config(write(fields))
    assert (config.level, config.options.list, config.perturb.seed) == (Level.L0, ("b",), 3)
    with pytest.raises(ConfigError, match="unknown field '/ step'"):
        load_config(write({"/ step": []}))
    with pytest.raises(ConfigError, match="unknown field '_level'"):  # arguments have no comments
        load_config(_level="L0")


@pytest.mark.parametrize(
    ("listed", "mode", "warns"),
    [
        (["max", "min", "mean", "l2norm"], "statistics", False),
        (["statistics"], "statistics", False),
        ([], "statistics", False),
        (["nan count", "zero count"], "statistics", True),
        (["max", "md5"], "md5", False),
        (["hash:md5"], "md5", False),
        (["sketch"], "sketch", False),
    ],
    ids=str,
)
def test_a_list_of_statistics_means_the_mode_that_keeps_them(write, listed, mode, warns, caplog):
    config = load_config(write({"statistics": {"summary_mode": listed}}))
    assert config.options.summary_mode == mode
    assert [("counts of zeros" in message) for message in caplog.messages] == [True] * warns
    kernels = load_config(write({"level": "L2", "statistics": {"summary_mode": listed}}))
    assert kernels.options.summary_mode == tuple(listed)


def test_a_list_of_statistics_with_something_else(write):
    with pytest.raises(ConfigError, match="'summary_mode' lists 'median'; give one mode, or a list of max, min, mean"):
        load_config(write({"statistics": {"summary_mode": ["max", "median"]}}))


def test_fields_of_older_releases_are_accepted_with_a_warning(write, caplog):
    content = {"enable_dataloader": False, "tensor": {"file_format": "npy"}}
    with caplog.at_level(logging.WARNING):
        config = load_config(write({"task": "tensor", **content}))
    assert config.task is Task.TENSOR
    said = " ".join(caplog.messages)
    assert "'enable_dataloader' is of an older release: it is ignored" in said
    assert "'file_format' is of an older release" in said


@given(st.lists(st.integers(0, 60) | st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=6))
def test_ranges_are_the_sorted_union(elements):
    written = [e if isinstance(e, int) else f"{e[0]}-{e[0] + e[1]}" for e in elements]
    expected = set()
    for e in elements:
        expected |= {e} if isinstance(e, int) else set(range(e[0], e[0] + e[1] + 1))
    assert parse_ranges(written, "x") == tuple(sorted(expected))


@pytest.mark.parametrize(("text", "expected"), [(" 1", (1,)), ("1 - 3", (1, 2, 3)), ("+3", (3,)), ("1_0", (10,))])
def test_ranges_are_as_lenient_as_users_are_used_to(text, expected):
    assert parse_ranges([text], "x") == expected


_ODD_ELEMENTS = [None, 1.0, "-1", "1-", "1-2-3", "", [1], "1000000001", 10**9 + 1, "0-9999999", "٣"]


@pytest.mark.parametrize("element", _ODD_ELEMENTS)
def test_other_elements_of_ranges_are_refused(element):
    with pytest.raises(ConfigError, match=r"^x has the "):
        parse_ranges([element], "x")


def test_steps_of_long_trainings_can_be_selected():
    assert parse_ranges([2_000_000, "3000000-3000001"], "x") == (2_000_000, 3_000_000, 3_000_001)
    with pytest.raises(ConfigError, match="'1000000-1999999', with which it selects more than 1000001 numbers"):
        parse_ranges(["0-9", "1000000-1999999"], "x")
    assert len(parse_ranges(["0-1000000"], "x")) == 1_000_001


@pytest.mark.parametrize("level", ["L0", "debug"])
def test_operators_below_the_apis_need_a_level_that_has_apis(level):
    with pytest.raises(ConfigError, match=f"level {level} records no APIs; take level mix or L1"):
        load_config(level=level, aten=True)
    assert load_config(level="L1", aten=True).aten
