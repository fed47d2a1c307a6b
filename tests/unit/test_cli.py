"""The command line: exit codes, one sentence per failure, both spellings of compare."""

import importlib.util
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from dumps import api, tensor, write_dump

from msprobe_core import __version__
from msprobe_core.cli import main
from msprobe_core.former_names.table import COMMANDS, COMPARE_MODES, COMPARE_OPTIONS, OFFLINE_MODELS

X, TWICE = [[1.0, -2.0], [3.0, 4.0]], [[2.0, -4.0], [6.0, 8.0]]
ENTRY = "Functional.linear.0.forward"
MODULE = "Module.layers.3.mlp.MLP.forward.0"


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command line and return exit code, output and errors."""
    monkeypatch.delenv("MSPROBE_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return ended.value.code, out, err

    return run


@pytest.fixture
def dumps(tmp_path):
    stacks = {ENTRY: ["File /env/torch/nn/modules/linear.py, line 9, in forward, \n return F.linear(x)",
                      "File /home/user/model.py, line 3, in forward, \n y = self.fc(x)"]}  # fmt: skip
    common = {"parents": {ENTRY: MODULE}, "stacks": stacks}
    write_dump(tmp_path / "good" / "rank0", {ENTRY: api(tensor(X), output=tensor(X))}, **common)
    write_dump(tmp_path / "bad" / "rank0", {ENTRY: api(tensor(X), output=tensor(TWICE))}, **common)
    return tmp_path


def test_version(run):
    assert run("--version") == (0, f"msprobe {__version__}\n", "")
    assert run("-V")[1] == f"msprobe {__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("-api_info", "dump.json", "--help")], ids=str)
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_of_other_releases_say_what_to_use(run, name, arguments):
    for before in ((), ("-f", "pytorch")):
        code, out, err = run(*before, name, *arguments)
        assert (code, out) == (2, "")
        assert err == f"msprobe: error: there is no command {name!r}: {COMMANDS[name]} [command.unknown]\n"


def test_modes_of_other_releases(run, dumps):
    paths = ("-tp", dumps / "good", "-gp", dumps / "good", "-o", dumps / "out")
    assert run("compare", "-m", "auto", *paths)[0] == 0
    for mode in COMPARE_MODES[1:]:
        code, _, err = run("compare", "--mode", mode, *paths)
        assert (code, err.splitlines()[-1]) == (2, f"Error: --mode {mode}: {OFFLINE_MODELS}")
    for names in COMPARE_OPTIONS:
        for value in ((), ("x",)):
            code, _, err = run("compare", *paths, names[-1], *value)
            assert (code, err.splitlines()[-1]) == (2, f"Error: {names[0]}: {OFFLINE_MODELS}")


@pytest.mark.parametrize(("command", "line"), [
    ("config_check", "  msprobe config_check --ranks DIR"),
    ("control", "  status    change nothing; print the current settings"),
])  # fmt: skip
def test_help_keeps_the_lines_of_lists(run, command, line):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert line in out.splitlines()


def test_help_lists_the_commands(run):
    code, out, _ = run("--help")
    assert code == 0
    assert re.search(r"compare\s+Compare the dump of a run under test", out)
    code, _, err = run("compare", "-h")
    assert (code, err) == (0, "")


def test_agreement_is_exit_0(run, dumps):
    code, out, err = run("compare", "-tp", dumps / "good", "-gp", dumps / "good", "-o", dumps / "out")
    assert (code, err) == (0, "")
    assert "No value differs." in out
    assert out.splitlines()[-1] == "AGREE: every row is matched and within its limit."


def test_a_difference_is_exit_1_and_names_the_place(run, dumps):
    code, out, err = run("compare", "-tp", dumps / "bad", "-gp", dumps / "good", "-o", dumps / "out")
    assert (code, err) == (1, "")
    assert f"First fault: {ENTRY}" in out
    assert f"inside {MODULE}" in out
    assert "Its inputs agree (relative error 0), its output does not (relative error 1)." in out
    assert "File /home/user/model.py, line 3, in forward, y = self.fc(x)" in out
    assert "torch/nn" not in out
    assert out.splitlines()[-1] == f"DIFFERENT: first at {ENTRY} in {MODULE}."
    (table,) = (dumps / "out").glob("compare_result_rank0_*.csv")
    assert re.fullmatch(r"compare_result_rank0_\d{14}\.csv", table.name)
    summary = json.loads((dumps / "out" / "summary.json").read_text())
    assert summary["units"][0]["first_fault"]["entry"] == ENTRY
    assert summary["units"][0]["tables"] == [str(table)]


def test_the_spelling_of_published_tutorials(run, dumps):
    request = {
        "npu_path": str(dumps / "bad" / "rank0" / "dump.json"),
        "bench_path": str(dumps / "good" / "rank0" / "dump.json"),
        "stack_path": str(dumps / "bad" / "rank0" / "stack.json"),
        "is_print_compare_log": True,
    }
    (dumps / "compare.json").write_text(json.dumps(request))
    arguments = ("-f", "pytorch", "compare", "-i", dumps / "compare.json", "-o", dumps / "out", "-s")
    code, out, _ = run(*arguments)
    assert code == 1
    assert f"DIFFERENT: first at {ENTRY}" in out
    assert list((dumps / "out").glob("compare_result_*.xlsx"))
    (dumps / "compare.json").write_text(json.dumps({"npu_path": str(dumps / "bad"), "bench_path": str(dumps / "good"),
                                                    "stack_path": str(dumps / "bad"), "rank_id": [0]}))  # fmt: skip
    assert run(*arguments, "-c", "-hl")[0] == 1


def test_a_spreadsheet_on_request(run, dumps):
    assert run("compare", "-tp", dumps / "bad", "-gp", dumps / "good", "-o", dumps / "out", "--xlsx")[0] == 1
    assert [path.suffix for path in sorted((dumps / "out").iterdir())] == [".xlsx", ".json"]


def test_a_missing_rank_is_no_agreement(run, dumps):
    write_dump(dumps / "good" / "rank1", {ENTRY: api(output=tensor(X))})
    code, out, _ = run("compare", "-tp", dumps / "good" / "rank0", "-gp", dumps / "good" / "rank0", "-o", dumps / "out")
    assert code == 0
    write_dump(dumps / "other" / "rank0", {ENTRY: api(tensor(X), output=tensor(X))})
    write_dump(dumps / "other" / "rank2", {ENTRY: api(output=tensor(X))})
    command = ("compare", "-tp", dumps / "other", "-gp", dumps / "good", "-o", dumps / "out")
    code, out, _ = run(*command)
    assert code == 2
    assert f"Not compared: rank2 is in {dumps / 'other'} only." in out
    assert out.splitlines()[-1] == (
        "UNDECIDED: nothing differs in what both have, and the whole could not be judged: "
        f"rank1 is in {dumps / 'good'} only; 1 more."
    )
    assert run(*command, "--allow-incomplete")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-tp", "nowhere", "-gp", "good"], r"nowhere: does not exist"),
        (["-tp", "good", "-gp", "text.json"], r"text\.json is one dump and .*good is not"),
        (["-tp", "text.json", "-gp", "text.json"], r"text\.json: is not valid JSON"),
        (["-tp", "empty", "-gp", "good"], r"empty: holds no dump"),
        (["-tp", "other/rank0", "-gp", "good/rank0"], r"have no row in common"),
        (["-i", "nowhere.json"], r"nowhere\.json: cannot be read"),
        (["-i", "text.json"], r"text\.json: is not a compare\.json"),
        (["-i", "wrong.json"], r"wrong\.json: is not a compare\.json \(.*npu_path"),
        (["-tp", "good", "-gp", "good", "-o", "text.json"], r"text\.json.*cannot be created"),
        (["-tp", "good"], r"both dumps are needed"),
        (["-tp", "good", "-i", "wrong.json"], r"give either -i, or -tp and -gp"),
        (["--no-such-option"], r"No such option.*--no-such-option"),
    ],
    ids=str,
)
def test_failures_are_one_sentence_and_exit_2(run, dumps, arguments, expected, monkeypatch):
    monkeypatch.chdir(dumps)
    (dumps / "text.json").write_text("not json")
    (dumps / "wrong.json").write_text('{"npu_path": 3}')
    (dumps / "empty").mkdir()
    write_dump(dumps / "other" / "rank0", {"Torch.mm.0.forward": api(output=tensor(X))})
    code, out, err = run("compare", *arguments)
    assert (code, out) == (2, "")
    assert re.search(expected, err)
    assert len([line for line in err.splitlines() if "rror:" in line]) == 1


def test_an_unknown_command_is_exit_2(run):
    code, _, err = run("comapre")  # codespell:ignore comapre
    assert code == 2
    assert "comapre" in err  # codespell:ignore comapre


@pytest.mark.parametrize("variable", [None, "0", "1"])
@pytest.mark.parametrize("options", [[], ["--debug"]])
def test_debug_shows_the_traceback_and_leaves_the_exit_status(dumps, capsys, monkeypatch, options, variable):
    monkeypatch.delenv("MSPROBE_DEBUG", raising=False)
    if variable is not None:
        monkeypatch.setenv("MSPROBE_DEBUG", variable)
    with pytest.raises(SystemExit) as ended:
        main([*options, "compare", "-tp", str(dumps / "x"), "-gp", str(dumps / "y")])
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert ("Traceback" in err) == (bool(options) or variable == "1")
    assert err.splitlines()[-1].startswith("msprobe: error: ")


@pytest.fixture(params=["buffered", "unbuffered"])
def buffering(request, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    if request.param == "unbuffered":
        monkeypatch.setenv("PYTHONUNBUFFERED", "1")


def command(*arguments):
    return [sys.executable, "-m", "msprobe_core", *map(str, arguments)]


@pytest.mark.slow
@pytest.mark.usefixtures("buffering")
def test_a_closed_pipe_leaves_the_exit_status(dumps):
    for target, expected in (("good", 0), ("bad", 1)):
        arguments = command("compare", "-tp", dumps / target, "-gp", dumps / "good", "-o", dumps / "out")
        reading, writing = os.pipe()
        os.close(reading)
        run = subprocess.run(arguments, stdout=writing, stderr=subprocess.PIPE, text=True)
        os.close(writing)
        assert (run.returncode, run.stderr) == (expected, "")


@pytest.mark.slow
@pytest.mark.usefixtures("buffering")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["plugins"], 0),
        (["plugins", "check"], None),
        (["plugins", "new", "fine", "--kind", "metric"], 0),
        (["migrate", ".", "--write"], 0),
        (["doctor", "-d", "run"], None),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_lists_for_a_closed_pipe_and_a_full_terminal(tmp_path, monkeypatch, arguments, expected):
    """The work is done and the exit status is that of the work; a full disk is said in one sentence."""
    monkeypatch.setenv("MSPROBE_DISABLE_PLUGINS", ",".join(entry_points(group="msprobe").names))  # to be fast
    (tmp_path / "config.json").write_text('{"level": "L1"}')
    (tmp_path / "other.json").write_text('{"level": "L0"}')
    if expected is None:  # what hinders depends on the machine
        expected = subprocess.run(command(*arguments), capture_output=True, cwd=tmp_path).returncode
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(command(*arguments), stdout=writing, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    os.close(writing)
    assert (run.returncode, run.stderr) == (expected, "")
    if "new" in arguments:
        shutil.rmtree(tmp_path / "msprobe-fine")
    if "migrate" in arguments:
        (tmp_path / "config.msprobe.json").unlink()
        (tmp_path / "other.msprobe.json").unlink()
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(command(*arguments), stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert run.stderr.startswith("msprobe: error: ")
    assert "No space left" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("compare", "-tp", "{d}/bad", "-gp", "{d}/none", "-o", "{d}/out"), "dump.missing"),
        (("compare", "-tp", "{d}/bad/rank0/dump.json", "-gp", "{d}/cut.json", "-o", "{d}/out"), "dump.damaged"),
        (("compare", "-tp", "{d}/bad", "-gp", "{d}/empty", "-o", "{d}/out"), "dump.missing"),
        (("compare", "-tp", "{d}/bad", "-gp", "{d}/other", "-o", "{d}/out"), "compare.nothing-in-common"),
        (("compare", "-tp", "{d}/bad", "-gp", "{d}/good", "-o", "{d}/cut.json"), "store.not-writable"),
        (("control", "{d}/none.json", "status"), "config.unreadable"),
        (("control", "{d}/cut.json", "status"), "config.malformed"),
        (("control", "{d}/config.json", "set", "lvl=L0"), "config.unknown-field"),
        (("control", "{d}/config.json", "set", "level=L9"), "config.invalid"),
        (("control", "{d}/config.json", "set", "level=L0", "aten=true"), "config.conflict"),
    ],
)
def test_errors_end_with_a_code(run, dumps, arguments, code):
    write_dump(dumps / "other" / "rank0", {"Functional.relu.0.forward": api(tensor(X), output=tensor(X))})
    (dumps / "empty").mkdir()
    (dumps / "cut.json").write_text('{"task": "statistics"')
    (dumps / "config.json").write_text('{"dump_enable": false}')
    status, _, err = run(*(each.format(d=dumps) for each in arguments))
    assert status == 2
    assert err.startswith("msprobe: error: ")
    assert err.endswith(f" [{code}]\n")
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("buffering")
def test_a_full_terminal_is_said(dumps):
    arguments = command("compare", "-tp", dumps / "good", "-gp", dumps / "good", "-o", dumps / "out")
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 2
    assert re.fullmatch(
        r"msprobe: error: the result cannot be shown \(No space left.*summary\.json \[store\.not-writable\]\n",
        run.stderr,
    )
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(command("completion", "bash"), stdout=full, stderr=subprocess.PIPE, text=True)
    assert (run.returncode, run.stderr.partition("(")[0]) == (2, "msprobe: error: the result cannot be shown ")


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--xlsx"]])
def test_a_full_disk_leaves_no_half_table(dumps, options):
    arguments = command("compare", "-tp", dumps / "good", "-gp", dumps / "good", "-o", dumps / "out", *options)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # noqa: E731
    run = subprocess.run(arguments, capture_output=True, text=True, preexec_fn=limit)
    assert run.returncode == 2
    assert re.match(r"msprobe: error: .*cannot be written \(.*\); free space or choose another directory", run.stderr)
    assert list((dumps / "out").iterdir()) == []


def test_one_damaged_rank_leaves_the_others(run, dumps):
    for side in ("good", "bad"):
        write_dump(dumps / side / "rank1", {ENTRY: api(output=tensor(X))})
    (dumps / "bad" / "rank0" / "dump.json").write_text("{")
    code, out, _ = run("compare", "-tp", dumps / "bad", "-gp", dumps / "good", "-o", dumps / "out")
    assert code == 2
    assert re.search(r"Not compared: rank0 could not be compared: .*dump\.json: is not valid JSON", out)
    assert "(rank1, statistics)" in out


def test_ranks_with_other_numbers_are_not_paired(run, dumps):
    write_dump(dumps / "third" / "rank3", {ENTRY: api(tensor(X), output=tensor(X))})
    code, _, err = run("compare", "-tp", dumps / "third", "-gp", dumps / "good", "-o", dumps / "out")
    assert code == 2
    assert "have no rank in common (rank3 and rank0); to compare two ranks" in err


def test_text_that_commands_the_terminal_is_shown_as_text(run, tmp_path):
    for side, text in (("target", "a\x1b[31m\nb"), ("golden", "c")):
        write_dump(tmp_path / side, {ENTRY: api({"type": "str", "value": text}, tensor(X), output=tensor(X))})
    arguments = ("compare", "-tp", tmp_path / "target", "-gp", tmp_path / "golden", "-o", tmp_path / "out")
    _, out, _ = run(*arguments)
    assert r"the arguments differ, a\x1b[31m\nb and c." in out
    assert run(*arguments, "--xlsx")[0] == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xff\xfe", "is not a compare.json"),
        (b"[" * 100_000, "is not a compare.json"),
        (json.dumps({"npu_path": "x" * 5000, "bench_path": "y"}).encode(), "is no path"),
        (b'\xef\xbb\xbf{"npu_path": "gone", "bench_path": "y"}', "gone: does not exist"),
    ],
    ids=["no text", "deep", "long path", "byte order mark"],
)
def test_malformed_requests(run, tmp_path, content, expected):
    (tmp_path / "compare.json").write_bytes(content)
    code, _, err = run("compare", "-i", tmp_path / "compare.json", "-o", tmp_path / "out")
    assert code == 2
    assert expected in err


def test_a_stack_path_that_leads_nowhere_is_said(run, dumps):
    paths = {"npu_path": str(dumps / "bad"), "bench_path": str(dumps / "good"), "stack_path": str(dumps / "gone")}
    (dumps / "compare.json").write_text(json.dumps(paths))
    code, _, err = run("compare", "-i", dumps / "compare.json", "-o", dumps / "out", "-s")
    assert code == 2
    assert "gone: does not exist, and compare.json gives it as 'stack_path'" in err


def test_an_internal_error_is_a_sentence_too(run, dumps, monkeypatch):
    import msprobe_core.compare.unit as unit

    def fail(*_arguments):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(unit, "align", fail)
    code, _, err = run("compare", "-tp", dumps / "good", "-gp", dumps / "good", "-o", dumps / "out")
    assert code == 2
    assert "internal error (ZeroDivisionError: planted); run again with `msprobe --debug" in err


def test_paths_may_hold_any_character(run, tmp_path):
    directory = tmp_path / "прогон 1 + ünïcode 运行"
    write_dump(directory / "rank0", {ENTRY: api(output=tensor(X))})
    code, out, _ = run("compare", "-tp", directory, "-gp", directory, "-o", directory / "out put")
    assert code == 0
    assert "AGREE" in out


def test_a_recovered_dump_is_compared_and_said_to_be(run, dumps):
    path = dumps / "good" / "rank0" / "dump.json"
    content = json.loads(path.read_text())
    content["data"]["Torch.late.0.forward"] = api(output=tensor(X))
    path.write_text(json.dumps(content)[:-20])
    code, out, _ = run("compare", "-tp", dumps / "good", "-gp", dumps / "bad", "-o", dumps / "out")
    assert code == 1
    assert "cut off or damaged after 1 whole records, which were recovered" in out


def test_plugins(run):
    code, out, err = run("plugins")
    assert (code, err) == (0, "")
    for name, package in (("pytorch", "torch"), ("mindspore", "mindspore")):
        assert re.search(rf"^{name} .* frameworks[, ]", out, re.MULTILINE)
        is_there = importlib.util.find_spec(package) is not None
        listed = name if is_there else rf"{name} \({package} is not installed\)"
        assert re.search(rf"^frameworks: (.*, )?{listed}(,|$)", out, re.MULTILINE)
    for line in (
        "processors: fp8, hash, md5, sketch, statistics, xor",
        "writers: arrow, json",
        "readers: arrow, json",
        "commands: acc_check, api_precision_compare, bisect-steps, calibrate, check, checkpoint, compare, compile, ",
        "completion, ",
        "config_check, confirm, control, convert, data2db, demo, doctor, estimate, export, free_benchmark, gradients, ",
        "graph, graph_visualize, identify, ",
        "kernel-dump, ",
        "merge_result, migrate, monitor, multi_acc_check, multi_run_ut, nan_analyze, op_generate, ",
        "overflow_check, parse, ",
        "plugins, responses, rl, run_overflow_check, run_ut, show, twin, verl, view, weights",
    ):
        assert line in out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("comprae", "there is no command 'comprae'; did you mean 'compare' or "),
        ("LOCATE", "did you mean 'locate'?"),
        ("xyzzy", "`msprobe --help` lists them"),
    ],
)
def test_a_misspelt_command_is_answered_with_the_nearest(run, typed, said):
    code, out, err = run(typed, "--any", "thing")
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_and_options_of_plugins_too(run, tmp_path):
    code, script, err = run("completion", "bash")
    assert (code, err) == (0, "")
    (tmp_path / "msprobe").write_text(f"#!{sys.executable}\nfrom msprobe_core.cli import main\nmain()\n")
    (tmp_path / "msprobe").chmod(0o700)
    (tmp_path / "script").write_text(script)
    asked = """
        source script
        complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _msprobe_completion msprobe; echo "${COMPREPLY[@]}"; COMPREPLY=(); }
        complete_words msprobe loca
        complete_words msprobe verl comp
        complete_words msprobe locate --nois
        complete_words msprobe locate --noise clo
    """  # noqa: E501
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["bash", "-c", asked], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.stdout.splitlines(), done.stderr) == (["locate", "compare", "--noise", "closed"], "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_too(run, shell):
    code, script, err = run("completion", shell)
    assert (code, err) == (0, "")
    assert "_MSPROBE_COMPLETE" in script
