"""Checkpoints with a file for each rank and nothing that says how they form the model: a layout file says it."""

import pytest
import torch
import transformers
from megatron_layout import megatron_state, shape_of, write_megatron
from safetensors.torch import save_file

from msprobe_core.checkpoint import open_checkpoint
from msprobe_core.checkpoint.boxes import read_tensor
from msprobe_core.checkpoint.contents import Kind
from msprobe_core.checkpoint.declared_ranks import layout_of
from msprobe_core.cli import main
from msprobe_core.compare.layouts.rules import Side, load_layouts


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
            vocab_size=160, tie_word_embeddings=False,
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def moe():
    torch.manual_seed(3)
    return transformers.Qwen2MoeForCausalLM(
        transformers.Qwen2MoeConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=128, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
            shared_expert_intermediate_size=32, tie_word_embeddings=False,
        )
    )  # fmt: skip


@pytest.fixture
def declared(tmp_path):
    def declared(text):
        path = tmp_path / "layout.yaml"
        path.write_text(text)
        return path

    return declared


def opened(directory, layout):
    return open_checkpoint(directory, layout_of(load_layouts(layout), Side.TARGET))


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["checkpoint", *map(str, words)])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def write_numbered(model, directory, tmp_path, sizes):
    """Write what ranks of Megatron-LM save as ``rank_{number}.pt``: local numbers of layers, and no arguments."""
    written = write_megatron(
        model.state_dict(), tmp_path / "megatron", shape_of(model.config), **sizes, has_args=False, has_optimizer=True
    )
    directory.mkdir()
    tp, pp, ep = (sizes.get(axis, 1) for axis in ("tp", "pp", "ep"))
    for place in written.iterdir():
        numbers = iter(int(each) for each in place.name.removeprefix("mp_rank_").split("_"))
        own_tp, own_pp, own_ep = next(numbers), next(numbers) if pp > 1 else 0, next(numbers) if ep > 1 else 0
        content = torch.load(place / "model_optim_rng.pt", weights_only=False)
        content = {key: content[key] for key in content if key.startswith("model") or key == "optimizer"}
        content["optimizer"] = content["optimizer"]["optimizer"]
        torch.save(content, directory / f"rank_{own_tp + tp * (own_ep + ep * own_pp)}.pt")


@pytest.mark.parametrize(("kind", "sizes"), [
    ("llama", {"tp": 2, "pp": 2, "vpp": 2}), ("llama", {"pp": 2, "stage_layers": [3, 1]}),
    ("moe", {"tp": 2, "pp": 2, "ep": 2}),
])  # fmt: skip
def test_ranks_in_numbered_files_are_the_model(kind, sizes, tmp_path, declared, capsys, request):
    model = request.getfixturevalue(kind)
    write_numbered(model, tmp_path / "ranks", tmp_path, sizes)
    model.save_pretrained(tmp_path / "whole")
    axes = {axis: size for axis, size in sizes.items() if axis in ("tp", "pp", "ep")}
    layout = declared(f"parallel: {{target: {axes}}}".replace("'", ""))
    found = opened(tmp_path / "ranks", layout)
    expected = megatron_state(model.state_dict(), shape_of(model.config), tp=sizes.get("tp", 1))
    weights = {name for name, tensor in found.tensors.items() if tensor.kind is Kind.WEIGHT}
    assert weights == set(expected)
    moment = next(name for name in expected if name.endswith("linear_fc1.weight"))
    state = found.tensors[f"optimizer.state.{moment}.exp_avg"]
    assert torch.equal(torch.tensor(read_tensor(state)), expected[moment] * 0.1)
    code, out, _ = run(capsys, "compare", tmp_path / "ranks", tmp_path / "whole", "--layout", layout)
    assert (code, "the same model" in out) == (0, True), out


def write_shards(model, directory, cut, tp=2, copies=1):
    """Write a directory for each rank with names of transformers: two stages, with global numbers of layers."""
    for rank in range(tp * copies * 2):
        own_tp, stage = rank % tp, rank // (tp * copies)
        shards = {}
        for name, tensor in model.state_dict().items():
            layer = int(name.split(".")[2]) if ".layers." in name else 0 if "embed" in name else 3
            if layer // 2 == stage:
                dim = next((dim for part, dim in cut.items() if part in name), None)
                shards[name] = (tensor if dim is None else tensor.chunk(tp, dim)[own_tp]).contiguous()
        place = directory / f"rank_{rank}"
        place.mkdir(parents=True)
        save_file(shards, place / "model.safetensors")


CUT = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "o_proj": 1, "gate_proj": 0, "up_proj": 0, "down_proj": 1,
       "embed_tokens": 0, "lm_head": 0}  # fmt: skip


def test_directories_of_ranks_with_copies_and_a_rule_for_an_unusual_cut(llama, tmp_path, declared, capsys):
    write_shards(llama, tmp_path / "ranks", CUT | {"embed_tokens": 1}, copies=2)
    llama.save_pretrained(tmp_path / "whole")
    sizes = "{tp: 2, dp: 2, pp: 2}"
    layout = declared(f'parallel: {{golden: {sizes}, rows: [{{match: "*.embed_tokens", weight: 1}}]}}')
    code, out, _ = run(capsys, "compare", tmp_path / "whole", tmp_path / "ranks", "--layout", layout)
    assert (code, "the same model" in out) == (0, True), out
    wrong = declared(f"parallel: {{golden: {sizes}}}")
    code, out, _ = run(capsys, "compare", tmp_path / "whole", tmp_path / "ranks", "--layout", wrong)
    assert (code, "embed_tokens" in out) == (1, True)
    file = tmp_path / "ranks" / "rank_2" / "model.safetensors"  # the other copy of rank 0
    data = bytearray(file.read_bytes())
    data[-4:] = b"\0\0\x80\x3f"
    file.write_bytes(data)
    layout = declared(f'parallel: {{golden: {sizes}, rows: [{{match: "*.embed_tokens", weight: 1}}]}}')
    code, out, _ = run(capsys, "compare", tmp_path / "whole", tmp_path / "ranks", "--layout", layout)
    assert (code, "replicas differ" in out, "dp1" in out) == (1, True, True), out


def test_what_does_not_fit_the_declaration_is_one_sentence(llama, tmp_path, declared, capsys):
    write_shards(llama, tmp_path / "ranks", CUT)
    llama.save_pretrained(tmp_path / "whole")

    def said(text, path=tmp_path / "ranks"):
        code, _, error = run(capsys, "inspect", path, "--layout", declared(text))
        assert code == 2
        return error

    assert "up to rank 3, but the layout declares tp 3" in said("parallel: {target: {tp: 3}}")
    assert "declares no ranks" in said("tensors: []")
    assert "one file" in said("parallel: {target: {tp: 2}}", tmp_path / "whole" / "model.safetensors")
    assert "number of a rank" in said("parallel: {target: {tp: 2}}", tmp_path / "whole")
    (tmp_path / "ranks" / "rank_1" / "model.safetensors").unlink()
    (tmp_path / "ranks" / "rank_1").rmdir()
    code, out, _ = run(
        capsys, "inspect", tmp_path / "ranks", "--layout", declared("parallel: {target: {tp: 2, pp: 2}}")
    )
    assert (code, "no file of tp1 pp0" in out) == (1, True)
