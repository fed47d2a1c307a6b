"""Writes a small Llama or Qwen2-MoE as a checkpoint of Megatron-LM for any parallel layout, without Megatron-LM.

The layouts are those of Megatron-Core 0.16 with ``--ckpt-format torch``: query, key and value interleaved per group,
gate and up together in each shard, a padded vocabulary, layers and experts counted from 0 in each file.
"""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Shape:
    """What a state dict does not say of its model.

    Attributes:
        num_heads: Attention heads.
        num_groups: Groups of query heads, each with a head of keys and one of values.
        head_dim: Size of a head.
    """

    num_heads: int
    num_groups: int
    head_dim: int


def shape_of(config):
    """Return the shape of a model of transformers by its configuration."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(config.num_attention_heads, config.num_key_value_heads, head_dim)


def write_megatron(
    state, directory, shape, *, tp=1, pp=1, ep=1, vpp=1, stage_layers=None, iteration=10, release=False, pad_to=None,
    experts="local", has_optimizer=False, fused_norms=True, has_args=True, extra_state=False,
):  # fmt: skip
    """Write a checkpoint; return the directory of its iteration.

    Args:
        state: State dict of a Llama, Qwen2 or Qwen2-MoE of transformers, experts one by one or together.
        directory: Directory of the checkpoint, which need not exist.
        shape: Of its attention.
        tp: Size of tensor parallelism; of the same size for experts.
        pp: Number of pipeline stages.
        ep: Size of expert parallelism.
        vpp: Number of virtual stages on each rank.
        stage_layers: Number of layers of each virtual stage in the order of the model; equal if not given.
        iteration: Training step.
        release: Whether it is a converted checkpoint, in the directory ``release``.
        pad_to: Rows of the padded vocabulary; the next multiple of 128 times ``tp`` if not given.
        experts: ``local``, ``grouped`` (one matrix of all) or ``te`` (weights numbered in one module).
        has_optimizer: Whether to write moments and copies in float32.
        fused_norms: Whether norms are named as those fused into the following layer.
        has_args: Whether to write the arguments of the training.
        extra_state: Whether to write the empty extra states of TransformerEngine.
    """
    whole = megatron_state(state, shape, pad_to=pad_to, tp=tp, fused_norms=fused_norms)
    num_layers = 1 + max(_layer(name) for name in whole)
    num_experts = 1 + max((_expert(name) for name in whole), default=-1)
    stages = stage_layers or [num_layers // (pp * vpp)] * (pp * vpp)
    assert sum(stages) == num_layers, (stages, num_layers)
    is_tied = "output_layer.weight" not in whole
    directory = Path(directory)
    step = directory / ("release" if release else f"iter_{iteration:07d}")
    args = argparse.Namespace(
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
        virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None, num_layers=num_layers,
        num_experts=num_experts or None, num_attention_heads=shape.num_heads, num_query_groups=shape.num_groups,
        group_query_attention=shape.num_groups != shape.num_heads, kv_channels=shape.head_dim, swiglu=True,
        padded_vocab_size=whole["embedding.word_embeddings.weight"].shape[0], hidden_size=_hidden(whole),
        vocab_size=state["model.embed_tokens.weight"].shape[0], params_dtype=torch.float32,
        untie_embeddings_and_output_weights=not is_tied, expert_tensor_parallel_size=tp,
    )  # fmt: skip
    for pp_rank in range(pp):
        for tp_rank in range(tp):
            for ep_rank in range(ep):
                chunks = [
                    _chunk(whole, stages, v * pp + pp_rank, tp, tp_rank, ep, ep_rank, num_experts, experts)
                    for v in range(vpp)
                ]
                if is_tied and pp > 1 and pp_rank == pp - 1:
                    table = whole["embedding.word_embeddings.weight"]
                    chunks[-1]["output_layer.weight"] = table.chunk(tp)[tp_rank].clone()
                if extra_state:
                    for chunk in chunks:
                        chunk["decoder.final_layernorm._extra_state"] = None
                content = {"checkpoint_version": 3.0, "iteration": 0 if release else iteration}
                if has_args:
                    content["args"] = args
                content |= {"model" if vpp == 1 else f"model{v}": chunk for v, chunk in enumerate(chunks)}
                if has_optimizer:
                    content["optimizer"] = optimizer_state(chunks, iteration)
                    content["opt_param_scheduler"] = {"max_lr": 1e-3, "num_steps": iteration * 8}
                content["rng_state"] = [{"torch_rng_state": torch.get_rng_state()}]
                name = f"mp_rank_{tp_rank:02d}" + (f"_{pp_rank:03d}" if pp > 1 else "")
                name += f"_{ep_rank:03d}" if ep > 1 else ""
                (step / name).mkdir(parents=True)
                torch.save(content, step / name / "model_optim_rng.pt")
    (directory / "latest_checkpointed_iteration.txt").write_text("release" if release else str(iteration))
    return step


def megatron_state(state, shape, *, pad_to=None, tp=1, fused_norms=True):
    """Return the tensors of the whole model with the names and layouts of Megatron-Core."""
    state = _experts_one_by_one(state)
    table = state["model.embed_tokens.weight"]
    rows = pad_to or -(-table.shape[0] // (128 * tp)) * 128 * tp
    made = {"embedding.word_embeddings.weight": _padded(table, rows)}
    for i in range(1 + max(int(found[1]) for name in state if (found := re.match(r"model\.layers\.(\d+)\.", name)))):
        own = {name.removeprefix(f"model.layers.{i}."): x for name, x in state.items()
               if name.startswith(f"model.layers.{i}.")}  # fmt: skip
        made |= {f"decoder.layers.{i}.{name}": x for name, x in _layer_state(own, shape, fused_norms).items()}
    made["decoder.final_layernorm.weight"] = state["model.norm.weight"]
    head = state.get("lm_head.weight")
    if head is not None and not torch.equal(head, table):
        made["output_layer.weight"] = _padded(head, rows)
    return made


def optimizer_state(chunks, step):
    """Return what an optimizer with copies in float32 has: two groups, with and without weight decay."""
    params = [x for chunk in chunks for x in chunk.values() if isinstance(x, torch.Tensor)]
    groups = [[x for x in params if x.ndim > 1], [x for x in params if x.ndim <= 1]]
    state, ids = {}, []
    for group in groups:
        ids.append(list(range(len(state), len(state) + len(group))))
        for x in group:
            state[len(state)] = {"exp_avg": x.float() * 0.1, "exp_avg_sq": x.float() ** 2}
    return {
        "optimizer": {"state": state, "param_groups": [
            {"lr": 1e-3, "wd_mult": wd, "step": step, "params": own} for wd, own in zip((1.0, 0.0), ids, strict=True)]},
        "fp32_from_fp16_params": [[x.float() for x in group] for group in groups],
    }  # fmt: skip


def _experts_one_by_one(state):
    made = {}
    for name, x in state.items():
        if name.endswith("mlp.experts.gate_up_proj"):
            for j, each in enumerate(x):
                gate, up = each.chunk(2)
                made[name.replace("gate_up_proj", f"{j}.gate_proj.weight")] = gate
                made[name.replace("gate_up_proj", f"{j}.up_proj.weight")] = up
        elif name.endswith("mlp.experts.down_proj"):
            for j, each in enumerate(x):
                made[name.replace("down_proj", f"{j}.down_proj.weight")] = each
        else:
            made[name] = x
    return made


def _layer_state(own, shape, fused_norms):
    first, second = ("self_attention.linear_qkv.layer_norm_weight", "mlp.linear_fc1.layer_norm_weight")
    is_moe = "mlp.gate.weight" in own
    made = {
        first if fused_norms else "input_layernorm.weight": own["input_layernorm.weight"],
        second if fused_norms and not is_moe else "pre_mlp_layernorm.weight": own["post_attention_layernorm.weight"],
        "self_attention.linear_proj.weight": own["self_attn.o_proj.weight"],
    }
    for what in ("weight", "bias"):
        if f"self_attn.q_proj.{what}" in own:
            q, k, v = (own[f"self_attn.{part}_proj.{what}"] for part in "qkv")
            made[f"self_attention.linear_qkv.{what}"] = _qkv(q, k, v, shape)
    for part in ("q", "k"):
        if f"self_attn.{part}_norm.weight" in own:
            made[f"self_attention.{part}_layernorm.weight"] = own[f"self_attn.{part}_norm.weight"]
    if not is_moe:
        return made | _mlp(own, "mlp.", "mlp.")
    made["mlp.router.weight"] = own["mlp.gate.weight"]
    for j in range(own["mlp.gate.weight"].shape[0]):
        made |= _mlp(own, f"mlp.experts.{j}.", f"mlp.experts.local_experts.{j}.")
    if "mlp.shared_expert.gate_proj.weight" in own:
        made |= _mlp(own, "mlp.shared_expert.", "mlp.shared_experts.")
        made["mlp.shared_experts.gate_weight"] = own["mlp.shared_expert_gate.weight"]
    return made


def _mlp(own, before, after):
    gate, up = own[f"{before}gate_proj.weight"], own[f"{before}up_proj.weight"]
    return {
        f"{after}linear_fc1.weight": torch.cat([gate, up]),
        f"{after}linear_fc2.weight": own[f"{before}down_proj.weight"],
    }


def _qkv(q, k, v, shape):
    """Return rows of queries, keys and values per group."""
    groups, dim = shape.num_groups, shape.head_dim
    q = q.reshape(groups, shape.num_heads // groups * dim, *q.shape[1:])
    k, v = (x.reshape(groups, dim, *x.shape[1:]) for x in (k, v))
    return torch.cat([q, k, v], dim=1).flatten(0, 1)


def _padded(table, rows):
    return torch.cat([table, torch.zeros(rows - table.shape[0], *table.shape[1:], dtype=table.dtype)])


def _hidden(whole):
    return whole["embedding.word_embeddings.weight"].shape[1]


def _layer(name):
    found = re.match(r"decoder\.layers\.(\d+)\.", name)
    return int(found[1]) if found else -1


def _expert(name):
    found = re.search(r"local_experts\.(\d+)\.", name)
    return int(found[1]) if found else -1


def cut(name, x, tp, tp_rank):
    """Return the part of a tensor that a rank has."""
    if re.search(r"linear_fc1\.weight$", name):
        gate, up = x.chunk(2)
        x = torch.cat([gate.chunk(tp)[tp_rank], up.chunk(tp)[tp_rank]])
    elif re.search(r"(linear_qkv\.(weight|bias)|word_embeddings\.weight|output_layer\.weight)$", name):
        x = x.chunk(tp)[tp_rank]
    elif re.search(r"(linear_proj|linear_fc2)\.weight$", name):
        x = x.chunk(tp, dim=1)[tp_rank]
    return x.clone()


def _chunk(whole, stages, stage, tp, tp_rank, ep, ep_rank, num_experts, experts):
    """Return the state dict of one virtual stage on one rank."""
    begin = sum(stages[:stage])
    local = num_experts // ep
    made = {}
    for name, x in whole.items():
        layer, expert = _layer(name), _expert(name)
        is_first, is_last = stage == 0, stage == len(stages) - 1
        if layer >= 0:
            if not begin <= layer < begin + stages[stage]:
                continue
            name = name.replace(f"layers.{layer}.", f"layers.{layer - begin}.", 1)
        elif not (is_first if name.startswith("embedding.") else is_last):
            continue
        if expert >= 0:
            if expert // local != ep_rank:
                continue
            name = name.replace(f"local_experts.{expert}.", f"local_experts.{expert % local}.")
        made[name] = cut(name, x, tp, tp_rank)
    return made if experts == "local" else _together(made, experts)


def _together(chunk, experts):
    """Return a state dict with the experts of a layer together."""
    made, found = {}, {}
    for name, x in chunk.items():
        parts = re.match(r"(.*\.experts)\.local_experts\.(\d+)\.(linear_fc[12])\.weight$", name)
        if parts is None:
            made[name] = x
        elif experts == "te":
            made[f"{parts[1]}.{parts[3]}.weight{parts[2]}"] = x
        else:
            found.setdefault((parts[1], parts[3]), []).append(x)
    for (layer, which), parts in found.items():
        # The experts' transposed matrices one after the other, in a tensor of another shape.
        whole = torch.stack([x.t() for x in parts])
        hidden = parts[0].shape[1] if which == "linear_fc1" else parts[0].shape[0]
        made[f"{layer}.weight{which[-1]}"] = whole.reshape((hidden, -1) if which == "linear_fc1" else (-1, hidden))
    return made
