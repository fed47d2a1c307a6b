"""Healthy pairs of narrow models in bfloat16 on other kernels, judged without repetitions: how many are called faulty?

    python -m bench.other_kernels [--models bert,gpt2,opt,vit] [--widths 64,96,160] [--seeds 5]

Both sides train for two steps with AdamW. The golden run uses fused attention and oneDNN, the target eager attention
and PyTorch's own kernels. Nothing measures their noise, so `locate` judges by the closed form. In narrow models few
elements make a statistic, which is where the assumption that roundings average out is weakest. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from msprobe.pytorch import PrecisionDebugger
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

from msprobe_core.cli.main import main as msprobe

_VOCABULARY = 256
_COMMON: Mapping[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4}
_NO_DROPOUT: Mapping[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _bert(width: int, attention: str) -> Any:
    config = BertConfig(
        vocab_size=_VOCABULARY, hidden_size=width, intermediate_size=4 * width, **_COMMON, **_NO_DROPOUT
    )
    return BertForMaskedLM._from_config(config, attn_implementation=attention)


def _gpt2(width: int, attention: str) -> Any:
    config = GPT2Config(
        vocab_size=_VOCABULARY, n_embd=width, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel._from_config(config, attn_implementation=attention)


def _opt(width: int, attention: str) -> Any:
    config = OPTConfig(
        vocab_size=_VOCABULARY, hidden_size=width, ffn_dim=4 * width, word_embed_proj_dim=width, dropout=0.0, **_COMMON
    )
    return OPTForCausalLM._from_config(config, attn_implementation=attention)


def _vit(width: int, attention: str) -> Any:
    config = ViTConfig(
        hidden_size=width, intermediate_size=4 * width, image_size=32, patch_size=8, num_labels=10,
        **_COMMON, **_NO_DROPOUT,
    )  # fmt: skip
    return ViTForImageClassification._from_config(config, attn_implementation=attention)


MODELS: Mapping[str, Callable[[int, str], Any]] = {"bert": _bert, "gpt2": _gpt2, "opt": _opt, "vit": _vit}


def _batch(name: str) -> dict[str, torch.Tensor]:
    if name == "vit":
        return {"pixel_values": torch.randn(4, 3, 32, 32).bfloat16(), "labels": torch.randint(0, 10, (4,))}
    ids = torch.randint(2, _VOCABULARY, (4, 16))
    return {"input_ids": ids, "labels": ids}


def _record(name: str, width: int, seed: int, place: Path, *, is_golden: bool) -> None:
    torch.manual_seed(seed)
    model = MODELS[name](width, "sdpa" if is_golden else "eager").bfloat16().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(seed + 100)
    debugger = PrecisionDebugger(dump_path=str(place), task="statistics", level="mix")
    for _ in range(2):
        batch = _batch(name)
        with torch.backends.mkldnn.flags(enabled=is_golden), debugger.start(model):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        debugger.step()
    debugger.close()


def _first(target: Path, golden: Path, out: Path) -> str:
    """Return the call that ``msprobe locate`` blames first; empty if the runs agree."""
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        msprobe(["locate", str(target), str(golden), "-o", str(out)])
    suspects: Sequence[Mapping[str, Any]] = json.loads((out / "locate.json").read_text())["suspects"]
    return f"step {suspects[0]['step']}, {suspects[0]['entry']}" if suspects else ""


def main() -> None:
    """Record and judge all pairs, and print how many were called faulty."""
    parser = argparse.ArgumentParser(prog="python -m bench.other_kernels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--widths", default="64,96,160")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| model | width | pairs | called faulty | first blamed |\n|---|---|---|---|---|")
    for name in arguments.models.split(","):
        for width in map(int, arguments.widths.split(",")):
            blamed: list[str] = []
            for seed in range(arguments.seeds):
                with tempfile.TemporaryDirectory() as directory:
                    work = Path(directory)
                    for side in ("golden", "target"):
                        _record(name, width, seed, work / side, is_golden=side == "golden")
                    blamed.append(_first(work / "target", work / "golden", work / "out"))
            found = [each for each in blamed if each]
            print(f"| {name} | {width} | {len(blamed)} | {len(found)} | {'; '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
