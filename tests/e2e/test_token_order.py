"""A real model is given the same tokens at other positions: the outputs of its modules are paired token by token."""

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from transformers import LlamaConfig, LlamaForCausalLM

from msprobe_core.compare import CompareOptions, compare_dumps

pytestmark = pytest.mark.usefixtures("close_debugger")

SEQUENCES = [[5, 6, 7, 8, 9], [10, 11, 12], [13, 14, 15, 16]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=2, **sizes)).eval()


def padded(model, *, left):
    lines = [[0] * (7 - len(own)) + own if left else own + [0] * (7 - len(own)) for own in SEQUENCES]
    ids = torch.tensor(lines)
    mask = (ids != 0).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)


def packed(model):
    ids = torch.tensor([[token for own in SEQUENCES for token in own]])
    positions = torch.tensor([[i for own in SEQUENCES for i in range(len(own))]])
    model(input_ids=ids, position_ids=positions, use_cache=False)


def in_chunks(model):
    for own in reversed(SEQUENCES):
        begun = model(input_ids=torch.tensor([own[:2]]), use_cache=True)
        model(input_ids=torch.tensor([own[2:]]), past_key_values=begun.past_key_values, use_cache=True)


RUNS = {
    "left": lambda model: padded(model, left=True),
    "right": lambda model: padded(model, left=False),
    "packed": packed,
    "in chunks": in_chunks,
}


@pytest.fixture
def recorded(model, tmp_path):
    def recorded(name, level="L0"):
        debugger = PrecisionDebugger(dump_path=str(tmp_path / name), task="tensor", level=level)
        debugger.start(model)
        with torch.no_grad():
            RUNS[name](model)
        debugger.stop()
        debugger.step()
        debugger.close()
        return tmp_path / name / "step0"

    return recorded


def compared(target, golden):
    return compare_dumps(target, golden, options=CompareOptions(aligns_tokens=True)).units[0]


@pytest.mark.parametrize("name", ["right", "packed", "in chunks"])
def test_the_same_tokens_agree_wherever_they_stand(recorded, name):
    target, golden = recorded(name), recorded("left")
    unit = compared(target, golden)
    assert unit.agrees, unit.fault
    outputs = [row for row in unit.rows["key"].to_list() if ".output." in row]
    assert any("lm_head" in row for row in outputs)
    assert sum("layers.1.mlp" in row for row in outputs) == 5
    assert "12 of 3 sequences" in unit.notes[0]
    assert not compare_dumps(target, golden).agrees


@pytest.mark.slow
def test_a_fault_at_one_token_is_found_in_its_module_among_apis_too(model, recorded):
    golden = recorded("left", "mix")

    def disturb(module, given, made):
        made[0, 3] += 0.5

    with model.model.layers[1].mlp.up_proj.register_forward_hook(disturb):
        target = recorded("right", "mix")
    unit = compared(target, golden)
    assert unit.fault.entry == "Module.model.layers.1.mlp.up_proj.Linear.forward.0"
    assert unit.fault.worst_tensor.tokens.positions == ["3"]
