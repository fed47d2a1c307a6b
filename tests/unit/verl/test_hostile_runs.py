"""Recorded runs that are damaged, or contradict themselves: one sentence each, and never that all is well."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rl_runs import Recipe, write_run

from msprobe_core.errors import DumpError
from msprobe_core.rl.files import load_batch, save_batch

Run = Callable[..., tuple[int, str, str]]
SAMPLES = "actor_compute_log_prob/step1/rank0/samples.json"
BATCH = "trainer/step1"
SENT = "update_weights_send/step1/rank0/weights.json"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("recorded") / "run", Recipe(steps=1))


@pytest.fixture
def copied(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def edit(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def rows(content: Any, **new: int) -> None:
    for call in content["micro_batches"]:
        for row in call["rows"]:
            row.update(new)


@pytest.mark.parametrize(
    ("file", "change", "command", "message"),
    [
        (SAMPLES, lambda o: rows(o, offset=10**6), "layers", "have no position of a sample in common"),
        (SAMPLES, lambda o: rows(o, offset=-3), "layers", "has a negative place"),
        (SAMPLES, lambda o: rows(o, length=-3), "layers", "has a negative place"),
        (SAMPLES, lambda o: o.update(micro_batches=[]), "layers", "have no sample in common"),
        (f"{BATCH}/batch.json", lambda o: o.update(samples=o["samples"][:2]), "logprob", "names 2 samples and the"),
        (f"{BATCH}/batch.json", lambda o: o.update(samples=o["samples"] * 2), "logprob", "names 12 samples and the"),
        (SENT, lambda o: o.update(parameters=[]), "weights", "names no parameter"),
    ],
)
def test_contradictions_are_errors(
    run: Run, copied: Path, file: str, change: Callable[[Any], object], command: str, message: str
) -> None:
    edit(copied / file, change)
    code, _, err = run("verl", "compare", command, copied, "-o", copied / "out")
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("file", "message"), [(SAMPLES, "there is no samples.json"), ("rollout_generate/step1/rank0/dump.json", "no dump")]
)
def test_missing_files_are_errors(run: Run, copied: Path, file: str, message: str) -> None:
    (copied / file).unlink()
    code, _, err = run("verl", "compare", "layers", copied, "-o", copied / "out")
    assert code == 2
    assert message in err


def test_two_runs_of_which_one_is_damaged_do_not_agree(run: Run, recorded: Path, copied: Path) -> None:
    (copied / "rollout_generate" / "step1" / "rank0" / "dump.json").unlink()
    code, out, _ = run("verl", "compare", "runs", copied, recorded, "-o", copied / "out")
    assert code == 1
    assert "holds no dump" in out
    edit(copied / SAMPLES, lambda o: rows(o, offset=10**6))
    code, out, _ = run("verl", "compare", "runs", copied, recorded, "--exact", "-o", copied / "out")
    assert code == 1


@pytest.mark.parametrize(
    "member",
    [{"shape": [2**40, 2**40], "data_offsets": [0, 0]}, {"shape": [2**70], "data_offsets": [0, 8]},
     {"shape": [-1, -2], "data_offsets": [0, 8]}, {"shape": [1] * 40, "data_offsets": [0, 4]},
     {"shape": [0, -1], "data_offsets": [0, 0]}, {"shape": [2], "data_offsets": [-4, 4]}],
    ids=str,
)  # fmt: skip
def test_tensors_that_cannot_be(copied: Path, member: dict[str, Any]) -> None:
    """Sizes whose product wraps around in 64 bits came to an internal error."""
    header = json.dumps({"x": {"dtype": "F32"} | member}).encode()
    (copied / BATCH / "batch.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(DumpError, match="its description is wrong"):
        load_batch(copied / BATCH)


@pytest.mark.parametrize("name", [SAMPLES, SENT, f"{BATCH}/batch.json", "run.json", f"{BATCH}/batch.safetensors"])
def test_nesting_without_end(run: Run, copied: Path, name: str) -> None:
    deep = b'{"version": ' + b"[" * 100_000
    content = len(deep).to_bytes(8, "little") + deep if name.endswith(".safetensors") else deep
    (copied / name).write_bytes(content)
    for what in ("logprob", "weights"):
        code, out, err = run("verl", "compare", what, copied, "-o", copied / "out")
        assert "internal error" not in out + err
        assert code in {0, 1, 2}


@pytest.mark.parametrize(("number", "code"), [(1, 1), (None, 2)])
def test_log_probs_that_are_no_numbers(run: Run, copied: Path, number: int | None, code: int) -> None:
    batch, tensors = load_batch(copied / BATCH)
    log_probs = tensors["rollout_log_probs"].copy()
    log_probs[:number, :number] = np.nan
    save_batch(copied / BATCH, batch, tensors | {"rollout_log_probs": log_probs})
    found, out, err = run("verl", "compare", "logprob", copied, "-o", copied / "out")
    assert found == code
    assert "NaN or Inf" in (out or err).splitlines()[-1]


def test_a_mask_of_another_shape(run: Run, copied: Path) -> None:
    batch, tensors = load_batch(copied / BATCH)
    short = tensors["response_mask"][:, :-1]
    save_batch(copied / BATCH, batch, tensors | {"response_mask": short})
    code, _, err = run("verl", "compare", "logprob", copied, "-o", copied / "out")
    assert code == 2
    assert "'response_mask' is" in err
