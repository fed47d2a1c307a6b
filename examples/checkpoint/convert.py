"""Save a small Llama for transformers, and convert it to the layout of Megatron-LM: soundly, and with one bug planted.

python examples/checkpoint/convert.py --output demo_output/checkpoint

Writes three directories: ``hf``, ``megatron`` (two ranks of tensor and two stages of pipeline parallelism), and
``megatron_bug``, where the rows of queries, keys and values of one layer are part by part instead of group by group.
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from megatron_layout import shape_of, write_megatron  # from tests/support

WRONG_LAYER = 2
"""Layer whose fused projection the bug is in."""


def as_part_by_part(state: dict[str, torch.Tensor], config: LlamaConfig, layer: int) -> dict[str, torch.Tensor]:
    """Return a state in which one layer's projections are such that a sound conversion fuses them part by part.

    The conversion takes the heads of each group from queries, keys and values; here these hold the rows that a
    conversion without groups would put in these places.
    """
    names = [f"model.layers.{layer}.self_attn.{part}_proj.weight" for part in "qkv"]
    width, groups = config.hidden_size // config.num_attention_heads, config.num_key_value_heads
    per_group = config.num_attention_heads // groups
    rows = torch.cat([state[name] for name in names]).reshape(groups, (per_group + 2) * width, -1)
    parts = rows.split([per_group * width, width, width], dim=1)
    return state | {name: part.reshape(state[name].shape) for name, part in zip(names, parts, strict=True)}


def main() -> None:
    """Write the three checkpoints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, type=Path, help="directory for the checkpoints")
    output = parser.parse_args().output

    torch.manual_seed(1234)
    config = LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=1000, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(output / "hf")
    state = model.state_dict()
    write_megatron(state, output / "megatron", shape_of(config), tp=2, pp=2)
    wrong = as_part_by_part(state, config, WRONG_LAYER)
    write_megatron(wrong, output / "megatron_bug", shape_of(config), tp=2, pp=2)
    print(f"a Llama of {sum(p.numel() for p in model.parameters()):,} parameters, saved in two layouts")


if __name__ == "__main__":
    main()
