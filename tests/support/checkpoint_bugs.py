"""Checkpoints in memory, with weights that look trained, and bugs of conversions planted into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_core.checkpoint.contents import Checkpoint, CheckpointFormat, Kind, LogicalTensor, Piece
from msprobe_core.checkpoint.structure import Relation
from msprobe_core.store.tensor_source import HeldTensor

HEADS, GROUPS, HEAD_DIM, HIDDEN, INNER, VOCABULARY, EXPERTS = 8, 4, 8, 64, 96, 128, 4
SETTINGS = {
    "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": HEAD_DIM, "hidden_size": HIDDEN,
}  # fmt: skip
Arrays = dict[str, Any]


def trained(rng: np.random.Generator, *shape: int) -> Any:
    """Return a tensor whose rows and columns have different norms, as training leaves them."""
    values = 0.02 * rng.standard_normal(shape)
    for dim, size in enumerate(shape):
        spread = np.exp(0.6 * rng.standard_normal(size))
        values = values * spread.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return values.astype(np.float32)


def llama(seed: int = 0, num_layers: int = 3) -> Arrays:
    """Return the tensors of a small Llama under Hugging Face's names."""
    rng = np.random.default_rng(seed)
    found = {"model.embed_tokens.weight": trained(rng, VOCABULARY, HIDDEN)}
    for i in range(num_layers):
        layer = f"model.layers.{i}."
        found |= _attention(rng, layer)
        found |= {
            f"{layer}mlp.gate_proj.weight": trained(rng, INNER, HIDDEN),
            f"{layer}mlp.up_proj.weight": trained(rng, INNER, HIDDEN),
            f"{layer}mlp.down_proj.weight": trained(rng, HIDDEN, INNER),
        }
    found["model.norm.weight"] = 1 + trained(rng, HIDDEN)
    found["lm_head.weight"] = trained(rng, VOCABULARY, HIDDEN)
    return found


def _attention(rng: np.random.Generator, layer: str) -> Arrays:
    return {
        f"{layer}self_attn.q_proj.weight": trained(rng, HEADS * HEAD_DIM, HIDDEN),
        f"{layer}self_attn.k_proj.weight": trained(rng, GROUPS * HEAD_DIM, HIDDEN),
        f"{layer}self_attn.v_proj.weight": trained(rng, GROUPS * HEAD_DIM, HIDDEN),
        f"{layer}self_attn.o_proj.weight": trained(rng, HIDDEN, HEADS * HEAD_DIM),
        f"{layer}input_layernorm.weight": 1 + trained(rng, HIDDEN),
        f"{layer}post_attention_layernorm.weight": 1 + trained(rng, HIDDEN),
    }


def qwen_moe(seed: int = 1, num_layers: int = 2) -> Arrays:
    """Return the tensors of a small Qwen2-MoE."""
    rng = np.random.default_rng(seed)
    found = {"model.embed_tokens.weight": trained(rng, VOCABULARY, HIDDEN)}
    for i in range(num_layers):
        layer = f"model.layers.{i}."
        found |= _attention(rng, layer)
        found |= {
            f"{layer}self_attn.{part}_proj.bias": trained(rng, size * HEAD_DIM)
            for part, size in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))
        }
        found[f"{layer}mlp.gate.weight"] = trained(rng, EXPERTS, HIDDEN)
        for path in (*[f"experts.{e}" for e in range(EXPERTS)], "shared_expert"):
            found |= {
                f"{layer}mlp.{path}.gate_proj.weight": trained(rng, INNER, HIDDEN),
                f"{layer}mlp.{path}.up_proj.weight": trained(rng, INNER, HIDDEN),
                f"{layer}mlp.{path}.down_proj.weight": trained(rng, HIDDEN, INNER),
            }
        found[f"{layer}mlp.shared_expert_gate.weight"] = trained(rng, 1, HIDDEN)
    return found | {"model.norm.weight": 1 + trained(rng, HIDDEN), "lm_head.weight": trained(rng, VOCABULARY, HIDDEN)}


def gpt2(seed: int = 2, num_layers: int = 2) -> Arrays:
    """Return the tensors of a small GPT-2, whose matrices are transposed and whose projections are fused."""
    rng = np.random.default_rng(seed)
    found = {
        "transformer.wte.weight": trained(rng, VOCABULARY, HIDDEN),
        "transformer.wpe.weight": trained(rng, 32, HIDDEN),
    }
    for i in range(num_layers):
        layer = f"transformer.h.{i}."
        found |= {
            f"{layer}ln_1.weight": 1 + trained(rng, HIDDEN), f"{layer}ln_1.bias": trained(rng, HIDDEN),
            f"{layer}attn.c_attn.weight": trained(rng, HIDDEN, 3 * HIDDEN),
            f"{layer}attn.c_attn.bias": trained(rng, 3 * HIDDEN),
            f"{layer}attn.c_proj.weight": trained(rng, HIDDEN, HIDDEN),
            f"{layer}mlp.c_fc.weight": trained(rng, HIDDEN, 4 * HIDDEN),
            f"{layer}mlp.c_proj.weight": trained(rng, 4 * HIDDEN, HIDDEN),
        }  # fmt: skip
    return found | {"transformer.ln_f.weight": 1 + trained(rng, HIDDEN)}


def t5(seed: int = 3, num_layers: int = 2) -> Arrays:
    """Return the tensors of a small T5, with an encoder and a decoder."""
    rng = np.random.default_rng(seed)
    found = {"shared.weight": trained(rng, VOCABULARY, HIDDEN)}
    for stack in ("encoder", "decoder"):
        for i in range(num_layers):
            layer = f"{stack}.block.{i}.layer."
            found |= {f"{layer}0.SelfAttention.{p}.weight": trained(rng, HIDDEN, HIDDEN) for p in "qkvo"}
            found |= {
                f"{layer}1.DenseReluDense.wi_0.weight": trained(rng, INNER, HIDDEN),
                f"{layer}1.DenseReluDense.wi_1.weight": trained(rng, INNER, HIDDEN),
                f"{layer}1.DenseReluDense.wo.weight": trained(rng, HIDDEN, INNER),
                f"{layer}0.layer_norm.weight": 1 + trained(rng, HIDDEN),
            }
    return found


def held(
    arrays: Mapping[str, Any],
    *,
    aliases: Mapping[str, str] | None = None,
    step: int | None = None,
    settings: Any = None,
    name: str = "held",
) -> Checkpoint:
    """Return a checkpoint whose tensors are in memory; values of the type ``(array, dtype)`` have another dtype."""
    tensors: dict[str, LogicalTensor] = {}
    for key, value in arrays.items():
        values, dtype = value if isinstance(value, tuple) else (value, value.dtype.name)
        piece = Piece(source=HeldTensor(values, dtype), begin=(0,) * values.ndim, file=Path(name))
        tensors[key] = LogicalTensor(name=key, dtype=dtype, shape=values.shape, pieces=[piece], kind=Kind.WEIGHT)
    return Checkpoint(
        path=Path(name), format=CheckpointFormat.SAFETENSORS, tensors=tensors, aliases=aliases or {},
        settings=SETTINGS if settings is None else settings, step=step,
    )  # fmt: skip


def as_bfloat16(values: Any, *, truncates: bool = False) -> tuple[Any, str]:
    """Return values rounded to bfloat16, to nearest or towards zero, and the dtype's name."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    if not truncates:
        bits = bits + (((bits >> 16) & 1) + 0x7FFF).astype(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32), "bfloat16"


def fused_qkv(arrays: Mapping[str, Any], layer: str, order: str = "groups") -> Any:
    """Return queries, keys and values as one projection: ``groups`` as in Megatron, or ``parts``, one after another."""
    q, k, v = (arrays[f"{layer}self_attn.{part}_proj.weight"] for part in "qkv")
    if order == "parts":
        return np.concatenate([q, k, v])
    shape = (GROUPS, -1, HIDDEN)
    return np.concatenate([part.reshape(shape) for part in (q, k, v)], axis=1).reshape(-1, HIDDEN)


def megatron(arrays: Mapping[str, Any], orders: Mapping[int, str] | None = None) -> Arrays:
    """Return a Llama's tensors under Megatron-core's names, in one process.

    Args:
        arrays: Tensors of `llama`.
        orders: Layers whose queries, keys and values are fused in another order; see `fused_qkv`.
    """
    found: Arrays = {}
    for name, values in arrays.items():
        layer = ".".join(name.split(".")[:3]) + "."
        own = layer.replace("model.", "decoder.")
        if ".q_proj" in name:
            number = int(name.split(".")[2])
            found[f"{own}self_attention.linear_qkv.weight"] = fused_qkv(
                arrays, layer, (orders or {}).get(number, "groups")
            )
        elif ".gate_proj" in name:
            up = arrays[name.replace("gate_proj", "up_proj")]
            found[f"{own}mlp.linear_fc1.weight"] = np.concatenate([values, up])
        elif "k_proj" not in name and "v_proj" not in name and "up_proj" not in name:
            found[_MEGATRON.get(name) or own + _MEGATRON[name.removeprefix(layer)]] = values
    return found


_MEGATRON = {
    "model.embed_tokens.weight": "embedding.word_embeddings.weight",
    "model.norm.weight": "decoder.final_layernorm.weight", "lm_head.weight": "output_layer.weight",
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight", "mlp.down_proj.weight": "mlp.linear_fc2.weight",
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "post_attention_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
}  # fmt: skip


@dataclass(frozen=True)
class Bug:
    """A bug of a conversion.

    Attributes:
        name: What is wrong.
        relation: The class that it must get.
        plant: Changes the tensors in place.
        tensors: Text in the keys of all tensors that differ, and of no others.
        model: Returns the sound tensors.
        convert: Converts the changed tensors.
        prepare: Changes the golden tensors first.
    """

    name: str
    relation: Relation
    plant: Callable[[Arrays], None]
    tensors: Sequence[str]
    model: Callable[[], Arrays] = llama
    convert: Callable[[Arrays], Arrays] = dict


def change_of(name: str, change: Callable[[Any], Any]) -> Callable[[Arrays], None]:
    def plant(arrays: Arrays) -> None:
        arrays[name] = np.ascontiguousarray(change(arrays[name]))

    return plant


def swapped(first: str, second: str) -> Callable[[Arrays], None]:
    def plant(arrays: Arrays) -> None:
        arrays[first], arrays[second] = arrays[second], arrays[first]

    return plant


def _random(shape: Any, scale: float = 0.02) -> Any:
    return (scale * np.random.default_rng(99).standard_normal(shape)).astype(np.float32)


def _heads(values: Any, width: int = HEAD_DIM) -> Any:
    return values.reshape(-1, width, *values.shape[1:])[::-1].reshape(values.shape)


def _one_pair_of_heads(values: Any) -> Any:
    heads = values.reshape(-1, HEAD_DIM, *values.shape[1:]).copy()
    heads[[1, 3]] = heads[[3, 1]]
    return heads.reshape(values.shape)


def _interleaved(values: Any) -> Any:
    return values.reshape(-1, 2, HEAD_DIM // 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def _experts_rotated(arrays: Arrays) -> None:
    for part in ("gate", "up", "down"):
        names = [f"model.layers.0.mlp.experts.{e}.{part}_proj.weight" for e in range(EXPERTS)]
        values = [arrays[name] for name in names]
        for name, own in zip(names, [*values[1:], values[0]], strict=True):
            arrays[name] = own


L1 = "model.layers.1."
MOE = "model.layers.1.mlp."
BUGS: Sequence[Bug] = (
    Bug(
        "transposed square",
        Relation.TRANSPOSED,
        change_of(f"{L1}self_attn.o_proj.weight", np.transpose),
        ["layers.1.attn.o."],
    ),
    Bug(
        "transposed", Relation.TRANSPOSED, change_of(f"{L1}mlp.down_proj.weight", np.transpose), ["layers.1.mlp.down."]
    ),
    Bug(
        "qkv part by part in Megatron",
        Relation.QKV_ORDER,
        lambda a: None,
        [".1.attn.q.", ".1.attn.k.", ".1.attn.v."],
        convert=lambda a: megatron(a, {1: "parts"}),
    ),
    Bug(
        "keys and values swapped",
        Relation.QKV_ORDER,
        swapped(f"{L1}self_attn.k_proj.weight", f"{L1}self_attn.v_proj.weight"),
        [".1.attn.k.", ".1.attn.v."],
    ),
    Bug(
        "keys and values swapped in Megatron",
        Relation.QKV_ORDER,
        swapped(f"{L1}self_attn.k_proj.weight", f"{L1}self_attn.v_proj.weight"),
        [".1.attn.k.", ".1.attn.v."],
        convert=megatron,
    ),
    Bug(
        "biases of keys and values swapped",
        Relation.QKV_ORDER,
        swapped(f"{L1}self_attn.k_proj.bias", f"{L1}self_attn.v_proj.bias"),
        [".1.attn.k.bias", ".1.attn.v.bias"],
        qwen_moe,
    ),
    Bug(
        "fused columns rotated",
        Relation.QKV_ORDER,
        change_of("transformer.h.1.attn.c_attn.weight", lambda v: np.roll(v, HIDDEN, 1)),
        ["layers.1.attn.qkv.weight"],
        gpt2,
    ),
    Bug(
        "queries and keys of T5 swapped",
        Relation.QKV_ORDER,
        swapped("encoder.block.1.layer.0.SelfAttention.q.weight", "encoder.block.1.layer.0.SelfAttention.k.weight"),
        ["encoder.block.1.layers.0.SelfAttention.q", "encoder.block.1.layers.0.SelfAttention.k"],
        t5,
    ),
    Bug(
        "gate and up swapped",
        Relation.GATE_UP,
        swapped(f"{L1}mlp.gate_proj.weight", f"{L1}mlp.up_proj.weight"),
        ["layers.1.mlp.gate.", "layers.1.mlp.up."],
    ),
    Bug(
        "gate and up swapped in Megatron",
        Relation.GATE_UP,
        swapped(f"{L1}mlp.gate_proj.weight", f"{L1}mlp.up_proj.weight"),
        ["layers.1.mlp.gate.", "layers.1.mlp.up."],
        convert=megatron,
    ),
    Bug(
        "gate and up of an expert swapped",
        Relation.GATE_UP,
        swapped(f"{MOE}experts.2.gate_proj.weight", f"{MOE}experts.2.up_proj.weight"),
        ["layers.1.mlp.experts.2.gate.", "layers.1.mlp.experts.2.up."],
        qwen_moe,
    ),
    Bug(
        "rotary halves interleaved",
        Relation.ROTARY,
        change_of(f"{L1}self_attn.q_proj.weight", _interleaved),
        [".1.attn.q."],
    ),
    Bug("heads reversed", Relation.HEADS, change_of(f"{L1}self_attn.q_proj.weight", _heads), [".1.attn.q."]),
    Bug(
        "two heads swapped",
        Relation.HEADS,
        change_of(f"{L1}self_attn.q_proj.weight", _one_pair_of_heads),
        [".1.attn.q."],
    ),
    Bug(
        "heads of the output reversed",
        Relation.HEADS,
        change_of(f"{L1}self_attn.o_proj.weight", lambda v: _heads(v.T).T),
        [".1.attn.o."],
    ),
    Bug(
        "rows of the vocabulary shifted",
        Relation.ROWS,
        change_of("model.embed_tokens.weight", lambda v: np.roll(v, 1, 0)),
        ["embed.weight"],
    ),
    Bug("experts rotated", Relation.EXPERTS, _experts_rotated, ["layers.0.mlp.experts."], qwen_moe),
    Bug(
        "one expert written twice",
        Relation.EXPERTS,
        lambda a: a.update({f"{MOE}experts.1.down_proj.weight": a[f"{MOE}experts.3.down_proj.weight"]}),
        ["layers.1.mlp.experts.1.down."],
        qwen_moe,
    ),
    Bug(
        "random expert",
        Relation.UNINITIALISED,
        change_of(f"{MOE}experts.1.down_proj.weight", lambda v: _random(v.shape)),
        ["layers.1.mlp.experts.1.down."],
        qwen_moe,
    ),
    Bug(
        "uniform initialiser",
        Relation.UNINITIALISED,
        change_of(
            f"{L1}mlp.up_proj.weight",
            lambda v: np.random.default_rng(5).uniform(-0.125, 0.125, v.shape).astype(np.float32),
        ),
        ["layers.1.mlp.up."],
    ),
    Bug("zeros", Relation.UNINITIALISED, change_of(f"{L1}mlp.up_proj.weight", np.zeros_like), ["layers.1.mlp.up."]),
    Bug(
        "norm of ones",
        Relation.UNINITIALISED,
        change_of(f"{L1}input_layernorm.weight", np.ones_like),
        ["layers.1.attn_norm."],
    ),
    Bug(
        "scaled by 1.02",
        Relation.SCALED,
        change_of(f"{L1}self_attn.v_proj.weight", lambda v: v * np.float32(1.02)),
        [".1.attn.v."],
    ),
    Bug(
        "layers exchanged",
        Relation.MISPLACED,
        swapped(f"{L1}mlp.down_proj.weight", "model.layers.2.mlp.down_proj.weight"),
        ["layers.1.mlp.down.", "layers.2.mlp.down."],
    ),
    Bug(
        "trained further",
        Relation.CLOSE,
        change_of(f"{L1}mlp.up_proj.weight", lambda v: v + _random(v.shape, 1e-4)),
        ["layers.1.mlp.up."],
    ),
    Bug(
        "another model's tensor",
        Relation.UNRELATED,
        lambda a: a.update({f"{L1}mlp.up_proj.weight": llama(seed=50)[f"{L1}mlp.up_proj.weight"]}),
        ["layers.1.mlp.up."],
    ),
    Bug(
        "second half of a tensor zero",
        Relation.UNINITIALISED,
        change_of(f"{L1}mlp.up_proj.weight", lambda v: np.concatenate([v[:48], 0 * v[48:]])),
        ["layers.1.mlp.up."],
    ),
    Bug(
        "tensor missing", Relation.ONLY_GOLDEN, lambda a: a.__delitem__(f"{L1}mlp.up_proj.weight"), ["layers.1.mlp.up."]
    ),
    Bug(
        "NaN",
        Relation.DIFFERENT,
        change_of(f"{L1}mlp.up_proj.weight", lambda v: np.where(v > 0.1, np.nan, v).astype(np.float32)),
        ["layers.1.mlp.up."],
    ),
)
"""Bugs of the classes that need nothing but two checkpoints."""
