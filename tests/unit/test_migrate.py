"""`msprobe migrate`: what files of the established tool mean here; what it writes is read by our own reader."""

import json

import pytest

from msprobe_core.cli import main
from msprobe_core.config.load import load_config
from msprobe_core.errors import ConfigError
from msprobe_core.migrate import Standing, migrated


@pytest.fixture
def meanings(tmp_path):
    """Return the standing and the text of each field of a file with this content."""

    def meanings(content, name="config.json"):
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        (file,) = migrated(tmp_path / name).files
        return {each.field: (each.standing, each.text) for each in file.meanings}, file

    return meanings


def standings(found):
    return {name: standing.value for name, (standing, _) in found.items()}


def test_fields_of_a_configuration_are_the_same_differ_or_are_refused(meanings):
    found, file = meanings(
        {
            "task": "statistics", "dump_path": "/run", "rank": [0], "step": ["1-3"], "level": "mix", "async_dump": True,
            "precision": "high", "seed": 3, "_comment": "x", "risc_level": "ALL",
            "statistics": {"scope": ["Torch.relu.0.forward", "Torch.tanh.0.forward"], "lists": [], "list": ["relu"]},
            "tensor": {"file_format": "npy", "summary_mode": "mean"}, "nan_check": {"list": []},
        }
    )  # fmt: skip
    assert standings(found) == {
        "task": "same", "dump_path": "same", "step": "same", "level": "same", "statistics.list": "same",
        "rank": "different", "async_dump": "different", "precision": "different", "seed": "different",
        "statistics.scope": "different", "tensor.file_format": "different", "nan_check": "different",
        "risc_level": "refused", "statistics.lists": "refused", "tensor.summary_mode": "refused",
    }  # fmt: skip
    assert all(text for standing, text in found.values() if standing is not Standing.SAME)
    assert "did you mean 'risk_level'" in found["risc_level"][1]
    assert "ignored silently" in found["statistics.lists"][1]
    assert file.content.keys() == {
        "task", "dump_path", "rank", "step", "level", "async_dump", "precision", "_comment", "statistics", "tensor",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "task", "kept"),
    [
        ({"task": "run_ut", "run_ut": {"white_list": ["relu"]}}, "acc_check", {"white_list": ["relu"]}),
        ({"task": "nan_check", "nan_check": {"list": ["a"], "tensor_list": ["b"]}}, "overflow_check", {"list": ["a"]}),
        ({"task": "overflow_check", "overflow_check": {"overflow_nums": 3, "check_mode": "all"}}, "overflow_check",
         {"overflow_nums": 3}),
        ({"task": "grad_probe", "grad_probe": {"grad_level": "L1", "bounds": [-1, 0, 1]}}, "grad_probe",
         {"grad_level": "L1", "bounds": [-1, 0, 1]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_tasks_of_other_releases_are_written_as_ours(tmp_path, meanings, fields, task, kept):
    _, file = meanings(fields)
    (tmp_path / "ours.json").write_text(json.dumps(file.content))
    assert load_config(tmp_path / "ours.json").task.value == task
    assert file.content[task] == kept


def test_a_task_without_a_counterpart_is_refused_and_not_written(tmp_path, meanings, capsys):
    found, file = meanings({"task": "diff_check", "rank": []})
    assert (found["task"][0], file.content) == (Standing.REFUSED, None)
    with pytest.raises(SystemExit) as ended:
        main(["migrate", str(tmp_path / "config.json"), "--write"])
    assert ended.value.code == 1
    assert "not written: choose a task first" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("content", "used_by", "standing"),
    [
        ("Tensor.mul.2.forward.input.0: Tensor.mul.1.forward.input.0\n", "-dm", "same"),
        ("fc1.Dense: fc1.Linear\n", "-cm", "same"),
        ("TopLayer: {network: module}\nA: {b: c.d}\n", "-lm", "same"),
        ("- {ms_api: Functional.a, pt_api: NPU.b, ms_args: [0], pt_args: [0]}\n", "-am", "same"),
        ("Functional.dense: Functional.linear\n", "-am", "different"),
        ("- {ms_api: Functional.a}\n", "-am", "refused"),
        ("{npu_path: a, bench_path: b, rank_id: [0]}\n", "compare -i", "same"),
        ("{npu_path: a}\n", "compare -i", "refused"),
        ("white_list: [relu]\nprecision: 14\n", "acc_check -config", "same"),
        ("white_list: 3\n", "acc_check -config", "refused"),
        ("{extract_api_path: a.json, api_name: Torch.relu.0}\n", "op_generate", "same"),
    ],
    ids=lambda value: value.split("\n")[0] if isinstance(value, str) else "",
)
def test_other_files_are_recognised_by_what_they_hold(meanings, content, used_by, standing):
    found, file = meanings(content, "x.yaml")
    assert used_by in file.used_by
    assert standing in standings(found).values()


def test_fields_of_the_monitor(meanings):
    fields = {"targets": {}, "wg_distribution": True, "ops": ["norm", "median"], "format": "api", "unheard": 1}
    found, file = meanings(fields)
    assert "TrainerMon" in file.used_by
    assert standings(found) == {
        "targets": "same", "wg_distribution": "same", "ops": "different", "format": "different", "unheard": "different",
    }  # fmt: skip
    found, file = meanings({"monitors": {"module": {"ops": ["norm"]}}, "step_interval": "x"})
    assert "V2" in file.used_by
    assert standings(found) == {"monitors": "same", "step_interval": "refused"}


def test_half_a_character_is_refused(meanings):
    found, _ = meanings('{"task": "\\ud800", "level": "L0"}')
    assert standings(found) == {"task": "refused", "level": "same"}
    assert found["task"][1] == r"'task' is '\ud800', which is no text"


def test_a_directory_is_looked_through_and_written_beside(tmp_path, capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["migrate", *map(str, arguments)])
        return ended.value.code, *capsys.readouterr()

    place = tmp_path / "theirs" / "deep"
    place.mkdir(parents=True)
    (place / "config.json").write_text('{"task": "tensor", "tensor": {"list": ["relu"]}}')
    (tmp_path / "theirs" / "notes.json").write_text("[1, 2]")
    (tmp_path / "theirs" / "broken.yaml").write_text("a: [")
    dump = {"task": "statistics", "level": "L1", "dump_data_dir": None, "data": {}}
    (tmp_path / "theirs" / "dump.json").write_text(json.dumps(dump))
    (tmp_path / "theirs" / "manifest.json").write_text('{"schema": 1, "rank": 0, "run": {}}')
    code, out, err = run(tmp_path / "theirs", "--write")
    broken, others = err.splitlines()
    assert broken.startswith(f"{tmp_path / 'theirs' / 'broken.yaml'}: is neither JSON nor YAML (")
    assert (code, others) == (1, "3 other JSON and YAML files were passed over")
    assert f"written   {place / 'config.msprobe.json'}" in out
    assert load_config(place / "config.msprobe.json").options.list == ("relu",)
    code, _, err = run(place / "config.json", "--write")
    assert code == 2
    assert "exists; give --overwrite to replace it" in err
    assert run(place / "config.json", "--write", "--overwrite")[0] == 0
    for wrong in ("notes.json", "broken.yaml", "absent.json"):
        code, out, err = run(tmp_path / "theirs" / wrong)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="has no file of a known kind; 0 others"):
        migrated(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text('{"task": "statistics", "level')
    with pytest.raises(ConfigError, match=r"0 others were looked at; .*config\.json: is neither JSON nor YAML"):
        migrated(tmp_path / "empty")
