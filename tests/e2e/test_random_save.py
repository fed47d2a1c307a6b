"""`random_save` writes down who draws random numbers, and from where."""

import csv
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from msprobe.pytorch import random_save, seed_all
from torch import nn
from torch.nn import functional as F  # noqa: N812

import msprobe_core
from msprobe_core.errors import ConfigError, StoreError

REPOSITORY = Path(msprobe_core.__file__).parents[1]


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def names(path):
    return [row["api_name"] for row in rows(path)]


def test_each_call_is_one_row(tmp_path):
    layer, x = nn.LSTM(4, 4, num_layers=2, dropout=0.5), torch.ones(1, 2, 4)
    with random_save(tmp_path / "a" / "b") as log:
        random.random()
        random.sample(range(9), 3)  # draws several times inside
        np.random.rand(2)
        np.random.default_rng(3).normal()
        torch.rand(2)
        torch.empty(3).uniform_()
        F.dropout(x, 0.5)
        nn.Dropout(0.0)(x)  # draws nothing
        F.dropout(x, 0.5, training=False)
        layer(x)
        nn.Linear(2, 2)
    random.random()
    np.random.rand()
    torch.rand(1)
    F.dropout(x)
    assert names(log.path) == [
        "random.random", "random.sample", "numpy.random.rand", "numpy.random.Generator.normal", "torch.rand",
        "torch.Tensor.uniform_", "torch.dropout", "torch.lstm", "torch.Tensor.uniform_", "torch.Tensor.uniform_",
    ]  # fmt: skip
    assert re.fullmatch(rf"random_proc{os.getpid()}_\d+\.csv", log.path.name)
    assert log.path.stat().st_mode & 0o077 == 0
    assert log.path.parent.stat().st_mode & 0o077 == 0


def test_a_row_leads_to_the_users_line(tmp_path):
    with random_save(tmp_path) as log:
        F.dropout(torch.ones(2), 0.5)
    (row,) = rows(log.path)
    frames = row["stack"].split("\n")
    assert re.match(r"File .*functional\.py", frames[0])  # where PyTorch draws
    assert any(__file__ in frame for frame in frames)
    assert "F.dropout(torch.ones(2), 0.5)" in row["stack"]
    assert "msprobe_core" not in row["stack"]
    assert "plugins" not in row["stack"]


def test_it_draws_nothing_itself_and_changes_no_result(tmp_path):
    def draws():
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        rng = np.random.default_rng(0)
        return [
            random.gauss(0, 1), np.random.rand(), rng.random(), torch.rand(2).tolist(),
            F.dropout(torch.ones(9), 0.5).tolist(), nn.RNN(2, 2, 3, dropout=0.5)(torch.ones(1, 2))[0].tolist(),
            random.random(), np.random.rand(), torch.rand(1).item(),
        ]  # fmt: skip

    expected = draws()
    with random_save(tmp_path):
        assert draws() == expected


def test_a_job_names_the_rank_and_two_files_never_meet(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with random_save(tmp_path) as first, random_save(tmp_path) as second:
        random.random()
    assert first.path != second.path
    assert first.path.name.startswith("random_rank3_")
    assert names(first.path) == names(second.path) == ["random.random"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_it_goes_together_with_seed_all_in_any_order(tmp_path, order):
    before = random.random, np.random.rand, torch.rand, dict(vars(torch.Tensor))
    log = random_save(tmp_path)
    seeding = seed_all(is_enhanced=True)
    assert random.random() == random.random()
    assert torch.equal(F.dropout(torch.ones(60)), F.dropout(torch.ones(60)))
    ends = (log.stop, seeding.restore)
    ends[order[0]]()
    ends[order[1]]()
    assert (random.random, np.random.rand, torch.rand, dict(vars(torch.Tensor))) == before
    assert names(log.path) == ["random.random"] * 2 + ["torch.dropout"] * 2
    assert random.random() != random.random()


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_a_process_that_is_killed_loses_no_row(tmp_path):
    script = (
        f"import sys; sys.path[:0] = [{str(REPOSITORY)!r}, {str(REPOSITORY / 'plugins' / 'pytorch')!r}]\n"
        "import os, random, signal\n"
        "from msprobe.pytorch import random_save\n"
        "random_save()\n"
        "random.random(); random.random()\n"
        "if os.fork() == 0:\n"
        "    random.random()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (path,) = (tmp_path / "output").iterdir()
    assert names(path) == ["random.random"] * 2  # those of the parent


def test_no_cell_is_a_formula(tmp_path):
    code = compile("import random\nrandom.random()\n", '=cmd|"x"!A1\n=1+1', "exec")
    with random_save(tmp_path) as log:
        exec(code, {})
    (row,) = rows(log.path)
    assert all(cell[0] not in "=+-@%\t\r" for cell in row.values())
    assert '=cmd|"x"!A1' in row["stack"]  # as it is, inside of a cell that begins with "File"


def test_a_full_disk_is_said_once_and_training_goes_on(tmp_path, caplog):
    log = random_save(tmp_path)
    log._file.close()
    log._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    assert 0 <= random.random() < 1
    assert 0 <= random.random() < 1
    log.stop()
    assert len([record for record in caplog.records if "cannot be written" in record.getMessage()]) == 1


@pytest.mark.parametrize(("path", "error"), [(3, ConfigError), ("", ConfigError), ("file", StoreError)])
def test_a_wrong_path_is_a_clear_error(tmp_path, monkeypatch, path, error):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    before = random.random
    with pytest.raises(error):
        random_save(path)
    assert random.random is before
