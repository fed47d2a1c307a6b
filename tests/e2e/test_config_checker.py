"""ConfigChecker in a training: what its pack holds, and the sheets that two packs make."""

import json
import os
import subprocess
import zipfile
from pathlib import Path

import openpyxl
import pytest

import msprobe_core
from msprobe_core.cli import main
from msprobe_core.config_check.pack import read_pack

PROGRAM = Path(msprobe_core.__file__).parents[1] / "tests" / "support" / "checked_program.py"


@pytest.fixture(scope="module")
def packs(torch_python, tmp_path_factory):
    """Packs of two trainings; the other one has its samples reversed, another eps, and draws more often."""
    directory = tmp_path_factory.mktemp("packs")
    for name, settings in {"golden": (), "target": ("flip=1", "eps=1e-6", "more=1")}.items():
        command = [torch_python, str(PROGRAM), "pytorch", str(directory / f"{name}.zip"), *settings]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return directory


@pytest.mark.slow
def test_a_pack_has_random_calls_rows_of_the_data_and_the_optimizer(packs):
    with zipfile.ZipFile(packs / "golden.zip") as archive:
        names = set(archive.namelist())
        calls = json.loads(archive.read("random/rank0.json"))
    steps = range(3)
    assert {"env", "pip", "random/rank0.json", "manifest/rank0.json"} <= names
    assert {f"dataset/step{n}/rank0/dataset.json" for n in steps} <= names
    assert {f"weights/step{n}/rank0/weight.json" for n in steps} <= names
    counts = {name: sum(site["count"] for site in sites) for name, sites in calls.items()}
    assert {name: counts[name] for name in ("torch.manual_seed", "torch.rand", "random.random", "np.random.rand")} == {
        "torch.manual_seed": 1, "torch.rand": 3, "random.random": 3, "np.random.rand": 3,
    }  # fmt: skip
    assert "train_pytorch" in calls["torch.rand"][0]["stack"][0]
    manifest = read_pack(packs / "golden.zip").manifests[0]
    assert [(rows.step, rows.name, rows.count, len(rows.rows)) for rows in manifest.data] == [
        (step, "args.0", 4, 4) for step in steps
    ]
    assert [each.type.rpartition(".")[2] for each in manifest.run.optimizers] == ["Adam"]


@pytest.mark.slow
def test_two_packs_make_the_published_sheets(packs, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["config_check", "-c", str(packs / "golden.zip"), str(packs / "target.zip"), "-o", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert ended.value.code == 1
    assert "eps is 1e-06 instead of 1e-05" in said
    assert "args.0 has the same 12 samples in another order" in said
    book = openpyxl.load_workbook(tmp_path / "out" / "result.xlsx")
    sheets = {sheet.title: [[cell.value for cell in row] for row in sheet.iter_rows()] for sheet in book}
    assert sheets["summary"][0] == ["filename", "pass_check"]
    statistics = ["equal", *(f"{each}_relative_diff" for each in ("max", "min", "mean", "norm"))]
    assert sheets["dataset"][0] == ["step", "rank", "tag", *statistics]
    assert sheets["weights"][0] == ["step", "rank", "weight_name", *statistics]
    assert sheets["random"][0] == ["op", "rank", "bench_stack", "cmp_stack", "bench_count", "cmp_count", "check_result"]
    off = [row[4:] for row in sheets["dataset"][1:]]
    # Extremes do not depend on the order of samples; mean and norm do by the rounding of a sum in float32.
    assert {(largest, smallest) for largest, smallest, _, _ in off} == {(0, 0)}
    assert max(abs(value) for _, _, *sums in off for value in sums) < 1e-6
    counts = [row[4:] for row in sheets["random"][1:] if row[0] == "random.random"]
    assert [3, 3, True] in counts  # at each step
    assert [0, 1, False] in counts  # before the training
