"""What cannot be read, or is no file, is one sentence of every command, and none waits for it or is taken in by it."""

import ast
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from dumps import api, tensor, write_dump
from limited import run_without_privileges

from msprobe_core.cli import main

COMMANDS = """
import contextlib, io, json, os, shutil, signal, sys
from msprobe_core.cli import main
bad, sound, out = sys.argv[1:]
readable = os.access(f"{bad}/step0/rank1", os.R_OK | os.X_OK)
commands = {
    "overflow_check step": ["overflow_check", f"{bad}/step0"],
    "compare runs": ["compare", "-tp", bad, "-gp", sound],
    "compare target": ["compare", "-tp", f"{bad}/step0", "-gp", f"{sound}/step0"],
    "locate target": ["locate", bad, sound],
    "locate golden": ["locate", sound, bad],
    "view both": ["view", bad, sound],
    "convert": ["convert", bad],
}
found = {}
for name, command in commands.items():
    shutil.rmtree(out, ignore_errors=True)
    os.mkdir(out)
    last = f"{out}/x.html" if command[0] == "view" else f"{out}/made"
    said, code = io.StringIO(), 0
    signal.alarm(30)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main([*command, *([] if command[0] == "convert" else ["-o"]), last])
        except SystemExit as ended:
            code = ended.code
    found[name] = code, " ".join(said.getvalue().split())
print(json.dumps([readable, found]))
"""
"""Each with the damaged run, and what came of it; a signal ends what waits."""


def make_run(directory):
    for rank in range(2):
        place = directory / "step0" / f"rank{rank}"
        (place / "dump_tensor_data").mkdir(parents=True)
        value = np.ones((2, 3), np.float32)
        np.save(place / "dump_tensor_data" / "Torch.f.0.forward.output.0.npy", value)
        record = api(tensor(value), output=tensor(value, data_name="Torch.f.0.forward.output.0.npy"))
        write_dump(place, {"Torch.f.0.forward": record}, task="tensor", parents={}, stacks={})
    return directory


def answers_to(tmp_path, damage):
    bad, sound = make_run(tmp_path / "bad"), make_run(tmp_path / "sound")
    damage(bad / "step0" / "rank1")
    try:
        readable, found = json.loads(run_without_privileges(COMMANDS, bad, sound, tmp_path / "out"))
    finally:
        (bad / "step0" / "rank1").chmod(0o700)
    for name, (_, said) in found.items():
        assert "internal error" not in said, (name, said)
        assert "Traceback" not in said, (name, said)
        assert "failed at looking" not in said, (name, said)
    return readable, found


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o000, 0o400], ids=oct)
def test_a_rank_that_may_not_be_read(tmp_path, mode):
    readable, found = answers_to(tmp_path, lambda rank: rank.chmod(mode))
    if readable:
        pytest.skip("this user may read everything")
    for name, (code, said) in found.items():
        assert "Permission denied" in said, (name, said)
        assert code == 2, (name, said)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dump.json", "stack.json", "construct.json"])
def test_a_pipe_in_the_place_of_a_file(tmp_path, name):
    def replace(rank):
        (rank / name).unlink()
        os.mkfifo(rank / name)

    _, found = answers_to(tmp_path, replace)
    if name == "dump.json":
        assert {code for code, _ in found.values()} == {2}, found


@pytest.mark.slow
def test_a_pipe_in_the_place_of_a_tensor(tmp_path):
    def replace(rank):
        (path := rank / "dump_tensor_data" / "Torch.f.0.forward.output.0.npy").unlink()
        os.mkfifo(path)

    _, found = answers_to(tmp_path, replace)
    assert "dump_tensor_data: left out 1 " in found["convert"][1]
    for name in ("compare runs", "compare target"):
        assert "it is a pipe, not a file" in found[name][1], (name, found[name])


CORE = Path(__file__).parents[2] / "msprobe_core"
OWN = {
    "estimate/process.py": "of the kernel, and what the program that it measures has just printed",
    "capture/identity.py": "of the kernel",
    "capture/measure.py": "of the kernel, and of processes that it has started, in a directory of its own",
    "manifest/libraries.py": "of installed packages, which the process runs",
    "manifest/process.py": "the program that the process runs",
    "view/page_file.py": "part of the package",
    "config_check/trainer_logs.py": "part of the package",
    "locate/explain.py": "part of the package",
    "findings.py": "part of a package",
    "cli/demo.py": "the program of an installed plugin, and its copy by an earlier demo",
    "doctor/installation.py": "of installed packages, which the process runs",
    "scaffold/__init__.py": "part of the package",
    "view/stored_graphs.py": "written a moment ago, in a directory of its own",
    "compat/first_differences.py": "written a moment ago",
}
"""Modules that read files without `untrusted`, and why they may."""


def reads_directly(path):
    """Whether a module opens files for reading by itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            modes = {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
            if called.endswith((".read_bytes", ".read_text")) or (called.endswith("open") and modes & {"r", "rb"}):
                return True
    return False


def test_files_of_others_are_opened_in_one_room():
    found = {str(path.relative_to(CORE)) for path in CORE.rglob("*.py") if reads_directly(path)}
    own = {name for name in found if name.split("/")[0] not in {"untrusted", "testing"}}
    assert own == OWN.keys()


@pytest.mark.parametrize("command", ["compare", "locate"])
@pytest.mark.parametrize("place", ["output", "input"])
def test_a_tensor_that_one_side_cannot_read_is_judged_by_its_statistics_alone(tmp_path, capsys, command, place):
    entry, value = "Torch.f.0.forward", np.ones((2, 3), np.float32)

    def answer(largest, *options):
        """Return the exit status and the output if ``largest`` is the recorded maximum of the damaged tensor."""
        for side in ("bad", "sound"):
            (tmp_path / side / "dump_tensor_data").mkdir(parents=True, exist_ok=True)
            leaves = {}
            for role in ("input", "output"):
                name = f"{entry}.{role}.0.npy"
                np.save(tmp_path / side / "dump_tensor_data" / name, value)
                is_damaged = (side, role) == ("bad", place)
                leaves[role] = {**tensor(value, data_name=name), "Max": largest if is_damaged else 1.0}
            record = api(leaves["input"], output=leaves["output"])
            write_dump(tmp_path / side, {entry: record}, task="tensor", parents={}, stacks={})
        cut.write_bytes(cut.read_bytes()[:-4])
        paths = [f"{tmp_path}/bad", f"{tmp_path}/sound"]
        given = paths if command == "locate" else ["-tp", paths[0], "-gp", paths[1]]
        with pytest.raises(SystemExit) as ended:
            main([command, *given, "-o", f"{tmp_path}/out", *options])
        return ended.value.code, capsys.readouterr().out

    cut = tmp_path / "bad" / "dump_tensor_data" / f"{entry}.{place}.0.npy"
    code, said = answer(1.0)
    assert code == 2
    assert "tensors that could not be read, so that at most their statistics were compared: 1" in said
    assert "is cut off: its header says 24 bytes" in said
    code, said = answer(5.0)
    assert code == 1
    assert re.search(rf"^(First fault: |FAULT: .* at .*){re.escape(entry)}", said, re.MULTILINE)
    if command == "compare":
        assert answer(1.0, "--limit", ".*", "ignore")[0] == 0
