"""Train a small Llama on the bytes of a text file, and record its first step.

python examples/demo/train.py --dump demo_output/golden --calibrate
python examples/demo/train.py --dump demo_output/target --fault
python examples/demo/train.py --dump demo_output/other --rope-base 500000
"""

import argparse
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger, calibration, seed_all
from transformers import LlamaConfig, LlamaForCausalLM

TEXT = Path(__file__).with_name("text.txt")
BATCH_SIZE, SEQUENCE_LENGTH = 4, 128
FAULTY_LAYER = 4


def build_model(rope_base: float = 10000.0) -> LlamaForCausalLM:
    """Return a Llama with random weights, one token per byte, whose rotary embedding has this base."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=128,
            intermediate_size=344,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=SEQUENCE_LENGTH,
            rope_parameters={"rope_type": "default", "rope_theta": rope_base},
        )
    )


def plant_fault(model: LlamaForCausalLM) -> str:
    """Set a wrong epsilon in one normalisation deep inside the model, and return its path."""
    norm = model.model.layers[FAULTY_LAYER].post_attention_layernorm
    norm.variance_epsilon = 1e-2
    return f"model.layers.{FAULTY_LAYER}.post_attention_layernorm"


def batches(num_steps: int):
    """Yield batches of byte tokens [batch, sequence]."""
    tokens = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    for _ in range(num_steps):
        starts = torch.randint(len(tokens) - SEQUENCE_LENGTH, (BATCH_SIZE,))
        yield torch.stack([tokens[start : start + SEQUENCE_LENGTH] for start in starts])


def train_step(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> float:
    """Train one step and return the loss."""
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main() -> None:
    """Train three steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dump", required=True, help="directory for the dump")
    parser.add_argument("--fault", action="store_true", help="plant a wrong epsilon in one layer")
    parser.add_argument("--rope-base", type=float, default=10000.0, help="of the rotary embedding (%(default)s)")
    parser.add_argument("--calibrate", action="store_true", help="repeat the step with other last digits")
    arguments = parser.parse_args()

    seed_all(seed=1234, mode=True)
    model = build_model(arguments.rope_base)
    if arguments.fault:
        print("planted a fault in", plant_fault(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    debugger = PrecisionDebugger(dump_path=arguments.dump, level="mix", step=[0])
    for step, tokens in enumerate(batches(num_steps=3)):
        if arguments.calibrate:
            with calibration(debugger, model, optimizer, mode="inputs") as runs:
                losses = [train_step(model, optimizer, tokens) for _ in runs]
        else:
            debugger.start(model)
            losses = [train_step(model, optimizer, tokens)]
            debugger.stop()
        debugger.step()
        print(f"step {step}: loss {losses[0]:.6f}")


if __name__ == "__main__":
    main()
