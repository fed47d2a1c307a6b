"""Train a small GPT under the monitor. From one step on a layer computes something else, and an alarm records it.

python examples/monitor/train.py --output demo_output/monitor
python examples/monitor/train.py --output demo_output/monitor --repeat

The second command repeats the recorded step without the fault, from the checkpoint that the first has saved of it.
"""

import argparse
import os
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger, TrainerMon, seed_all
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

TEXT = Path(__file__).parents[1] / "demo" / "text.txt"
CONFIG = Path(__file__).with_name("monitor.json")
BATCH_SIZE, SEQUENCE_LENGTH, WIDTH, HEADS, LAYERS = 8, 64, 64, 4, 4
FAULTY_LAYER = 2


class Block(nn.Module):
    """One layer: attention to earlier tokens, and a network for each token."""

    def __init__(self) -> None:
        """Create it with random weights."""
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the next layer gets [batch, sequence, width]."""
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm_2(x))


class Gpt(nn.Module):
    """A model of bytes."""

    def __init__(self) -> None:
        """Create it with random weights."""
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(SEQUENCE_LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, sequence, 256]."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def plant_fault(model: Gpt) -> str:
    """Set a wrong epsilon in one normalisation, and return its path."""
    model.blocks[FAULTY_LAYER].norm_2.eps = 30.0
    return f"blocks.{FAULTY_LAYER}.norm_2"


def batch(step: int) -> torch.Tensor:
    """Return the tokens of a step [batch, sequence + 1], always the same ones."""
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    starts = torch.randint(len(text) - SEQUENCE_LENGTH, (BATCH_SIZE,), generator=torch.Generator().manual_seed(step))
    return torch.stack([text[start : start + SEQUENCE_LENGTH + 1] for start in starts])


def train_step(model: Gpt, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> float:
    """Train one step and return the loss."""
    loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def train(model: Gpt, optimizer: torch.optim.Optimizer, output: Path, steps: int, fault_at: int) -> None:
    """Train under the monitor, and save a checkpoint of the step that an alarm has recorded."""
    os.environ["MONITOR_OUTPUT_DIR"] = str(output / "monitor_output")
    monitor = TrainerMon(CONFIG, params_have_main_grad=False)
    monitor.set_monitor(model, optimizer)
    for step in range(steps):
        if step == fault_at:
            print(f"step {step}: planted a fault in", plant_fault(model))
        if monitor.window is not None:
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, output / "recorded.pt")
        loss = train_step(model, optimizer, batch(step))
        if step % 20 == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)
    monitor.close()


def repeat(model: Gpt, optimizer: torch.optim.Optimizer, output: Path) -> None:
    """Record the same step from the same state, without the fault."""
    state = torch.load(output / "recorded.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    debugger = PrecisionDebugger(dump_path=str(output / "golden"), level="mix")
    debugger.set_init_step(state["step"])
    debugger.start(model)
    loss = train_step(model, optimizer, batch(state["step"]))
    debugger.stop()
    print(f"step {state['step']} without the fault: loss {loss:.4f}")


def main() -> None:
    """Train, or repeat one step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, type=Path, help="directory for everything that is written")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fault-at", type=int, default=180, help="step from which the fault stays")
    parser.add_argument("--repeat", action="store_true", help="repeat the recorded step without the fault")
    arguments = parser.parse_args()

    seed_all(seed=1234, mode=True)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if arguments.repeat:
        repeat(model, optimizer, arguments.output)
    else:
        train(model, optimizer, arguments.output, arguments.steps, arguments.fault_at)


if __name__ == "__main__":
    main()
