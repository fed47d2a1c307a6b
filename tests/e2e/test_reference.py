"""mindstudio-probe compares our dumps, with themselves and with its own, and we compare its; takes some minutes.

    MSPROBE_REFERENCE=/path/to/its/bin/msprobe pytest tests/e2e/test_reference.py

The python of its environment is in the same directory, and has PyTorch too.
"""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

REFERENCE = os.environ.get("MSPROBE_REFERENCE")
TRAINING = Path(__file__).parents[1] / "support" / "tiny_training.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not REFERENCE, reason="MSPROBE_REFERENCE does not name the command of mindstudio-probe"),
]

KINDS = {
    "statistics": [],
    "md5": ["--summary", "md5"],
    "xor": ["--summary", "xor"],
    "tensor": ["--task", "tensor"],
    "modules": ["--level", "L0", "--micro", "2"],
    "apis": ["--level", "L1"],
    "saved": ["--level", "debug"],
    "saved_tensors": ["--task", "tensor", "--level", "debug"],
    "ranks": ["--world", "2"],
}
NUM_SHARED = {"modules": 46, "apis": 40, "saved": 14, "saved_tensors": 14}
"""At least so many rows of ours have a partner in theirs; of the other kinds 65."""


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """Return a function that records with either probe, once."""
    root = tmp_path_factory.mktemp("reference")

    def record(who, kind, *more):
        out = root / who / "".join([kind, *more]).replace("=", "-")  # of which their paths may have none
        if not out.exists():
            python = sys.executable if who == "ours" else str(Path(REFERENCE).parent / "python")
            command = [python, str(TRAINING), str(out), *KINDS[kind], *more]
            subprocess.run(command, check=True, capture_output=True, timeout=600)
        (step,) = out.iterdir()
        return step

    return record


def dump_of(step):
    """Return what their command takes: the file of a process, or the directory of several ranks."""
    units = sorted(step.iterdir())
    files = [*units[0].glob("debug.json"), *units[0].glob("dump.json")]
    return step if len(units) > 1 else files[0]


def compare_by_them(target, golden, out):
    """Return the rows of each table."""
    command = [REFERENCE, "compare", "-tp", str(dump_of(target)), "-gp", str(dump_of(golden)), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    tables = [list(csv.DictReader(path.read_text().splitlines())) for path in sorted(out.glob("*.csv"))]
    assert tables, done.stdout[-2000:]
    return tables


@pytest.mark.parametrize("kind", list(KINDS))
def test_they_compare_ours_with_ours(recorded, tmp_path, kind):
    tables = compare_by_them(recorded("ours", kind), recorded("ours", kind), tmp_path)
    assert len(tables) == (2 if kind == "ranks" else 1)
    for rows in tables:
        assert len(rows) > 10
        assert {row["Result"] for row in rows} == {"pass"}
        assert all(row["Bench Name"] == row["NPU Name"] for row in rows)


@pytest.mark.parametrize("kind", list(KINDS))
def test_they_compare_ours_with_theirs(recorded, tmp_path, kind):
    for rows in compare_by_them(recorded("ours", kind), recorded("theirs", kind), tmp_path):
        shared = [row for row in rows if row["Bench Name"] not in {"N/A", ""}]
        assert len(shared) >= NUM_SHARED.get(kind, 65)
        # Gradients of an API are those of its arguments in ours, and those of its last autograd node in theirs.
        own = [row["NPU Name"] for row in shared if row["Result"] == "error" and "NPU MD5" not in row]
        assert all(".backward." in name for name in own)


def test_they_find_our_fault(recorded, tmp_path):
    (rows,) = compare_by_them(recorded("ours", "md5", "--factor=3"), recorded("ours", "md5"), tmp_path)
    first = next(row for row in rows if row["Result"] == "error")
    assert first["NPU Name"].startswith("Tensor.__mul__.0.forward")


@pytest.mark.parametrize("kind", list(KINDS))
def test_we_compare_theirs_with_theirs_and_with_ours(recorded, tmp_path, kind):
    from msprobe_core.compare import compare_dumps

    theirs = recorded("theirs", kind)
    same = compare_dumps(theirs, theirs)
    assert same.agrees
    assert same.units[0].num_rows > 10
    mixed = compare_dumps(recorded("ours", kind), theirs)
    for unit in mixed.units:
        rows = unit.rows.filter((unit.rows["match"] == "both") & (unit.rows["phase"] != "backward"))
        assert rows.height >= 14
        assert rows.filter(rows["verdict"] == "error").height == 0
