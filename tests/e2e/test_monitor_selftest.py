"""``msprobe monitor selftest``: it must fail where the monitor sees nothing, or the wrong thing."""

import pytest
from msprobe.pytorch import _reductions

from msprobe_core.cli import main

TRAINING = """
import torch
from torch import nn

def training(optimizer_class=torch.optim.AdamW):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    optimizer = optimizer_class(model.parameters(), lr=0.1)

    def step():
        for _ in range(2):
            model(torch.randint(0, 5, (3,))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step

def with_sgd():
    return training(torch.optim.SGD)

def without_step():
    return training()[0], training()[1], lambda: None

def nothing():
    return None
"""


@pytest.fixture
def tested(tmp_path, capsys):
    """Return a function that tests a training, and returns exit status and output."""
    path = tmp_path / "training.py"
    path.write_text(TRAINING)

    def test(function, *options):
        with pytest.raises(SystemExit) as end:
            main(["monitor", "selftest", f"{path}:{function}", "--micro-batches", "2", *options])
        return end.value.code, "".join(capsys.readouterr())

    return test


def test_a_plain_training_is_seen_and_right(tested):
    code, said = tested("training")
    assert code == 0, said
    assert "GOOD" in said
    lines = {line.split()[0]: line.split() for line in said.splitlines() if line.split()[1:2] == ["all"]}
    for quantity in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated"):
        assert lines[quantity][2:] == ["5", "5", "5", "10", "good"]  # 5 parameters in 2 steps
    assert lines["actv"][2:4] == ["any", "8"]


def test_an_adapter_that_sees_nothing_fails(tested, monkeypatch):
    def watch(reductions):
        for name in ("0.weight", "1.weight", "1.bias", "2.weight", "2.bias"):
            reductions.claim(name)
        return True

    monkeypatch.setitem(_reductions.WATCHES, "planted", watch)
    code, said = tested("training")
    assert code == 2, said
    assert "BLIND" in said
    assert "grad_unreduced: nothing of 0:1.weight" in said


def test_an_adapter_that_misses_one_parameter_fails(tested, monkeypatch):
    monkeypatch.setitem(_reductions.WATCHES, "planted", lambda reductions: reductions.claim("1.bias") or True)
    code, said = tested("training")
    assert code == 2, said


def test_a_wrong_value_fails(tested, monkeypatch):
    from msprobe.pytorch._monitored_training import Trained

    plain = Trained.gradient_of
    monkeypatch.setattr(Trained, "gradient_of", lambda *args, **kwargs: plain(*args, **kwargs) * 1.1)
    code, said = tested("training")
    assert code == 1, said
    assert "grad_reduced of 0:0.weight at step 0: norm is" in said


def test_moments_that_an_optimizer_does_not_have_are_skipped_by_name(tested):
    assert tested("with_sgd")[0] == 2
    code, said = tested("with_sgd", "--skip", "exp_avg,exp_avg_sq")
    assert code == 0, said
    code, said = tested("with_sgd", "--skip", "momentum")
    assert code == 2
    assert "'momentum', which is no quantity" in said


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("without_step", "holds nothing of a monitor"),
        ("nothing", "must return a model, its optimizer, and a function"),
        ("absent", "has no function 'absent'"),
    ],
)
def test_what_cannot_be_tested_fails_with_a_sentence(function, said, tested):
    code, output = tested(function)
    assert code == 2
    assert said in output
    assert "Traceback" not in output
