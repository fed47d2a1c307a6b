"""Results have fixed names: a command replaces its own earlier one, and a user's file only on request."""

import numpy as np
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.cli.main import main

USER = b'{"version": 3, "learning_rate": 0.1}'


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Run a command line in a directory of its own; return exit code and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        return ended.value.code, " ".join(capsys.readouterr().err.split())

    return run


@pytest.fixture
def runs(tmp_path):
    end = {"state": "complete", "calls": 1, "windows": 1}
    names = ("target", "golden", "golden/calibration/run1", "golden/calibration/run2")
    for i, name in enumerate(names):
        call = {"Torch.mul.0.forward": api(tensor(np.ones((2, 3))), output=tensor(np.full((2, 3), 2 + i * 1e-7)))}
        write_dump(tmp_path / name / "step0" / "rank0", call, end=end)


COMMANDS = {
    "compare": ("compare -tp target -gp golden -o out", "out/summary.json"),
    "locate": ("locate target golden -o out", "out/locate.json"),
    "overflow_check": ("overflow_check target -o out", "out/overflow.json"),
    "view": ("view target golden -o out.html", "out.html"),
    "view into a directory": ("view target golden -o out", "out/view.html"),
    "calibrate": ("calibrate golden -o noise.parquet", "noise.parquet"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_users_file_is_replaced_on_demand_only_and_an_earlier_result_always(name, run, runs, tmp_path):
    line, result = COMMANDS[name]
    path = tmp_path / result
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(USER)
    code, err = run(*line.split())
    assert code == 2
    assert f"{result}: exists, and `msprobe {line.split()[0]}` has not written it" in err
    assert "give --overwrite" in err
    assert path.read_bytes() == USER
    code, err = run(*line.split(), "--overwrite")
    assert (code, path.read_bytes() == USER) == (0, False), err
    before = path.stat().st_mtime_ns
    code, err = run(*line.split())
    assert (code, path.stat().st_mtime_ns == before) == (0, False), err


@pytest.mark.parametrize("content", [b"", b"[]", b"text", b'{"agrees": true}', b"[" * 100_000, b"\xff\xfe"])
def test_what_is_no_result_is_not_replaced(content, run, runs, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "summary.json").write_bytes(content)
    code, err = run(*COMMANDS["compare"][0].split())
    assert code == 2
    assert "has not written it" in err
    assert (tmp_path / "out" / "summary.json").read_bytes() == content


def test_a_link_to_a_users_file_is_not_written_through(run, runs, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "theirs.json").write_bytes(USER)
    (tmp_path / "out" / "summary.json").symlink_to(tmp_path / "theirs.json")
    line = COMMANDS["compare"][0].split()
    assert run(*line)[0] == 2
    assert run(*line, "--overwrite")[0] == 0
    assert (tmp_path / "theirs.json").read_bytes() == USER


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("confirm target golden Torch.mul.0.forward -o out", "out/confirm.json"),
        ("estimate --json numbers.json nothing:here", "numbers.json"),
    ],
)
def test_commands_that_compute_refuse_before_they_do(line, result, run, runs, tmp_path):
    (tmp_path / result).parent.mkdir(exist_ok=True)
    (tmp_path / result).write_bytes(USER)
    code, err = run(*line.split())
    assert code == 2
    assert f"{result}: exists" in err
    assert (tmp_path / result).read_bytes() == USER
    command, *rest = line.split()
    code, err = run(command, "--overwrite", *rest)
    assert code == 2  # since there is nothing to compute with
    assert "exists, and" not in err


@pytest.mark.parametrize("command", ["locate", "view"])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(run, command, tmp_path):
    """The runs do not exist either, which would be the error if they had been looked for first."""
    (tmp_path / "file").touch()
    code, said = run(command, "target", "golden", "-o", "file/out")
    assert code == 2
    assert said.startswith("msprobe: error: file/out: cannot be created (file is no directory)")
