"""The monitor under optimizers: those of PyTorch, what wraps them, and users' own; and under models that change."""

import json

import polars as pl
import pytest
import torch
from msprobe.pytorch import TrainerMon
from torch import nn

from msprobe_core.monitoring.files import read_monitored

QUANTITIES = {"wg_distribution": True, "mv_distribution": True, "param_distribution": True}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


@pytest.fixture
def monitored(tmp_path, monkeypatch):
    """Return a function that monitors a training, and one that reads what was written."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps({"ndigits": 14, **QUANTITIES}))

    def begin(model, optimizer, **options):
        monitor = TrainerMon(path, params_have_main_grad=False)
        monitor.set_monitor(model, optimizer, **options)
        return monitor

    return begin, lambda: read_monitored(tmp_path / "out"), tmp_path / "out"


def norms_of(run, quantity, name="up.weight"):
    rows = run.frame.filter((pl.col("quantity") == quantity) & (pl.col("name") == name)).sort("step")
    return dict(rows.select("step", "norm").rows())


def train(model, step, steps=3):
    """Train, and return the norms of the first weight and its gradient in each step, and all weights."""
    torch.manual_seed(1)
    seen = {"grad_reduced": {}, "param_origin": {}, "param_updated": {}}
    for number in range(steps):
        model.zero_grad()
        model(torch.randn(5, 8)).square().mean().backward()
        seen["grad_reduced"][number] = model.up.weight.grad.norm().item()
        seen["param_origin"][number] = model.up.weight.norm().item()
        step()
        seen["param_updated"][number] = model.up.weight.norm().item()
    return seen, [parameter.detach().clone() for parameter in model.parameters()]


def check(begin, read, make, *, has_moments=True, given=lambda optimizer: optimizer):
    """Train bare and monitored, and compare values and weights; ``make`` returns an optimizer and how to step."""
    bare = Net()
    _, step = make(bare)
    expected = train(bare, step)
    model = Net()
    optimizer, step = make(model)
    monitor = begin(model, given(optimizer))
    found = train(model, step)
    monitor.close()
    assert all(map(torch.equal, found[1], expected[1]))
    run = read()
    for quantity, norms in expected[0].items():
        assert norms_of(run, quantity) == pytest.approx(norms, rel=1e-5), quantity
    assert norms_of(run, "grad_unreduced") == pytest.approx(expected[0]["grad_reduced"], rel=1e-5)
    assert list(norms_of(run, "exp_avg")) == ([1, 2] if has_moments else [])


def of_torch(make):
    def made(model):
        optimizer = make(model.parameters())
        return optimizer, lambda: optimizer.step()  # looked up in each step, as programs do

    return made


class Wrapper:
    """As of trainers with mixed precision: a class of its own that steps what it wraps."""

    def __init__(self, parameters):
        self.optimizer = torch.optim.AdamW(parameters)

    def step(self):
        self.optimizer.step()
        return True, 1.0


class Chained:
    """As of trainers with several groups of ranks."""

    def __init__(self, parameters):
        parameters = list(parameters)
        self.chained_optimizers = [Wrapper(parameters[:2]), Wrapper(parameters[2:])]

    def step(self):
        return [each.step() for each in self.chained_optimizers]


class Subclass(torch.optim.Optimizer):
    """As of libraries that wrap without calling the base class."""

    def __init__(self, parameters):
        self.optimizer = torch.optim.AdamW(parameters)

    def step(self, closure=None):
        self.optimizer.step(closure)


class Own:
    """Of a user, without anything of PyTorch's optimizers."""

    def __init__(self, parameters):
        self.parameters = list(parameters)

    @torch.no_grad()
    def step(self):
        for parameter in self.parameters:
            parameter -= 0.1 * parameter.grad


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, foreach=True),
        lambda parameters: torch.optim.AdamW(parameters, fused=True),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        Wrapper,
        Chained,
        Subclass,
    ],
    ids=["foreach", "fused", "momentum", "wrapper", "chained", "subclass"],
)
def test_optimizers_are_seen_and_not_disturbed(make, monitored):
    begin, read, out = monitored
    check(begin, read, of_torch(make))
    (coverage,) = out.glob("*/coverage.json")
    seen = json.loads(coverage.read_text())
    assert all(each["missing"] == [] for name, each in seen.items() if name != "exp_avg_sq"), seen


def test_an_optimizer_of_a_user_is_seen_and_put_back(monitored):
    begin, read, _ = monitored
    check(begin, read, of_torch(Own), has_moments=False)
    own = Own(Net().parameters())
    monitor = begin(Net(), own)
    assert "step" in vars(own)
    monitor.close()
    assert "step" not in vars(own)


def test_a_list_of_optimizers_makes_one_step(monitored):
    begin, read, _ = monitored

    def make(model):
        optimizers = [torch.optim.AdamW(model.up.parameters()), torch.optim.SGD(model.down.parameters(), lr=0.1)]
        return optimizers, lambda: [each.step() for each in optimizers]

    check(begin, read, make)


def test_a_scheduler_and_a_closure_change_nothing(monitored):
    begin, read, _ = monitored

    def make(model):
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

        def closure():
            return model.up.weight.grad.sum()

        return optimizer, lambda: (optimizer.step(closure), scheduler.step())

    check(begin, read, make)


def test_gradients_that_a_closure_computes_are_seen(monitored):
    begin, read, _ = monitored
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = begin(model, optimizer)
    norms = {}

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        norms[len(norms)] = model.up.weight.grad.norm().item()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    monitor.close()
    assert norms_of(read(), "grad_reduced") == pytest.approx(norms, rel=1e-5)


@pytest.mark.parametrize("fused", [False, True], ids=["unscaled-before", "unscales-itself"])
def test_gradients_are_seen_unscaled_and_skipped_steps_are_no_steps(fused, monitored):
    begin, read, _ = monitored
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor = begin(model, optimizer)
    norms = []
    for number in range(3):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 8)).square().mean()).backward()
        if number == 1:
            model.up.weight.grad[0, 0] = torch.inf
        else:
            norms.append(model.up.weight.grad.norm().item() / scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    monitor.close()
    found = norms_of(read(), "grad_reduced")
    if fused:  # steps, and finds the overflow itself
        assert found.keys() == {0, 1, 2}
        del found[1]
    else:
        assert found.keys() == {0, 1}
    assert list(found.values()) == pytest.approx(norms, rel=1e-5)


def test_models_that_change_are_followed(monitored):
    begin, read, out = monitored
    model = Net()
    model.down.requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = begin(model, optimizer)
    x = torch.ones(2, 8)
    for number in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if number == 0:
            model.down.requires_grad_()
            model.extra = nn.Linear(3, 3)  # is never called
            optimizer.add_param_group({"params": model.extra.parameters()})
    monitor.close()
    run = read()
    assert norms_of(run, "grad_unreduced").keys() == {0, 1, 2}
    assert norms_of(run, "grad_unreduced", "down.weight").keys() == {2}  # hooked when the optimizer had shown it
    assert norms_of(run, "grad_reduced", "down.weight").keys() == {1, 2}
    assert norms_of(run, "param_updated", "extra.bias").keys() == {1, 2}
    (coverage,) = out.glob("*/coverage.json")
    seen = json.loads(coverage.read_text())["grad_reduced"]
    assert (seen["expected"], seen["seen"], seen["always"]) == (6, 4, 2)
    assert seen["missing"] == ["0:extra.bias", "0:extra.weight"]


def test_experts_without_tokens_and_tied_weights_are_counted_as_they_are(monitored):
    begin, read, out = monitored

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Embedding(8, 8)
            self.experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))
            self.head = nn.Linear(8, 8, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens, chosen):
            return self.head(self.experts[chosen](self.embed(tokens)))

    model = Mixture()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = begin(model, optimizer)
    for chosen in (0, 1):
        optimizer.zero_grad()
        model(torch.arange(4), chosen).square().mean().backward()
        optimizer.step()
    monitor.close()
    run = read()
    assert norms_of(run, "grad_reduced", "embed.weight").keys() == {0, 1}
    assert norms_of(run, "grad_reduced", "experts.1.weight").keys() == {1}
    (coverage,) = out.glob("*/coverage.json")
    seen = json.loads(coverage.read_text())["grad_unreduced"]
    assert seen["missing"] == ["0:experts.2.weight"]
    assert seen["by_class"] == {
        "expert": {"expected": 3, "seen": 2, "always": 0, "finite": 2},
        "embedding": {"expected": 1, "seen": 1, "always": 1, "finite": 1},
    }


def test_what_one_part_of_the_monitor_cannot_read_the_others_still_do(monitored, monkeypatch, caplog):
    from msprobe.pytorch._monitored_training import Trained

    def fail(*_args, **_kwargs):
        raise KeyError("of another release")

    begin, read, _ = monitored
    monkeypatch.setattr(Trained, "part_of", fail)
    monkeypatch.setattr(Trained, "moments_of", fail)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = begin(model, optimizer)
    train(model, optimizer.step)
    monitor.close()
    run = read()
    for quantity in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated"):
        assert norms_of(run, quantity).keys() == {0, 1, 2}
    assert not norms_of(run, "exp_avg")
    assert "training goes on" in caplog.text
