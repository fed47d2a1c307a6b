"""`bisect_step` and ``msprobe free_benchmark bisect`` on real models: the training stays, the wrong module is named."""

import json
import subprocess
import sys
from copy import deepcopy
from functools import partial

import pytest
import torch
from architectures import ARCHITECTURES
from msprobe.pytorch import bisect_step
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_traces import traces_in

from msprobe_core.errors import ConfigError, SessionError
from msprobe_core.free_benchmark.bisect import BisectVerdict
from msprobe_core.free_benchmark.raised_steps import TrainingStep, Trials


class Narrow(nn.Module):
    """A linear layer that adds up in half as many digits as its format has, if that is the given one."""

    def __init__(self, right, dtype):
        super().__init__()
        self.weight, self.dtype = right.weight, dtype

    def forward(self, x):
        if x.dtype is not self.dtype:
            return functional.linear(x, self.weight)
        coarse = torch.float8_e4m3fn if self.dtype is torch.bfloat16 else torch.bfloat16
        total = torch.zeros(*x.shape[:-1], len(self.weight), dtype=self.dtype)
        for begin in range(0, x.shape[-1], 4):
            total = total + functional.linear(x[..., begin : begin + 4], self.weight[:, begin : begin + 4])
            total = total + (total.to(coarse).to(self.dtype) - total).detach()
        return total


def training(name="llama", dtype=torch.bfloat16, narrow=None, **overrides):
    """Return model, optimizer, and one step on one batch."""
    architecture = ARCHITECTURES[name]
    model = architecture.build(**overrides).to(dtype)
    if narrow is not None:
        parent = model.get_submodule(narrow.rpartition(".")[0])
        setattr(parent, narrow.rpartition(".")[2], Narrow(model.get_submodule(narrow), dtype))
    batch = architecture.batch()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step():
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def state_of(model, optimizer):
    tensors = [*model.state_dict().values(), *(parameter.grad for parameter in model.parameters())]
    for group in optimizer.state.values():
        tensors += [value for value in group.values() if isinstance(value, torch.Tensor)]
    return [torch.get_rng_state(), *tensors]


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(one, other, strict=True)
        if a.ndim or b.ndim
    )


# --- the training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), [("llama", torch.bfloat16), ("gpt2", torch.float32)])
def test_the_training_goes_on_as_if_it_had_run_the_step_once(name, dtype):
    plain, plain_optimizer, plain_step = training(name, dtype)
    torch.manual_seed(5)
    expected = [plain_step().item() for _ in range(2)]

    model, optimizer, step = training(name, dtype)
    before = traces_in(model)
    torch.manual_seed(5)
    losses = []

    def noted():
        losses.append(step().item())
        return losses[-1]

    bisect_step(noted, model, optimizer, pairs=2)
    assert traces_in(model) == before
    assert (losses[0], losses[1]) == (expected[0], expected[0])  # the unchanged step, and again
    assert len(losses) == 5
    assert step().item() == expected[1]
    assert equal(state_of(model, optimizer), state_of(plain, plain_optimizer))


def test_everything_raised_is_the_model_in_the_finer_format():
    model, optimizer, step = training()
    batch = ARCHITECTURES["llama"].batch()
    fine = deepcopy(model).float()(**batch).loss.item()
    coarse = model(**batch).loss.item()
    found = bisect_step(step, model, optimizer, target="loss", pairs=1)
    assert found.value == coarse
    assert found.raised_value == pytest.approx(fine, abs=1e-6)
    assert abs(coarse - fine) > 1e-5


def test_under_autocast_raised_modules_compute_as_without():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    x = torch.randn(16, 64)

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().mean()

    found = bisect_step(step, model, target="loss", pairs=1)
    assert found.value == step().item()
    assert found.raised_value == pytest.approx(model(x).square().mean().item(), rel=1e-6)
    assert found.reference.value == "fp32"


def test_one_raised_module_leaves_the_others_as_they_are():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8)).bfloat16()
    x = torch.randn(16, 64, dtype=torch.bfloat16)
    with Trials(TrainingStep(lambda: {"y": model(x)}, {"": model}, []), "y") as trials:
        trials.unchanged()
        assert trials.modules == ["", "0", "1", "2", "(outside)"]
        raised = trials.with_raised({"1"}).numbers
    normed = functional.layer_norm(
        model[0](x).float(), (64,), model[1].weight.float(), model[1].bias.float()
    ).bfloat16()
    assert torch.equal(torch.from_numpy(raised).reshape(16, 8), model[2](normed).double())


def test_a_batch_norm_keeps_its_statistics_and_a_recurrent_layer_its_weights():
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.lstm = nn.BatchNorm1d(8), nn.LSTM(8, 8)

        def forward(self, x):
            return self.lstm(self.norm(x))[0]

    model = Net()
    x = torch.randn(16, 8)
    expected = deepcopy(model)
    expected(x)
    found = bisect_step(lambda: model(x).square().mean(), model, target="loss", pairs=3)
    assert found.verdict is not BisectVerdict.NOT_REPEATED
    assert torch.equal(model.norm.running_var, expected.norm.running_var)
    assert model.lstm._flat_weights[0] is model.lstm.weight_ih_l0


def test_a_module_that_fails_in_another_format_is_left_out():
    class OnlyHalf(nn.Module):
        def forward(self, x):
            if x.dtype is not torch.bfloat16:
                raise TypeError("no kernel for this format")
            return x * 2

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), OnlyHalf(), nn.Linear(32, 1)).bfloat16()
    x = torch.randn(4, 32, dtype=torch.bfloat16)
    found = bisect_step(lambda: model(x).float().square().mean(), model, target="loss")
    assert [note.text for note in found.notes if "no kernel" in note.text] == [
        "1 (OnlyHalf) is not raised, because the step fails with it (TypeError: no kernel for this format)"
    ]


@pytest.mark.slow
def test_recomputed_modules_are_raised_as_in_the_forward():
    model, optimizer, step = training(narrow="model.layers.1.mlp.up_proj")
    plain = bisect_step(step, model, optimizer)
    model, optimizer, step = training(narrow="model.layers.1.mlp.up_proj")
    model.train()
    for layer in model.model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    found = bisect_step(step, model, optimizer)
    assert found.headline == plain.headline
    assert found.value == plain.value


# --- what is found ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "narrow"),
    [
        ("llama", torch.bfloat16, "model.layers.1.mlp.down_proj"),
        ("qwen3", torch.bfloat16, "model.layers.0.self_attn.v_proj"),
        ("llama", torch.float32, "model.layers.0.self_attn.v_proj"),
        ("t5", torch.float32, "decoder.block.1.layer.1.EncDecAttention.k"),
    ],
)
@pytest.mark.parametrize("target", [None, "grad_norm", "loss"])
def test_a_narrow_accumulator_is_named(name, dtype, narrow, target):
    if target and dtype is torch.bfloat16:
        pytest.skip("in a single number rounding to bfloat16 hides it")
    model, optimizer, step = training(name, dtype, narrow)
    found = bisect_step(step, model, optimizer, target=target)
    assert found.verdict is BisectVerdict.FOUND, found.headline.text
    assert found.parts[0].modules == (f"{narrow} (Narrow)",)
    assert found.parts[0].share == pytest.approx(1, abs=0.2)
    assert found.reference.value == ("fp32" if dtype is torch.bfloat16 else "fp64")


def test_more_than_200_modules_take_nine_pairs():
    model, optimizer, step = training("llama", torch.float32, "model.layers.9.mlp.up_proj", num_hidden_layers=16)
    found = bisect_step(step, model, optimizer)
    assert (found.num_modules, found.num_pairs) == (215, 9)
    assert found.parts[0].modules == ("model.layers.9.mlp.up_proj (Narrow)",)


def test_no_module_of_a_healthy_training_is_accused():
    model, optimizer, step = training()
    found = bisect_step(step, model, optimizer)
    assert found.verdict is BisectVerdict.SPREAD, found.headline.text


def test_two_wrong_modules_share_the_difference():
    model, optimizer, step = training("llama", torch.float32, "model.layers.0.mlp.down_proj")
    other = model.model.layers[1].mlp
    other.down_proj = Narrow(other.down_proj, torch.float32)
    found = bisect_step(step, model, optimizer)
    assert found.verdict is BisectVerdict.SHARED, found.headline.text
    assert {part.modules[0] for part in found.parts[:2]} == {
        f"model.layers.{layer}.mlp.down_proj (Narrow)" for layer in (0, 1)
    }


def test_a_value_of_the_step_is_explained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 8))
    model[0] = Narrow(model[0], torch.float32)
    x = torch.randn(16, 64)
    found = bisect_step(lambda: {"logits": model(x), "other": 1.0}, model, target="logits")
    assert found.parts[0].modules == ("0 (Narrow)",)


# --- what cannot be done ------------------------------------------------------------------------------------------


def test_other_data_each_time_is_noticed():
    model, data = nn.Linear(4, 1), iter(torch.randn(9, 2, 4))
    with pytest.raises(SessionError, match="takes other data each time"):
        bisect_step(lambda: model(next(data)).sum(), model)


def test_an_optimizer_that_was_not_given_is_noticed():
    model, _, step = training()
    with pytest.raises(SessionError, match="AdamW steps, but was not given"):
        bisect_step(step, model)


def test_a_step_that_does_not_repeat_is_told():
    model = nn.Linear(4, 1)
    numbers = iter(range(100))
    found = bisect_step(lambda: model(torch.ones(2, 4)).sum() + next(numbers), model, target="loss")
    assert found.verdict is BisectVerdict.NOT_REPEATED


@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        ({"target": "accuracy"}, SessionError, "returns loss, but no 'accuracy'"),
        ({"reference": "bf16"}, ConfigError, "known: fp32, fp64"),
        ({"pairs": 0}, ConfigError, "an integer from 1"),
    ],
)
def test_wrong_options_are_named(options, error, expected):
    model = nn.Linear(4, 1)
    with pytest.raises(error, match=expected):
        bisect_step(lambda: model(torch.ones(2, 4)).sum(), model, **options)


def test_a_compiled_model_is_refused():
    model = nn.Linear(4, 1)
    model.compile(backend="eager")
    with pytest.raises(SessionError, match="TORCH_COMPILE_DISABLE"):
        bisect_step(lambda: model(torch.ones(2, 4)).sum(), model)


# --- the command --------------------------------------------------------------------------------------------------

SCRIPT = """
import torch
from torch import nn

class Coarse(nn.Linear):
    def forward(self, x):
        return super().forward(x.bfloat16().to(x.dtype))

torch.manual_seed(0)
model = nn.Sequential(*(Coarse(32, 32) if i == 5 else nn.Linear(32, 32) for i in range(8)))
optimizers = [torch.optim.Adam(model.parameters())]
batch = torch.randn(4, 32)

def step():
    optimizers[0].zero_grad()
    loss = nn.functional.mse_loss(model(batch), batch)
    loss.backward()
    optimizers[0].step()
    return loss.item()

def parts():
    return model, optimizers, step

def made():
    inner = model
    return lambda: step()
"""


@pytest.mark.parametrize(
    "function", ["step", *(pytest.param(name, marks=pytest.mark.slow) for name in ("parts", "made"))]
)
@pytest.mark.usefixtures("has_torch_imported")
def test_the_command_finds_what_the_step_uses(tmp_path, function):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "msprobe_core", "free_benchmark", "bisect", f"train.py:{function}", "-o", "found"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("5 (Coarse) explains the gradients: with it alone in fp64, ")
    found = json.loads((tmp_path / "found" / "bisect.json").read_text())
    assert (found["verdict"], found["parts"][0]["modules"]) == ("found", ["5 (Coarse)"])
    assert (tmp_path / "found" / "bisect.csv").read_text().splitlines()[1].startswith("1,5 (Coarse),1,")


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_the_command_names_a_missing_function(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "msprobe_core", "free_benchmark", "bisect", "train.py:steps"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "train.py has no function 'steps'" in ended.stderr
    assert "Traceback" not in ended.stderr
