"""Bugs of conversions, and models, that no rule of the comparison of checkpoints was made for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from checkpoint_bugs import Arrays, Bug, as_bfloat16, change_of, fused_qkv, llama, megatron, qwen_moe, swapped, trained

from msprobe_core.checkpoint.structure import Relation

HEADS, GROUPS, HEAD_DIM, HIDDEN, INNER, VOCABULARY, EXPERTS = 8, 4, 8, 64, 96, 128, 4


def mixtral(seed: int = 11, num_layers: int = 3) -> Arrays:
    """Return the tensors of a Mixtral, whose experts have ``w1``, ``w2`` and ``w3``."""
    rng = np.random.default_rng(seed)
    found = {"model.embed_tokens.weight": trained(rng, VOCABULARY, HIDDEN)}
    for i in range(num_layers):
        layer = f"model.layers.{i}."
        for part, size in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
            found[f"{layer}self_attn.{part}_proj.weight"] = trained(rng, size * HEAD_DIM, HIDDEN)
        found[f"{layer}self_attn.o_proj.weight"] = trained(rng, HIDDEN, HEADS * HEAD_DIM)
        found[f"{layer}input_layernorm.weight"] = 1 + trained(rng, HIDDEN)
        found[f"{layer}post_attention_layernorm.weight"] = 1 + trained(rng, HIDDEN)
        found[f"{layer}block_sparse_moe.gate.weight"] = trained(rng, EXPERTS, HIDDEN)
        for e in range(EXPERTS):
            expert = f"{layer}block_sparse_moe.experts.{e}."
            found[f"{expert}w1.weight"] = trained(rng, INNER, HIDDEN)
            found[f"{expert}w3.weight"] = trained(rng, INNER, HIDDEN)
            found[f"{expert}w2.weight"] = trained(rng, HIDDEN, INNER)
    return found | {"model.norm.weight": 1 + trained(rng, HIDDEN), "lm_head.weight": trained(rng, VOCABULARY, HIDDEN)}


def neox(seed: int = 12, num_layers: int = 3) -> Arrays:
    """Return the tensors of a GPT-NeoX, whose fused projection is head by head."""
    rng = np.random.default_rng(seed)
    found = {"gpt_neox.embed_in.weight": trained(rng, VOCABULARY, HIDDEN)}
    for i in range(num_layers):
        layer = f"gpt_neox.layers.{i}."
        for name, shape in {
            "attention.query_key_value": (3 * HIDDEN, HIDDEN), "attention.dense": (HIDDEN, HIDDEN),
            "mlp.dense_h_to_4h": (4 * HIDDEN, HIDDEN), "mlp.dense_4h_to_h": (HIDDEN, 4 * HIDDEN),
        }.items():  # fmt: skip
            found[f"{layer}{name}.weight"] = trained(rng, *shape)
            found[f"{layer}{name}.bias"] = trained(rng, shape[0])
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}{name}.weight"] = 1 + trained(rng, HIDDEN)
            found[f"{layer}{name}.bias"] = trained(rng, HIDDEN)
    return found | {
        "gpt_neox.final_layer_norm.weight": 1 + trained(rng, HIDDEN),
        "embed_out.weight": trained(rng, VOCABULARY, HIDDEN),
    }  # fmt: skip


def bert(seed: int = 13, num_layers: int = 3) -> Arrays:
    """Return the tensors of a BERT."""
    rng = np.random.default_rng(seed)
    found = {
        "bert.embeddings.word_embeddings.weight": trained(rng, VOCABULARY, HIDDEN),
        "bert.embeddings.position_embeddings.weight": trained(rng, 32, HIDDEN),
        "bert.embeddings.token_type_embeddings.weight": trained(rng, 2, HIDDEN),
        "bert.embeddings.LayerNorm.weight": 1 + trained(rng, HIDDEN),
    }
    for i in range(num_layers):
        layer = f"bert.encoder.layer.{i}."
        for name, shape in {
            "attention.self.query": (HIDDEN, HIDDEN), "attention.self.key": (HIDDEN, HIDDEN),
            "attention.self.value": (HIDDEN, HIDDEN), "attention.output.dense": (HIDDEN, HIDDEN),
            "intermediate.dense": (INNER, HIDDEN), "output.dense": (HIDDEN, INNER),
        }.items():  # fmt: skip
            found[f"{layer}{name}.weight"] = trained(rng, *shape)
            found[f"{layer}{name}.bias"] = trained(rng, shape[0])
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            found[f"{layer}{name}.weight"] = 1 + trained(rng, HIDDEN)
    return found


def vit(seed: int = 14, num_layers: int = 2) -> Arrays:
    """Return the tensors of a ViT, with a convolution over patches."""
    rng = np.random.default_rng(seed)
    found = {
        "vit.embeddings.patch_embeddings.projection.weight": trained(rng, HIDDEN, 3, 4, 4),
        "vit.embeddings.position_embeddings": trained(rng, 1, 17, HIDDEN),
    }
    for i in range(num_layers):
        layer = f"vit.encoder.layer.{i}."
        found |= {
            f"{layer}attention.attention.{part}.weight": trained(rng, HIDDEN, HIDDEN)
            for part in ("query", "key", "value")
        }
        found[f"{layer}intermediate.dense.weight"] = trained(rng, INNER, HIDDEN)
        found[f"{layer}output.dense.weight"] = trained(rng, HIDDEN, INNER)
    return found


def gpt_oss(seed: int = 15, num_layers: int = 2) -> Arrays:
    """Return tensors of a model whose experts are stacked; gates and ups alternate along the last dimension."""
    rng = np.random.default_rng(seed)
    found = {"model.embed_tokens.weight": trained(rng, VOCABULARY, HIDDEN)}
    for i in range(num_layers):
        layer = f"model.layers.{i}."
        found[f"{layer}self_attn.q_proj.weight"] = trained(rng, HEADS * HEAD_DIM, HIDDEN)
        found[f"{layer}self_attn.sinks"] = trained(rng, HEADS)
        found[f"{layer}mlp.router.weight"] = trained(rng, EXPERTS, HIDDEN)
        found[f"{layer}mlp.experts.gate_up_proj"] = trained(rng, EXPERTS, HIDDEN, 2 * INNER)
        found[f"{layer}mlp.experts.gate_up_proj_bias"] = trained(rng, EXPERTS, 2 * INNER)
        found[f"{layer}mlp.experts.down_proj"] = trained(rng, EXPERTS, INNER, HIDDEN)
    return found


def phi3(seed: int = 16, num_layers: int = 3) -> Arrays:
    """Return tensors of a Phi-3, which fuses queries, keys and values part by part, and gate and up."""
    found: Arrays = {}
    for name, values in llama(seed, num_layers).items():
        layer = name.partition("self_attn")[0]
        if ".q_proj" in name:
            base = llama(seed, num_layers)
            found[f"{layer}self_attn.qkv_proj.weight"] = fused_qkv(base, layer, "parts")
        elif ".gate_proj" in name:
            up = llama(seed, num_layers)[name.replace("gate_proj", "up_proj")]
            found[name.replace("gate_proj", "gate_up_proj")] = np.concatenate([values, up])
        elif all(f".{each}" not in name for each in ("k_proj", "v_proj", "up_proj")):
            found[name] = values
    return found


def _rng() -> np.random.Generator:
    return np.random.default_rng(77)


def _head_by_head_as_parts(values: np.ndarray) -> np.ndarray:
    """Return the rows of a projection that is fused head by head, part by part."""
    return values.reshape(HEADS, 3, HEAD_DIM, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)


def _ranks_swapped(dim: int, world: int = 2):
    def change(values: np.ndarray) -> np.ndarray:
        return np.concatenate(np.split(values, world, dim)[::-1], dim)

    return change


def _gated_by_rank(values: np.ndarray) -> np.ndarray:
    """Return gate and up as ranks hold them, one rank below the other."""
    gate, up = np.split(values, 2)
    (g0, g1), (u0, u1) = np.split(gate, 2), np.split(up, 2)
    return np.concatenate([g0, u0, g1, u1])


def _layers_shifted(arrays: Arrays) -> None:
    """Give each layer the MLP of the one before it."""
    for part in ("gate", "up", "down"):
        names = [f"model.layers.{i}.mlp.{part}_proj.weight" for i in range(3)]
        values = [arrays[name] for name in names]
        for name, own in zip(names, [values[-1], *values[:-1]], strict=True):
            arrays[name] = own


def _expert_of_other_layer(arrays: Arrays) -> None:
    for part in ("w1", "w2", "w3"):
        arrays[f"model.layers.1.block_sparse_moe.experts.2.{part}.weight"] = arrays[
            f"model.layers.2.block_sparse_moe.experts.2.{part}.weight"
        ]


def _low_rank(values: np.ndarray) -> np.ndarray:
    rng = _rng()
    first, second = rng.standard_normal((values.shape[0], 4)), rng.standard_normal((4, values.shape[1]))
    return (values + 0.03 * values.std() * (first @ second)).astype(np.float32)


def _int8(values: np.ndarray) -> np.ndarray:
    scale = np.abs(values).max(1, keepdims=True) / 127
    return (np.round(values / scale) * scale).astype(np.float32)


def _truncated_normal(values: np.ndarray) -> np.ndarray:
    drawn = _rng().standard_normal(4 * values.size)
    return (0.02 * drawn[np.abs(drawn) < 2][: values.size]).reshape(values.shape).astype(np.float32)


def _xavier(values: np.ndarray) -> np.ndarray:
    limit = np.sqrt(6 / sum(values.shape[:2]))
    return _rng().uniform(-limit, limit, values.shape).astype(np.float32)


def _one_element(values: np.ndarray) -> np.ndarray:
    changed = values.copy()
    changed[5, 7] += 1
    return changed


def _last_rows(values: np.ndarray) -> np.ndarray:
    changed = values.copy()
    changed[-8:] = trained(_rng(), 8, *values.shape[1:])
    return changed


L1, X1, N1, B1, O1 = (
    "model.layers.1.",
    "model.layers.1.block_sparse_moe.",
    "gpt_neox.layers.1.",
    "bert.encoder.layer.1.",
    "model.layers.1.mlp.experts.",
)
R = Relation
UNSEEN: Sequence[Bug] = (
    Bug(
        "fused head by head, written part by part",
        R.QKV_ORDER,
        change_of(f"{N1}attention.query_key_value.weight", _head_by_head_as_parts),
        ["layers.1.attn.qkv.weight"],
        neox,
    ),
    Bug(
        "the same of the bias only",
        R.QKV_ORDER,
        change_of(f"{N1}attention.query_key_value.bias", _head_by_head_as_parts),
        ["layers.1.attn.qkv.bias"],
        neox,
    ),
    Bug(
        "part by part, written group by group",
        R.QKV_ORDER,
        lambda a: a.update({f"{L1}self_attn.qkv_proj.weight": fused_qkv(llama(16), L1, "groups")}),
        ["layers.1.attn.qkv."],
        phi3,
    ),
    Bug(
        "gates and ups of ranks below one another",
        R.GATE_UP,
        change_of(f"{L1}mlp.gate_up_proj.weight", _gated_by_rank),
        ["layers.1.mlp.gate_up."],
        phi3,
    ),
    Bug(
        "gates and ups of ranks below one another, against separate ones",
        R.GATE_UP,
        lambda a: None,
        ["layers.1.mlp.gate.", "layers.1.mlp.up."],
        convert=lambda a: {
            **(whole := megatron(a)),
            "decoder.layers.1.mlp.linear_fc1.weight": _gated_by_rank(whole["decoder.layers.1.mlp.linear_fc1.weight"]),
        },
    ),
    Bug(
        "first and third matrix of an expert exchanged",
        R.GATE_UP,
        swapped(f"{X1}experts.1.w1.weight", f"{X1}experts.1.w3.weight"),
        ["layers.1.mlp.experts.1.gate.", "layers.1.mlp.experts.1.up."],
        mixtral,
    ),
    Bug(
        "second matrices of two experts exchanged",
        R.EXPERTS,
        swapped(f"{X1}experts.0.w2.weight", f"{X1}experts.2.w2.weight"),
        ["layers.1.mlp.experts.0.down.", "layers.1.mlp.experts.2.down."],
        mixtral,
    ),
    Bug("rows of a router reversed", R.ROWS, change_of(f"{X1}gate.weight", lambda v: v[::-1]), ["router"], mixtral),
    Bug("an expert of another layer", R.MISPLACED, _expert_of_other_layer, ["layers.1.mlp.experts.2."], mixtral),
    Bug(
        "MLPs of all layers shifted by one",
        R.MISPLACED,
        _layers_shifted,
        ["mlp.gate.", "mlp.up.", "mlp.down."],
    ),
    Bug(
        "norms of a block exchanged",
        R.MISPLACED,
        swapped(f"{L1}input_layernorm.weight", f"{L1}post_attention_layernorm.weight"),
        ["layers.1.attn_norm", "layers.1.mlp_norm"],
    ),
    Bug(
        "parts of ranks in the wrong order, rows",
        R.ROWS,
        change_of(f"{L1}mlp.up_proj.weight", _ranks_swapped(0)),
        ["layers.1.mlp.up."],
    ),
    Bug(
        "parts of four ranks in the wrong order, columns",
        R.ROWS,
        change_of(f"{L1}mlp.down_proj.weight", _ranks_swapped(1, 4)),
        ["layers.1.mlp.down."],
    ),
    Bug(
        "parts of ranks in the wrong order, attention",
        R.HEADS,
        change_of(f"{L1}self_attn.o_proj.weight", _ranks_swapped(1)),
        ["layers.1.attn.o."],
    ),
    Bug(
        "groups of keys rotated",
        R.HEADS,
        change_of(f"{L1}self_attn.k_proj.weight", lambda v: np.roll(v, HEAD_DIM, 0)),
        [".1.attn.k."],
    ),
    Bug(
        "heads of keys of BERT rotated",
        R.HEADS,
        change_of(f"{B1}attention.self.key.weight", lambda v: np.roll(v, HEAD_DIM, 0)),
        [".attn.self.k."],
        bert,
    ),
    Bug(
        "queries and values of BERT exchanged",
        R.QKV_ORDER,
        swapped(f"{B1}attention.self.query.weight", f"{B1}attention.self.value.weight"),
        [".attn.self.q.", ".attn.self.v."],
        bert,
    ),
    Bug(
        "transposed in BERT",
        R.TRANSPOSED,
        change_of(f"{B1}intermediate.dense.weight", np.transpose),
        ["intermediate"],
        bert,
    ),
    Bug(
        "channels of images reversed",
        R.ROWS,
        change_of("vit.embeddings.patch_embeddings.projection.weight", lambda v: v[:, ::-1]),
        ["projection"],
        vit,
    ),
    Bug(
        "height and width of a kernel exchanged",
        R.TRANSPOSED,
        change_of("vit.embeddings.patch_embeddings.projection.weight", lambda v: v.swapaxes(2, 3)),
        ["projection"],
        vit,
    ),
    Bug(
        "stacked experts transposed",
        R.TRANSPOSED,
        change_of(f"{O1}down_proj", lambda v: v.swapaxes(1, 2)),
        ["layers.1.mlp.experts.down"],
        gpt_oss,
    ),
    Bug(
        "gates and ups of stacked experts one after the other instead of alternating",
        R.GATE_UP,
        change_of(f"{O1}gate_up_proj", lambda v: np.concatenate([v[..., ::2], v[..., 1::2]], -1)),
        ["layers.1.mlp.experts.gate_up"],
        gpt_oss,
    ),
    Bug(
        "stacked experts rotated",
        R.EXPERTS,
        change_of(f"{O1}down_proj", lambda v: np.roll(v, 1, 0)),
        ["layers.1.mlp.experts.down"],
        gpt_oss,
    ),
    Bug(
        "one stacked expert drawn again",
        R.UNINITIALISED,
        change_of(f"{O1}down_proj", lambda v: np.concatenate([v[:3], _truncated_normal(v[3:])])),
        ["layers.1.mlp.experts.down"],
        gpt_oss,
    ),
    Bug(
        "queries divided by the root of their size",
        R.SCALED,
        change_of(f"{L1}self_attn.q_proj.weight", lambda v: v * np.float32(HEAD_DIM**-0.5)),
        [".1.attn.q."],
    ),
    Bug("another sign", R.SCALED, change_of(f"{L1}mlp.down_proj.weight", np.negative), [".1.mlp.down."]),
    Bug("norm minus one", R.SHIFTED, change_of(f"{L1}input_layernorm.weight", lambda v: v - 1), ["layers.1.attn_norm"]),
    Bug(
        "drawn from a truncated normal",
        R.UNINITIALISED,
        change_of(f"{L1}mlp.down_proj.weight", _truncated_normal),
        [".1.mlp.down."],
    ),
    Bug(
        "drawn from Xavier's uniform",
        R.UNINITIALISED,
        change_of(f"{L1}self_attn.o_proj.weight", _xavier),
        [".1.attn.o."],
    ),
    Bug("biases of zeros", R.UNINITIALISED, change_of(f"{B1}output.dense.bias", np.zeros_like), ["1.output"], bert),
    Bug(
        "last rows of the vocabulary zero",
        R.UNINITIALISED,
        change_of("model.embed_tokens.weight", lambda v: np.concatenate([v[:-8], 0 * v[-8:]])),
        ["embed.weight"],
    ),
    Bug(
        "last rows of the vocabulary others",
        R.PARTLY,
        change_of("model.embed_tokens.weight", _last_rows),
        ["embed.weight"],
    ),
    Bug("one element off", R.PARTLY, change_of(f"{L1}mlp.up_proj.weight", _one_element), [".1.mlp.up."]),
    Bug("an adapter merged", R.CLOSE, change_of(f"{L1}mlp.up_proj.weight", _low_rank), [".1.mlp.up."]),
    Bug("through int8", R.CLOSE, change_of(f"{L1}mlp.up_proj.weight", _int8), [".1.mlp.up."]),
    Bug(
        "in float16 and scaled",
        R.SCALED,
        change_of(f"{L1}mlp.up_proj.weight", lambda v: (v * 8).astype(np.float16)),
        [".1.mlp.up."],
    ),
    Bug(
        "heads of queries swapped and cast",
        R.HEADS,
        lambda a: a.update(
            {f"{L1}self_attn.q_proj.weight": as_bfloat16(_ranks_swapped(0)(a[f"{L1}self_attn.q_proj.weight"]))}
        ),
        [".1.attn.q."],
    ),
    Bug(
        "the head tied by mistake",
        R.TIED_BROKEN,
        lambda a: a.__delitem__("lm_head.weight"),
        ["head.weight"],
        qwen_moe,
    ),
    Bug(
        "position embeddings shifted by two",
        R.ROWS,
        change_of("bert.embeddings.position_embeddings.weight", lambda v: np.roll(v, 2, 0)),
        ["positions"],
        bert,
    ),
    Bug(
        "weights of another model",
        R.UNRELATED,
        change_of(f"{L1}mlp.up_proj.weight", lambda v: trained(_rng(), *v.shape)),
        [".1.mlp.up."],
    ),
)
