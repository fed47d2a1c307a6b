"""``msprobe verl compare logprob`` and ``weights`` on runs of a tiny policy."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest
from rl_runs import Recipe, write_run

from msprobe_core.judge.limits import Precision
from msprobe_core.rl.weights import assumed_precision

UNSENT = "model.layers.1.mlp.down_proj.weight"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return the directory of a run recorded by a recipe; each is recorded once."""
    made: dict[str, Path] = {}

    def make(**recipe: object) -> Path:
        key = repr(sorted(recipe.items()))
        if key not in made:
            made[key] = write_run(tmp_path_factory.mktemp("run") / "run", Recipe(task="statistics", **recipe))
        return made[key]

    return make


class TestLogProb:
    def test_a_healthy_run_agrees(self, run: Run, runs: Callable[..., Path], tmp_path: Path) -> None:
        code, out, _ = run("verl", "compare", "logprob", runs(), "-o", tmp_path)
        assert code == 0
        assert out.splitlines()[-1] == "AGREE: the log-probs are within what rounding explains."
        result = json.loads((tmp_path / "verl_logprob.json").read_bytes())
        assert result["verdict"] == "agree"
        assert not any(cause["is_named"] for cause in result["numbers"]["steps"]["2"]["causes"].values())
        assert 1e-8 < result["numbers"]["steps"]["1"]["rms"] < 2e-6

    def test_a_users_file_is_replaced_on_demand_only(self, run: Run, runs: Callable[..., Path], tmp_path: Path) -> None:
        theirs = tmp_path / "verl_logprob.json"
        theirs.write_text("mine")
        command = ("verl", "compare", "logprob", runs(), "-o", tmp_path)
        code, _, err = run(*command)
        assert code == 2
        assert "verl_logprob.json: exists, and `msprobe verl compare logprob` has not written it" in err
        assert list(tmp_path.iterdir()) == [theirs]
        assert theirs.read_text() == "mine"
        assert run(*command, "--overwrite")[0] == 0
        assert run(*command)[0] == 0  # over its own

    def test_a_parameter_that_was_not_sent_is_named(self, run: Run, runs: Callable[..., Path], tmp_path: Path) -> None:
        code, out, _ = run("verl", "compare", "logprob", runs(unsent=(UNSENT,)), "-o", tmp_path)
        assert code == 1
        assert "step 2: unsynchronised parameter explains 100%" in out
        assert UNSENT in out
        steps = json.loads((tmp_path / "verl_logprob.json").read_bytes())["numbers"]["steps"]
        named = {step: [n for n, c in own["causes"].items() if c["is_named"]] for step, own in steps.items()}
        assert named == {"1": [], "2": ["unsynchronised parameter"]}

    def test_a_shift_and_its_worst_token_are_named(self, run: Run, runs: Callable[..., Path], tmp_path: Path) -> None:
        code, out, _ = run("verl", "compare", "logprob", runs(shift=1), "--steps", "1", "-o", tmp_path, "--xlsx")
        assert code == 1
        assert "off by one explains 100%: shifted by +1" in out
        assert "the worst +" in out or "the worst -" in out
        books = {path.name.split("_")[2]: path for path in tmp_path.glob("*.xlsx")}
        assert set(books) == {"measures", "causes", "groups", "tokens"}
        header = [cell.value for cell in next(openpyxl.load_workbook(books["tokens"])["compare"].iter_rows())]
        assert header == [
            "step", "sample", "id", "position", "turn", "token", "training", "rollout", "difference", "verdict",
        ]  # fmt: skip

    def test_other_tokens_come_first(self, run: Run, runs: Callable[..., Path], tmp_path: Path) -> None:
        code, out, _ = run("verl", "compare", "logprob", runs(retokenise=True), "-o", tmp_path)
        assert code == 1
        findings = json.loads((tmp_path / "verl_logprob.json").read_bytes())["findings"]
        assert findings[0]["sentence"].startswith("1 of 6 samples have other token ids than were generated")
        assert "retokenised explains it" in out.splitlines()[-1]

    def test_an_engine_in_bfloat16_agrees_and_the_cast_is_named(
        self, run: Run, runs: Callable[..., Path], tmp_path: Path
    ) -> None:
        code, out, _ = run("verl", "compare", "logprob", runs(dtype="bfloat16"), "-o", tmp_path)
        assert code == 0
        assert "precision cast explains" in out
        assert run("verl", "compare", "logprob", runs(dtype="bfloat16"), "--dtype", "float32", "-o", tmp_path)[0] == 1

    def test_a_healthy_run_is_a_baseline(self, run: Run, runs: Callable[..., Path], tmp_path: Path) -> None:
        noisy = runs(noise=1e-5)
        assert run("verl", "compare", "logprob", noisy, "-o", tmp_path)[0] == 1
        code, out, _ = run("verl", "compare", "logprob", noisy, "--baseline", runs(noise=1.2e-5), "-o", tmp_path)
        assert code == 0
        assert "nats (baseline)" in out
        assert run("verl", "compare", "logprob", runs(shift=1), "--baseline", noisy, "-o", tmp_path)[0] == 1

    def test_tables_are_csv(self, run: Run, runs: Callable[..., Path], tmp_path: Path) -> None:
        run("verl", "compare", "logprob", runs(unsent=(UNSENT,)), "-o", tmp_path)
        (path,) = tmp_path.glob("verl_logprob_groups_*.csv")
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert {row["by"] for row in rows} == {
            "turn", "position", "length", "sample", "place", "probability", "version"
        }  # fmt: skip
        assert {row["verdict"] for row in rows if row["step"] == "1"} == {"pass"}
        assert {row["verdict"] for row in rows if row["step"] == "2"} == {"error"}


class TestWeights:
    def test_those_of_a_healthy_run_arrive(self, run: Run, runs: Callable[..., Path], tmp_path: Path) -> None:
        code, out, _ = run("verl", "compare", "weights", runs(), "-o", tmp_path)
        assert code == 0
        assert "step 1, replica 0: 16 equal" in out
        assert "step 0 to 1: 16 of 16 parameters changed" in out

    def test_one_that_was_not_sent_is_named(self, run: Run, runs: Callable[..., Path], tmp_path: Path) -> None:
        code, out, _ = run("verl", "compare", "weights", runs(unsent=(UNSENT,)), "--steps", "1", "-o", tmp_path)
        assert code == 1
        assert out.splitlines()[-1] == f"DIFFERENT: step 1: {UNSENT} is not synchronised."
        assert "has the hash that it should have had at step 0: it was not updated" in out

    def test_a_cast_is_told_and_agrees(self, run: Run, runs: Callable[..., Path], tmp_path: Path) -> None:
        code, out, _ = run("verl", "compare", "weights", runs(dtype="bfloat16"), "-o", tmp_path)
        assert code == 0
        assert "16 parameters of replica 0 were cast, float32 became bfloat16" in out


class TestWrongInput:
    @pytest.mark.parametrize("command", ["logprob", "weights"])
    def test_a_directory_that_is_none(self, run: Run, tmp_path: Path, command: str) -> None:
        code, _, err = run("verl", "compare", command, tmp_path / "nowhere")
        assert (code, "does not exist" in err) == (2, True)
        code, _, err = run("verl", "compare", command, tmp_path)
        assert (code, "holds no run.json" in err) == (2, True)
        (tmp_path / "file").touch()
        code, _, err = run("verl", "compare", command, tmp_path / "file")
        assert (code, "is a file; give the directory" in err) == (2, True)

    def test_a_stage_a_step_or_a_tensor_that_is_not_there(
        self, run: Run, runs: Callable[..., Path], tmp_path: Path
    ) -> None:
        code, _, err = run("verl", "compare", "logprob", runs(), "--steps", "9", "-o", tmp_path)
        assert (code, "has no step 9; recorded are 1, 2" in err) == (2, True)
        code, _, err = run("verl", "compare", "logprob", runs(), "--training", "new_log_probs", "-o", tmp_path)
        assert (code, "has no 'new_log_probs', but advantages, " in err) == (2, True)
        code, _, err = run("verl", "compare", "logprob", runs(), "--dtype", "int8", "-o", tmp_path)
        assert (code, "is no floating-point dtype" in err) == (2, True)

    @pytest.mark.parametrize("name", ["trainer/step1/batch.safetensors", "trainer/step1/batch.json"])
    def test_a_file_that_is_cut_off(self, run: Run, tmp_path: Path, name: str) -> None:
        path = write_run(tmp_path / "run", Recipe(task="statistics", steps=1)) / name
        path.write_bytes(path.read_bytes()[:-40])
        code, _, err = run("verl", "compare", "logprob", tmp_path / "run", "-o", tmp_path)
        assert code == 2
        assert "cut off" in err

    def test_weights_that_cannot_be_read(self, run: Run, tmp_path: Path) -> None:
        root = write_run(tmp_path / "run", Recipe(task="statistics", steps=1))
        (root / "update_weights_recv" / "step1" / "rank0" / "weights.json").write_text('{"version": 1, "oops": 2}')
        code, _, err = run("verl", "compare", "weights", root, "-o", tmp_path)
        assert code == 2
        assert "weights.json" in err


@pytest.mark.parametrize(
    ("dtypes", "precision"),
    [
        (["torch.float64"], Precision.FLOAT64),
        (["torch.float64", "torch.bfloat16"], Precision.BFLOAT16),
        (["torch.int64"], Precision.FLOAT32),
    ],
    ids=["float64", "mixed", "integers"],
)
def test_limits_are_those_of_the_coarser_dtype(dtypes, precision):
    assert assumed_precision(*dtypes) is precision
