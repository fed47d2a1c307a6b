"""Repetitions of a golden step with other last digits: real training, which goes on as if there had been none."""

import random
import shlex
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
import torch
from architectures import ARCHITECTURES
from jobs import compare_calibrated_with_bare, run_job
from msprobe.pytorch import PrecisionDebugger, calibration
from msprobe.pytorch._perturb import Noise
from torch_has import SHARDS_ON_CPU

from msprobe_core.cli import main
from msprobe_core.compare import compare_dumps
from msprobe_core.errors import ConfigError, SessionError
from msprobe_core.model import Perturbation, RoundingUnit

pytestmark = pytest.mark.usefixtures("close_debugger")


@dataclass
class Training:
    """What is left after a training."""

    losses: list
    weights: dict
    gradients: dict
    moments: list
    random: tuple


def train(
    directory, *, repeats=0, dtype=None, micro_batches=1, steps=3, calibrated=1, level="L0", on_run=lambda run: None
):
    """Train a tiny Llama with dropout and random numbers of all kinds; record, or calibrate, one step."""
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    architecture = ARCHITECTURES["llama"]
    model = architecture.build(attention_dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))
    debugger = PrecisionDebugger(dump_path=directory, level=level, step=[calibrated])
    losses = []

    def one_step(batches):
        optimizer.zero_grad()
        total = 0.0
        for batch in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
                loss = model(**batch).loss * (1 + random.random() + np.random.rand()) + torch.rand(()) * 0.1
            loss.backward()
            total += loss.item()
        optimizer.step()
        schedule.step()
        return total

    for step in range(steps):
        batches = [architecture.batch(10 * step + i) for i in range(micro_batches)]
        if repeats:
            with calibration(debugger, model, [optimizer, schedule], repeats) as runs:
                for run in runs:
                    loss = one_step(batches)
                    if run.is_golden:
                        losses.append(loss)
                    on_run(run)
        else:
            with debugger.start(model):
                losses.append(one_step(batches))
        debugger.step()
    debugger.close()
    return Training(
        losses,
        {name: value.clone() for name, value in model.state_dict().items()},
        {name: parameter.grad.clone() for name, parameter in model.named_parameters()},
        [value for state in optimizer.state.values() for value in state.values()],
        (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), schedule.state_dict()),
    )


def assert_equal(one, other):
    assert one.losses == other.losses
    for name in ("weights", "gradients"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert len(one.moments) == len(other.moments) > 0
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one.moments, other.moments, strict=True))
    for mine, theirs in zip(one.random, other.random, strict=True):
        assert mine.keys() == theirs.keys() if isinstance(mine, dict) else mine == theirs


def unit(root, step=1):
    (found,) = (root / f"step{step}").iterdir()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "micro_batches", "calibrated"),
    [(torch.bfloat16, 1, 1), (torch.float32, 2, 0)],
    ids=["autocast", "accumulation in the first step"],
)
def test_the_training_goes_on_as_if_there_had_been_no_repetitions(tmp_path, dtype, micro_batches, calibrated):
    settings = {
        "dtype": dtype,
        "micro_batches": micro_batches,
        "calibrated": calibrated,
        "level": "mix",
        "steps": calibrated + 2,
    }
    bare = train(tmp_path / "bare", **settings)
    assert_equal(bare, train(tmp_path / "run", repeats=2, **settings))
    # The step itself is recorded as usual, and so is each repetition, but for last digits.
    golden = unit(tmp_path / "run", calibrated)
    assert differences(unit(tmp_path / "bare", calibrated), golden) == 0
    for number in (1, 2):
        assert differences(unit(tmp_path / "run/calibration" / f"run{number}", calibrated), golden) > 100
    assert not (tmp_path / "run/calibration/run3").exists()


def differences(target, golden, *, are_within_limits=True):
    """Return how many rows differ at all, of two dumps that have the same rows."""
    compared = compare_dumps(target, golden).units[0]
    # Gradients that would be 0 without rounding differ by a lot.
    allowed = {"pass"} if are_within_limits else {"pass", "warning", "error"}
    assert {name for name, number in compared.counts.items() if number} <= allowed
    return compared.rows.filter((pl.col("max_diff") != 0) | (pl.col("norm_diff") != 0)).height


def test_only_selected_steps_are_repeated(tmp_path):
    numbers = []
    train(tmp_path / "run", repeats=2, on_run=lambda run: numbers.append(run.number))
    assert numbers == [0, 0, 1, 2, 0]


def test_repetitions_differ_from_each_other_and_are_the_same_in_another_process(tmp_path):
    train(tmp_path / "a", repeats=2, steps=2)
    train(tmp_path / "b", repeats=1, steps=2)
    first = unit(tmp_path / "a/calibration/run1")
    assert differences(first, unit(tmp_path / "b/calibration/run1")) == 0
    assert differences(first, unit(tmp_path / "a/calibration/run2")) > 100


def test_a_repetition_that_fails_does_not_reach_the_training(tmp_path, caplog):
    def fail(run):
        if run.number == 1:
            raise ArithmeticError("planted")

    bare = train(tmp_path / "bare")
    assert_equal(bare, train(tmp_path / "run", repeats=3, on_run=fail))
    assert "a repetition has failed (ArithmeticError: planted)" in caplog.text
    assert not list((tmp_path / "run/calibration").rglob("dump.json"))  # half a repetition is none


def test_an_error_of_the_step_itself_is_the_trainings_own(tmp_path):
    def fail(run):
        raise ArithmeticError("planted")

    with pytest.raises(ArithmeticError, match="planted"):
        train(tmp_path / "run", repeats=3, on_run=fail)
    assert PrecisionDebugger._instance is not None


def test_a_state_that_cannot_be_copied_is_said_and_the_step_runs_once(tmp_path, caplog):
    model = torch.nn.Linear(2, 2)
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L0")
    with calibration(debugger, model, optimizer=object()) as runs:
        assert [run.number for run in runs if model(torch.ones(1, 2)).sum().backward() is None] == [0]
    assert "object has no state_dict()" in caplog.text


def test_arguments_are_checked(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L0")
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="'repeats' is 0"), calibration(debugger, model, repeats=0):
        pass
    with pytest.raises(ConfigError, match="modes: inputs, everywhere"), calibration(debugger, model, mode="all"):
        pass
    debugger.start(model)
    with pytest.raises(SessionError, match="between stop\\(\\) and start"), calibration(debugger, model):
        pass


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
@pytest.mark.filterwarnings("ignore")
def test_jobs_of_several_processes(tmp_path):
    kinds = ["ddp", "fsdp2", "tp"] if SHARDS_ON_CPU else ["ddp", "tp"]
    assert run_job(compare_calibrated_with_bare, 2, tmp_path, kinds) == [dict.fromkeys(kinds, True)] * 2
    for kind in kinds:
        golden = tmp_path / kind / "step1/rank0"
        assert differences(tmp_path / kind / "calibration/run1/step1/rank0", golden, are_within_limits=False) > 20


def test_last_digits_are_flipped_in_a_sixth_of_the_elements_of_any_dtype():
    torch.manual_seed(0)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        noise = Noise(Perturbation(), 7)
        values = torch.randn(6000).to(dtype)
        changed = noise.changed(values)
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        distance = changed.view(bits).long() - values.view(bits).long()
        assert set(distance.tolist()) == {-1, 0, 1}  # the next number
        assert 0.14 < (distance != 0).double().mean() < 0.19
        assert abs(distance.sign().double().mean()) < 0.02
        assert torch.equal(changed, Noise(Perturbation(), 7).changed(values))


def test_what_has_no_last_digit_stays():
    values = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), torch.finfo(torch.float32).max] * 200)
    changed = Noise(Perturbation(), 1).changed(values)
    assert torch.equal(changed.isfinite(), values.isfinite())
    assert torch.equal(changed[values == 0], values[values == 0])


def test_counts_stay_whole(tmp_path, close_debugger):
    """Tokens per expert, counted in floating point: one less would leave a row of the experts' results unset."""

    class Router(torch.nn.Module):
        def forward(self, ids):
            counts.append(torch.stack([(ids == i).float().sum() for i in range(4)]))
            return self.weight * counts[-1].sum() * torch.ones(3).cumsum(0)

        weight = torch.nn.Parameter(torch.full((3,), 0.3))

    counts, weighted = [], []
    model, debugger = Router(), PrecisionDebugger(dump_path=tmp_path, level="L0")
    with calibration(debugger, model, repeats=3) as runs:
        for _ in runs:
            weighted.append(model(torch.arange(64) % 4).detach())
    assert len(counts) == 4
    assert all(torch.equal(count, torch.full((4,), 16.0)) for count in counts)
    assert any(not torch.equal(each, weighted[0]) for each in weighted[1:])


def test_the_rounding_of_a_coarser_format():
    torch.manual_seed(0)
    values = torch.randn(6000)
    errors = (Noise(Perturbation(dtype=RoundingUnit.BFLOAT16), 1).changed(values) - values).div(values).abs()
    assert 0.9 * 2**-8 < errors.max() <= 1.001 * 2**-8
    assert abs(errors.square().mean().sqrt() / 2**-8 - 3**-0.5) < 0.02


def test_inputs_only(tmp_path):
    model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 8))
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="mix", step=[0])
    ids = torch.arange(50)
    seen = {}
    with calibration(debugger, model, repeats=1, mode="inputs") as runs:
        for run in runs:
            model.zero_grad()
            hidden = model[0](ids)
            seen[run.number] = hidden.detach().clone(), model[1](hidden).detach().clone()
            model[1](hidden).sum().backward()
    changed = seen[0][0] != seen[1][0]
    assert 0.08 < changed.double().mean() < 0.25
    # The next layer computes what it always does.
    assert torch.equal(seen[1][1], model[1](seen[1][0]))


def test_a_step_with_an_optimizer_that_was_not_given_runs_once(tmp_path, caplog):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L0")
    with calibration(debugger, model) as runs:
        numbers = []
        for run in runs:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            numbers.append(run.number)
    assert numbers == [0]
    assert "the optimizer SGD steps, but was not given" in caplog.text


PROGRAM = """
import sys, torch
from msprobe.pytorch import PrecisionDebugger
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L0")
with debugger.start(model):
    model(torch.randn(64, 8)).square().mean().backward()
debugger.close()
"""


def run_command(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return ended.value.code


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_a_whole_program_as_a_repetition(tmp_path, capsys):
    program, golden = tmp_path / "program.py", tmp_path / "golden"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(golden)]
    subprocess.run(command, check=True)
    elsewhere = shlex.join([*command[:2], str(tmp_path / "moved")])
    assert run_command("calibrate", golden, "--run", elsewhere, "-k", "2") == 0
    assert not (tmp_path / "moved").exists()
    assert (golden / "noise_profile.parquet").exists()
    for number in (1, 2):
        assert differences(unit(golden / f"calibration/run{number}", 0), unit(golden, 0)) > 5
    assert run_command("calibrate", golden, "--run", shlex.join([sys.executable, "-c", "pass"])) == 2
    assert "recorded nothing" in capsys.readouterr().err
