"""``token_range``, ``rank_id``, ``set_init_step`` and ``module_dump`` with real models."""

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger, module_dump, module_dump_end
from recorded import Recorded, leaves
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_traces import traces_in
from transformers import LlamaConfig, LlamaForCausalLM

from msprobe_core.errors import SessionError

pytestmark = pytest.mark.usefixtures("close_debugger")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, *, shift):
        return torch.relu(self.fc(x)) + shift


class Net(nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        torch.manual_seed(0)
        self.first = Block()
        self.second = Block()
        self.checkpointed = checkpointed

    def forward(self, x):
        x = self.first(x, shift=x * 0.5)
        if self.checkpointed:
            return checkpoint(self.second, x, shift=x, use_reentrant=False)
        return self.second(x, shift=x)


def train(model, num=1):
    losses = []
    for i in range(num):
        torch.manual_seed(i)
        model.zero_grad()
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        losses.append(loss.item())
    return losses


def test_tokens_of_a_generation(tmp_path):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                                         num_attention_heads=2, max_position_embeddings=64)).eval()  # fmt: skip
    prompt = torch.arange(5)[None]
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected, before = model.generate(prompt, **settings), traces_in(model)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    debugger.start(model, token_range=[2, 3])
    assert torch.equal(model.generate(prompt, **settings), expected)
    debugger.stop()
    dump = Recorded(tmp_path)
    assert dump.starting("Module.LlamaForCausalLM.forward") == [f"Module.LlamaForCausalLM.forward.{i}" for i in (0, 1)]
    tokens = [dump.data[f"Module.LlamaForCausalLM.forward.{i}"]["input_kwargs"]["input_ids"] for i in (0, 1)]
    assert [token["Max"] for token in tokens] == expected[0, 6:8].tolist()  # the third forward reads the second token
    assert len(dump.starting("Module.model.layers.1.mlp.LlamaMLP.forward")) == 2
    parents = dump.json("construct.json")
    assert {name for name, parent in parents.items() if parent is None} == set(dump.starting("Module.LlamaForCausalLM"))
    assert traces_in(model) == before


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_range_takes_the_gradients_of_its_forwards_and_changes_nothing(tmp_path, level):
    expected, model = train(Net(), 4), Net()
    before = traces_in(model)
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    debugger.start(model, token_range=[1, 2])
    assert train(model, 4) == expected
    debugger.stop()
    assert traces_in(model) == before
    dump = Recorded(tmp_path)
    if level != "L1":
        stem = "Module.first.fc.Linear"
        assert dump.starting(f"{stem}.backward") == [f"{stem}.backward.{i}" for i in (0, 1)]
        assert dump.starting(f"{stem}.parameters_grad") == [f"{stem}.parameters_grad.{i}" for i in (0, 1)]
    if level != "L0":
        backwards = {name for name in dump.starting("Functional.linear") if name.endswith("backward")}
        assert backwards == {f"Functional.linear.{i}.backward" for i in range(4)}
        assert not dump.starting("Tensor.square")  # of the loss, outside


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_one_module_alone(tmp_path, level):
    expected, model = train(Net(), 3), Net()
    before = traces_in(model)
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    debugger.start(model)
    found = train(model)
    module_dump(model.second, "the.second")
    torch.manual_seed(1)
    model.zero_grad()
    loss = model(torch.randn(3, 4)).square().mean()
    loss.backward()
    module_dump_end()
    debugger.stop()
    assert traces_in(model) == before
    dump = Recorded(tmp_path)
    alone = dump.starting("Module.the.second")
    assert alone == ["Module.the.second.Block.forward.0", "Module.the.second.Block.backward.0"]
    forward, backward = (dump.data[name] for name in alone)
    assert set(leaves(forward["input_kwargs"])) == {"shift"}
    assert backward["output"][0]["shape"] == [3, 4]
    assert backward["output_kwargs"]["shift"]["shape"] == [3, 4]
    assert len([n for n in dump.starting("Functional.linear") if n.endswith("forward")]) == 2  # of the first step
    assert [*found, loss.item()] == expected[:2]


def test_layers_that_run_again_inside_backward(tmp_path):
    model = Net(checkpointed=True)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    debugger.start(model)
    module_dump(model.second.fc, "fc")
    train(model)
    module_dump_end()
    debugger.stop()
    dump = Recorded(tmp_path)
    assert list(dump.data) == [
        f"Module.fc.Linear.{what}" for what in ("forward.0", "forward.1", "backward.0", "parameters_grad.0")
    ]
    assert (
        dump.data["Module.fc.Linear.forward.0"]["output"][0]["Norm"]
        == (dump.data["Module.fc.Linear.forward.1"]["output"][0]["Norm"])
    )


def test_gradients_of_calls_from_before_still_arrive(tmp_path):
    model = Net()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    debugger.start(model)
    loss = model(torch.randn(3, 4)).sum()
    module_dump(model.second, "alone")
    loss.backward()
    debugger.stop()
    dump = Recorded(tmp_path)
    assert "Module.first.fc.Linear.backward.0" in dump.data
    assert not dump.starting("Module.alone")


def test_misuse_is_said():
    with pytest.raises(SessionError, match="no PrecisionDebugger has been made yet"):
        module_dump(nn.Linear(1, 1), "x")
    with pytest.raises(SessionError, match="no PrecisionDebugger has been made yet"):
        module_dump_end()
    PrecisionDebugger(level="L1")
    with pytest.raises(SessionError, match="not a model of pytorch"):
        module_dump(torch.ones(1), "x")


def test_first_step_and_rank(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", step=[1000])
    PrecisionDebugger.set_init_step(999)
    model = Net()
    for _ in range(3):
        with debugger.start(model, rank_id=5):
            train(model)
        debugger.step()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*")] == ["step1000/rank5"]
    assert "Module.first.Block.forward.0" in Recorded(tmp_path, 1000).data
