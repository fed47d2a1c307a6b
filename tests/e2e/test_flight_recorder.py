"""The flight recorder on real trainings: nothing changes, and what it writes names the place."""

import pytest
import torch
from msprobe.pytorch import FlightRecorder
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe_core.capture.ring_recorder import open_rings
from msprobe_core.overflow import Kind, search

pytestmark = pytest.mark.filterwarnings("ignore")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.fault = None

    def forward(self, x):
        hidden = torch.relu(self.up(self.norm(x)))
        if self.fault is not None:
            hidden = self.fault(hidden)
        return {"x": x + self.down(hidden), "aux": [hidden]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(16, 4)

    def forward(self, x, scale=1.0):
        for block in self.blocks:
            x = block(x)["x"]
        return self.head(self.drop(x)) * scale


def train(model, recorder=None, steps=4, before=None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    seen = []
    for step in range(steps):
        if before is not None:
            before(step)
        for _ in range(2):
            loss = model(torch.randn(5, 16)).square().mean()
            loss.backward()
            seen.append(loss.item().hex())
        seen += [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        if recorder is not None:
            recorder.step()
    return seen, [parameter.detach().clone() for parameter in model.parameters()], torch.get_rng_state()


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


@pytest.mark.parametrize("weights", [True, False])
def test_the_training_is_bit_for_bit_the_same(tmp_path, weights):
    bare = train(Net())
    model = Net()
    with FlightRecorder(model, tmp_path / "flight", weights=weights) as recorder:
        assert equal(train(model, recorder), bare)
        assert all(step.seen for step in recorder.steps[:-1])
    assert not (tmp_path / "flight").exists()
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert equal(train(Net()), bare)


class Waits(TorchDispatchMode):
    """Counts what makes the host wait for a device."""

    def __init__(self):
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_nobody_waits_inside_a_step(tmp_path):
    model = Net()
    items, tolist = [], torch.Tensor.tolist
    with FlightRecorder(model, tmp_path) as recorder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "tolist", lambda tensor: items.append("tolist") or tolist(tensor))
        patch.setattr(torch.Tensor, "item", lambda tensor: items.append("item"))
        model(torch.randn(5, 16)).sum().backward()
        assert items == []
        recorder.step()
        assert set(items) == {"tolist"}


@pytest.mark.parametrize(
    ("fault", "entry"),
    [
        (lambda x: x / 0, "Module.blocks.1.down.Linear.forward.0"),
        (torch.log, "Module.blocks.1.down.Linear.forward.0"),
    ],
    ids=["divide", "log"],
)
def test_the_block_that_makes_nan_is_named(tmp_path, fault, entry):
    model = Net()

    def before(step):
        model.blocks[1].fault = fault if step == 3 else None

    with FlightRecorder(model, tmp_path, steps=3) as recorder:
        train(model, recorder, before=before)
    result = search(tmp_path)
    assert [step.step for step in result.steps] == [1, 2, 3]
    (finding,) = result.first.first
    assert (result.first.step, finding.entry) == (3, entry)
    assert "Module.blocks.1.Block.forward.0" in finding.parents


def test_a_bad_gradient_is_seen_before_it_is_used(tmp_path):
    model = Net()

    def before(step):
        model.blocks[0].fault = (lambda x: x + torch.sqrt(x * 0)) if step == 2 else None

    with FlightRecorder(model, tmp_path) as recorder:
        train(model, recorder, steps=3, before=before)
    first = search(tmp_path).first
    assert first.step == 2
    assert first.first[0].entry.split(".forward")[0].split(".backward")[0] in {
        "Module.blocks.0.up.Linear",
        "Module.blocks.0.norm.LayerNorm",
    }


def test_a_bad_weight_is_named(tmp_path):
    model = Net()

    def before(step):
        if step == 1:
            model.head.weight.data[0, 0] = float("nan")

    with FlightRecorder(model, tmp_path) as recorder:
        train(model, recorder, steps=2, before=before)
    (finding,) = search(tmp_path).first.first
    assert (finding.kind, finding.value) == (Kind.WEIGHT, "Module.head.Linear.forward.0.parameters.weight")
    assert finding.command == f"msprobe overflow_check {tmp_path / 'step0'}"


def test_bad_data_are_named(tmp_path):
    model = Net()
    with FlightRecorder(model, tmp_path) as recorder:
        model(torch.full((5, 16), float("inf")))
        recorder.step()
    (finding,) = search(tmp_path).first.first
    assert finding.kind is Kind.DATA


def test_a_training_that_raises_leaves_its_last_steps(tmp_path):
    model = Net()

    def fail():
        with FlightRecorder(model, tmp_path) as recorder:
            train(model, recorder, steps=2)
            model(torch.randn(5, 16))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as failure:  # its frames hold the recorder
        fail()
    assert open_rings() == []
    assert failure.traceback
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step0", "step1", "step2"]
    assert search(tmp_path).first is None
    assert not model.head._forward_hooks


def test_dtypes_and_shapes_of_all_kinds(tmp_path):
    class Odd(nn.Module):
        def forward(self, x):
            kinds = [x.half(), x.double(), x.to(torch.complex64), x.bfloat16(), x > 0, x[:0], x.to(torch.float8_e5m2)]
            return (kinds, None, 3, {"x": x * float("inf")})

    model = Odd()
    with FlightRecorder(model, tmp_path) as recorder:
        model(torch.ones(2, 2))
        with torch.inference_mode():
            model(torch.ones(2, 2))
        recorder.step()
    dtypes = {seen.meta.dtype for seen in recorder.steps[0].seen}
    assert dtypes == {
        "torch.float16", "torch.float64", "torch.complex64", "torch.bfloat16", "torch.float32", "torch.float8_e5m2",
    }  # fmt: skip
    assert search(tmp_path).first.first[0].entry == "Module.Odd.forward.0"


def test_a_compiled_model_trains_on(tmp_path):
    model = Net()
    with FlightRecorder(model, tmp_path) as recorder:
        compiled = torch.compile(model, backend="eager")
        compiled(torch.randn(5, 16)).sum().backward()
        recorder.step()
    assert model.head.weight.grad is not None
