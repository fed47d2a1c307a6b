"""How many rows of healthy pairs compare flags: float32 against bfloat16, on real architectures with random weights.

    python bench/healthy_pairs.py

A pair is the same model on the same data, once in float32 and once in bfloat16 (``pure``: weights and data converted;
``autocast``: under autocast). Nothing is wrong with either, so every flagged row is a false alarm. Prints a Markdown
table: errors of all rows, and the largest relative error of each direction.
"""

import logging
import sys
import tempfile
import warnings
from pathlib import Path

import polars as pl
import torch
import transformers
from msprobe.pytorch import PrecisionDebugger

from msprobe_core.compare import compare_dumps

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from architectures import ARCHITECTURES, Architecture  # the models that the tests train

EIGHT_LAYERS = Architecture(
    lambda: transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=344, num_hidden_layers=8, num_attention_heads=8
    ),
    "LlamaForCausalLM",
    lambda: {"input_ids": (ids := torch.randint(2, 256, (2, 48))), "labels": ids},
)


def record(directory: str, task: str, model: torch.nn.Module, batch: dict, *, autocast: bool = False) -> Path:
    """Record one forward and backward."""
    debugger = PrecisionDebugger(dump_path=directory, level="mix", task=task)
    with debugger.start(model):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(**batch).loss
        loss.backward()
    debugger.close()
    return Path(directory) / "step0"


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print("| model | pair | statistics | tensors | largest error forward | backward |")
    print("|---|---|---|---|---|---|")
    for name, architecture in {**ARCHITECTURES, "llama, 8 layers": EIGHT_LAYERS}.items():
        batch = architecture.batch()
        halved = {k: v.bfloat16() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in batch.items()}
        for pair in ("pure", "autocast"):
            cells = []
            for task in ("statistics", "tensor"):
                with tempfile.TemporaryDirectory() as root:
                    golden = record(f"{root}/golden", task, architecture.build().eval(), batch)
                    model = architecture.build().eval()
                    if pair == "pure":
                        target = record(f"{root}/target", task, model.bfloat16(), halved)
                    else:
                        target = record(f"{root}/target", task, model, batch, autocast=True)
                    unit = compare_dumps(target, golden).units[0]
                cells.append(f"{unit.counts['error']} of {unit.rows.height}")
            judged = unit.rows.filter((pl.col("limit") > 0) & pl.col("judged_error").is_finite())
            for is_forward in (True, False):
                rows = judged.filter((pl.col("phase") == "forward") == is_forward)
                cells.append(f"{rows['judged_error'].max():.1e}")
            print(f"| {name} | {pair} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
