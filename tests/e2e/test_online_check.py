"""The task `acc_check` in trainings: they stay as they are, right calls pass, and planted wrong kernels are found."""

import json
import logging

import pytest
import torch
from architectures import ARCHITECTURES, train
from checked_jobs import compare_checked_with_bare
from jobs import run_job
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch._framework import PyTorchFramework
from msprobe.pytorch._reduce import TorchReducer
from torch import nn
from torch.nn import functional
from torch_traces import traces_in

from msprobe_core.api_check.call_check import CallChecker
from msprobe_core.api_check.dump_check import check_dump
from msprobe_core.api_check.online import online_check, tally
from msprobe_core.api_check.online.held_dump import HeldDump
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.capture.debugger import controller_of
from msprobe_core.compat.published_tables import DETAIL_COLUMNS, RESULT_COLUMNS, PublishedFiles, read_rows

pytestmark = pytest.mark.usefixtures("close_debugger")


@pytest.fixture
def open_debugger(tmp_path):
    def make(**options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"task": "acc_check", "level": "L1", "acc_check": {"budget": 1000, **options}}))
        return PrecisionDebugger(path, dump_path=tmp_path / "run")

    return make


def coverage_of(run):
    (path,) = run.glob("acc_check_coverage_*.json")
    return json.loads(path.read_text())


def lines_of(run, step):
    (path,) = run.glob(f"step{step}/*/acc_check.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def state(model):
    found = {name: value.detach().numpy().tobytes() for name, value in model.state_dict().items()}
    return found | {f"{name}.grad": value.grad.numpy().tobytes() for name, value in model.named_parameters()}


# --- a training as it is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1000, 0.05])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_training_is_bitwise_the_same_and_all_calls_are_right(name, budget, tmp_path, open_debugger):
    architecture = ARCHITECTURES[name]
    plain = architecture.build()
    expected = [train(plain, architecture, step) for step in range(4)]
    expected_rng = torch.get_rng_state()

    probed = architecture.build()
    before = traces_in(probed)
    debugger = open_debugger(budget=budget)
    losses = []
    for step in range(4):
        debugger.start(probed)
        losses.append(train(probed, architecture, step))
        debugger.stop()
        debugger.step()
    debugger.close()

    assert losses == expected
    assert torch.equal(torch.get_rng_state(), expected_rng)
    assert state(probed) == state(plain)
    assert traces_in(probed) == before
    found = coverage_of(tmp_path / "run")
    verdicts = found["totals"]["verdicts"]
    assert verdicts["right"] >= (150 if budget == 1000 else 1)
    assert verdicts.keys() <= {"right", "ill_conditioned", "cannot_tell"}
    unchecked = [kind for kind in found["kinds"] if kind["why_not"]]
    if budget == 1000:
        assert len(unchecked) < len(found["kinds"]) / 5
        assert not any("budget" in kind["why_not"] for kind in unchecked)


@pytest.mark.slow
def test_ranks_train_as_they_are(tmp_path):
    results = run_job(compare_checked_with_bare, 2, tmp_path, "ddp")
    assert [result["same"] for result in results] == [True, True]
    assert all(result["verdicts"]["right"] > 20 and "wrong" not in result["verdicts"] for result in results)


def small_training(debugger, num_steps=3, dtype=torch.float32):
    torch.manual_seed(0)
    model = Classifier().to(dtype)
    for _ in range(num_steps):
        debugger.start(model)
        model(torch.randn(8, 32, dtype=dtype)).backward()
        debugger.stop()
        debugger.step()
    debugger.close()
    return model


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 16)

    def forward(self, x):
        return functional.softmax(self.second(functional.gelu(self.first(x))), -1)[:, 3].square().sum()


def test_nothing_is_kept_of_right_calls(tmp_path, open_debugger):
    small_training(open_debugger(error_data_path=str(tmp_path / "errors")))
    for step in range(3):
        (dump,) = (tmp_path / "run").glob(f"step{step}/*/dump.json")
        assert json.loads(dump.read_text())["data"] == {}
        assert list((dump.parent / "dump_tensor_data").iterdir()) == []
        assert {line["verdict"] for line in lines_of(tmp_path / "run", step)} == {"right"}
    assert not (tmp_path / "errors").exists()


def test_what_holds_for_the_program_does_not_reach_the_check(tmp_path, open_debugger):
    torch.manual_seed(0)
    debugger = open_debugger()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        torch.set_default_dtype(torch.float64)
        try:
            with torch.enable_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"):
                model = Classifier().float()
                debugger.start(model)
                model(torch.randn(8, 32, dtype=torch.float32)).backward()
                debugger.stop()
            with torch.inference_mode():
                debugger.step()
        finally:
            torch.set_default_dtype(torch.float32)
    debugger.close()
    assert coverage_of(tmp_path / "run")["totals"]["verdicts"].keys() == {"right"}


def test_nothing_is_fetched_or_computed_inside_of_a_step(open_debugger, monkeypatch):
    seen = []
    for owner, name in ((PyTorchFramework, "content"), (PyTorchFramework, "replay"), (TorchReducer, "statistics")):
        original = getattr(owner, name)

        def noted(*args, original=original, **kwargs):
            seen.append(is_inside)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)
    torch.manual_seed(0)
    model, is_inside = Classifier(), False
    debugger = open_debugger()
    for _ in range(2):
        debugger.start(model)
        is_inside = True
        model(torch.randn(8, 32)).backward()
        debugger.stop()
        is_inside = False
        debugger.step()
    assert len(seen) > 50
    assert not any(seen)


# --- wrong kernels ------------------------------------------------------------------------------------------------


def wrong_softmax(x, dim, half_to_float):
    exponents = torch.exp(x - x.amax(dim, keepdim=True))
    if x.dtype is torch.float64:
        return exponents / exponents.sum(dim, keepdim=True)
    return (exponents / exponents.bfloat16().sum(dim, keepdim=True, dtype=torch.bfloat16)).to(x.dtype)


def wrong_gelu(x, approximate="none"):
    scale = 1.0 if x.dtype is torch.float64 else 1.01
    return scale * 0.5 * x * (1.0 + torch.erf(x / 2.0**0.5))


def wrong_addmm(bias, x, y, beta=1, alpha=1):
    product = torch.mm(x, y)
    return product + bias if x.dtype is torch.float64 else product


@pytest.mark.parametrize(
    ("operator", "kernel", "dtype", "blamed"),
    [
        ("_softmax", wrong_softmax, torch.float32, "Functional.softmax"),
        ("gelu", wrong_gelu, torch.float32, "Functional.gelu"),
        ("gelu", wrong_gelu, torch.bfloat16, "Functional.gelu"),
        ("addmm", wrong_addmm, torch.float32, "Functional.linear"),
        ("addmm", wrong_addmm, torch.bfloat16, "Functional.linear"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*[Oo]verrid")
def test_a_kernel_that_is_wrong_in_this_process_is_found(
    operator, kernel, dtype, blamed, tmp_path, open_debugger, caplog
):
    library = torch.library.Library("aten", "IMPL")
    debugger = open_debugger(error_data_path=str(tmp_path / "errors"))
    try:
        library.impl(operator, kernel, "CPU")
        with caplog.at_level(logging.WARNING):
            small_training(debugger, dtype=dtype)
    finally:
        library._destroy()
    found = coverage_of(tmp_path / "run")
    wrong = {(kind["api"], kind["phase"]) for kind in found["kinds"] if "wrong" in kind["verdicts"]}
    assert (blamed, "forward") in wrong
    assert {api for api, _ in wrong} == {blamed}
    assert f"step 0: acc_check: {blamed}.0.forward is wrong: " in caplog.text
    (dump,) = (tmp_path / "run").glob("step0/*/dump.json")
    data = json.loads(dump.read_text())["data"]
    assert {entry.rpartition(".")[0].rpartition(".")[0] for entry in data} == {blamed}
    (argument, *_) = data[f"{blamed}.0.forward"]["input_args"]
    assert (dump.parent / "dump_tensor_data" / argument["data_name"]).is_file()
    assert argument["Norm"] > 0
    again = {verdict.entry: verdict.verdict for verdict in check_dump(dump.parent, workers=0)}
    assert again[f"{blamed}.0.forward"] is Verdict.WRONG
    (errors,) = (tmp_path / "errors").glob("ut_error_data*/step0/*")
    assert (errors / f"{blamed}.0.forward.output.device.0.npy").is_file()


@pytest.mark.filterwarnings("ignore:.*[Oo]verrid")
def test_only_some_calls_of_a_wrong_kernel_are_kept(tmp_path, open_debugger):
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("gelu", wrong_gelu, "CPU")
        small_training(open_debugger(), num_steps=5)
    finally:
        library._destroy()
    kept = [json.loads(path.read_text())["data"] for path in (tmp_path / "run").glob("step*/*/dump.json")]
    assert sum("Functional.gelu.0.forward" in data for data in kept) == tally._NUM_KEPT_PER_KIND
    assert coverage_of(tmp_path / "run")["totals"]["verdicts"]["wrong"] == 5
    (results,) = (tmp_path / "run").glob("accuracy_checking_result_*_*.csv")  # one row, though there were five steps
    rows = read_rows(results, RESULT_COLUMNS)
    assert len({row["API name"] for row in rows}) == len(rows) > 5
    assert {row["API name"] for row in rows if row["Forward Test Success"] == "error"} == {"Functional.gelu.0"}
    details = read_rows(PublishedFiles.beside(results).details, DETAIL_COLUMNS)
    wrong = [row for row in details if row["Status"] == "error"]
    assert [row["API Name"] for row in wrong] == ["Functional.gelu.0.forward.output.0"]
    assert float(wrong[0]["最大绝对误差"]) > 0
    assert results.stat().st_mode & 0o077 == 0


# --- trouble ------------------------------------------------------------------------------------------------------


def test_errors_of_the_check_do_not_reach_the_training(tmp_path, open_debugger, monkeypatch, caplog):
    def fail(*_):
        raise ValueError("broken check")

    monkeypatch.setattr(CallChecker, "check", fail)
    small_training(open_debugger())
    found = coverage_of(tmp_path / "run")
    assert found["totals"]["problem"] == "ValueError: broken check"
    assert found["totals"]["verdicts"] == {"cannot_tell": 20}
    assert "checking ends after 20 failures" in caplog.text
    assert any(kind["why_not"] == "its check failed: ValueError: broken check" for kind in found["kinds"])


def test_an_error_outside_of_a_check_ends_recording_only(tmp_path, open_debugger, monkeypatch, caplog):
    def fail(*_, **__):
        raise ValueError("broken dump")

    monkeypatch.setattr(HeldDump, "of", fail)
    debugger = open_debugger()
    debugger.start(model := Classifier())
    features = controller_of(debugger).session._features
    (feature,) = [each for each in features if isinstance(each, online_check.OnlineCheck)]
    with monkeypatch.context() as patch:
        patch.setattr(debugger, "close", lambda: None)
        model = small_training(debugger)
    assert list(feature.copies) == []
    assert model.first.weight.grad is not None
    assert "recording ends at step 0, training goes on" in caplog.text


def test_memory_is_bounded(tmp_path, open_debugger, monkeypatch):
    monkeypatch.setattr(online_check, "MAX_HELD_BYTES", limit := 40_000)
    held = []

    def finish_step(self):
        held.append(sum(copy.snapshot.nbytes for _, copy in self.copies))
        original(self)

    original = online_check.OnlineCheck.finish_step
    monkeypatch.setattr(online_check.OnlineCheck, "finish_step", finish_step)
    small_training(open_debugger(), num_steps=8)
    assert 0 < max(held) <= limit + 32 * 64 * 4  # that of the largest tensor
    found = coverage_of(tmp_path / "run")
    assert [kind["api"] for kind in found["kinds"] if kind["why_not"]] == ["Torch.randn"]


def test_lists_and_steps(tmp_path, open_debugger):
    debugger = open_debugger(white_list=["gelu", "linear"], black_list=["linear.1"])
    small_training(debugger)
    apis = {line["call"].rpartition(".")[0] for step in range(3) for line in lines_of(tmp_path / "run", step)}
    assert apis == {"Functional.gelu.0", "Functional.linear.0"}


def test_one_selected_step_is_sampled_though_others_are_not(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "acc_check", "step": [2], "acc_check": {}}))
    small_training(PrecisionDebugger(path, dump_path=tmp_path / "run"), num_steps=4)
    assert [each.name for each in (tmp_path / "run").glob("step*")] == ["step2"]
    assert lines_of(tmp_path / "run", 2)


def test_nothing_is_attached_in_steps_that_are_not_sampled(tmp_path, open_debugger):
    debugger = open_debugger(budget=1e-9)
    model = Classifier()
    before = traces_in(model)
    for step in range(3):
        debugger.start(model)
        assert (traces_in(model) == before) is (step > 0)
        model(torch.randn(8, 32)).backward()
        debugger.stop()
        debugger.step()
    debugger.close()
    assert coverage_of(tmp_path / "run")["totals"]["num_recorded"] == 1


def test_the_summary(open_debugger, caplog):
    with caplog.at_level(logging.WARNING):
        small_training(open_debugger(), num_steps=2)
    (summary,) = [message for message in caplog.messages if message.startswith("acc_check: ")]
    assert "calls checked in 2 of 2 steps, 0 wrong; of 13 kinds of calls 12 were judged" in summary


def test_the_summary_of_a_single_call(open_debugger, caplog):
    with caplog.at_level(logging.WARNING):
        small_training(open_debugger(sample=1, white_list=["linear.0.forward"]), num_steps=1)
    (summary,) = [message for message in caplog.messages if message.startswith("acc_check: ")]
    assert summary.startswith("acc_check: 1 call checked in 1 of 1 steps")
