"""Which bugs of conversions `msprobe checkpoint compare` names, and whether sound conversions are the same model.

python bench/checkpoint_faults.py

Plants every bug of `tests/support/checkpoint_bugs.py` into weights that look trained, saves both sides as safetensors,
and prints a table. Sound conversions to Megatron's layout, to PyTorch's
distributed checkpoints and to DeepSpeed's are checked, the latter two as far as one process can write them.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import json

import checkpoint_bugs as bugs
from megatron_layout import Shape, write_megatron
from unseen_checkpoint_bugs import UNSEEN

from msprobe_core.checkpoint.compare import compare_checkpoints
from msprobe_core.checkpoint.opening import open_checkpoint


def saved(arrays: bugs.Arrays, directory: Path) -> Path:
    """Write a checkpoint as transformers does; return its directory."""
    directory.mkdir(parents=True)
    tensors = {name: _tensor(values) for name, values in arrays.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(bugs.SETTINGS))
    return directory


def _tensor(values: Any) -> torch.Tensor:
    """Return an array, or one with the name of its dtype, as a tensor."""
    if isinstance(values, tuple):
        return torch.from_numpy(values[0].copy()).to(getattr(torch, values[1]))
    return torch.from_numpy(values.copy())


def planted(every: Sequence[bugs.Bug], directory: Path) -> float:
    """Print each bug with the class it got; return the share that was right."""
    right = 0
    for number, bug in enumerate(every):
        arrays = bug.model()
        bad = dict(arrays)
        bug.plant(bad)
        paths = [saved(each, directory / f"{number}" / side) for side, each in (("t", bug.convert(bad)), ("g", arrays))]
        found = compare_checkpoints(*map(open_checkpoint, paths)).differing
        names = {row.relation.value for row in found}
        is_right = names == {bug.relation} and all(any(t in row.key for t in bug.tensors) for row in found)
        right += is_right
        print(f"{'right' if is_right else 'WRONG':6} {bug.name:40} {', '.join(sorted(names))}")
    return right / len(every)


def sound(directory: Path) -> int:
    """Print sound conversions that are not the same model; return the number of conversions."""
    shape = Shape(bugs.HEADS, bugs.GROUPS, bugs.HEAD_DIM)
    count = 0
    for model, (tp, pp, ep) in itertools.product(
        (bugs.llama, bugs.qwen_moe), itertools.product((1, 2, 4), (1, 2), (1, 2))
    ):
        if ep > 1 and model is bugs.llama:
            continue
        arrays = model(num_layers=2)
        name = f"{model.__name__} tp{tp} pp{pp} ep{ep}"
        golden = saved(arrays, directory / name / "hf")
        state = {key: torch.from_numpy(values.copy()) for key, values in arrays.items()}
        write_megatron(state, directory / name / "megatron", shape, tp=tp, pp=pp, ep=ep)
        found = compare_checkpoints(open_checkpoint(directory / name / "megatron"), open_checkpoint(golden))
        count += 1
        print(f"{'same' if found.is_same_model else 'DIFFERENT':10} {name}: {found.headline}")
        for row in found.differing[:3]:
            print(f"    {row.name} {row.golden_name}: {row.relation.value}, {row.proof}")
    return count


def sharded(directory: Path) -> int:
    """Print sound conversions to what PyTorch's distributed checkpoints and DeepSpeed write; return their number."""
    count = 0
    for model in (bugs.llama, bugs.qwen_moe):
        arrays = model(num_layers=2)
        state = {key: torch.from_numpy(values.copy()) for key, values in arrays.items()}
        golden = saved(arrays, directory / model.__name__ / "hf")
        for world in (0, 1, 2, 4):
            form = f"zero3 of {world} ranks" if world else "dcp"
            path = directory / model.__name__ / form
            if world:
                write_zero3(state, path, world)
            else:
                dcp.save({"model": state}, checkpoint_id=path, no_dist=True)
            found = compare_checkpoints(open_checkpoint(path), open_checkpoint(golden))
            count += 1
            print(f"{'same' if found.is_same_model else 'DIFFERENT':10} {model.__name__} {form}: {found.headline}")
            for row in found.differing[:3]:
                print(f"    {row.name} {row.golden_name}: {row.relation.value}, {row.proof}")
    return count


def write_zero3(state: dict[str, torch.Tensor], directory: Path, world: int) -> None:
    """Write what DeepSpeed 0.19 does at stage 3: each parameter is cut in as many parts as ranks, of equal size."""
    step = directory / "global_step5"
    step.mkdir(parents=True)
    vectors: list[list[torch.Tensor]] = [[] for _ in range(world)]
    for x in state.values():
        padded = torch.cat([x.float().reshape(-1), torch.zeros(-x.numel() % world)])
        for own, part in zip(vectors, padded.chunk(world), strict=True):
            own.append(part)
    content = {"module": {}, "param_shapes": [{name: x.shape for name, x in state.items()}], "global_steps": 5}
    for rank, parts in enumerate(vectors):
        own = {"zero_stage": 3, "partition_count": world, "fp32_flat_groups": [torch.cat(parts)]}
        own["optimizer_state_dict"] = {"state": {}, "param_groups": []}
        torch.save({"optimizer_state_dict": own}, step / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        torch.save(content, step / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    (directory / "latest").write_text("global_step5")


def main() -> None:
    """Print all tables."""
    with tempfile.TemporaryDirectory() as place:
        share = planted(bugs.BUGS, Path(place) / "planted")
        unseen = planted(UNSEEN, Path(place) / "unseen")
        count = sound(Path(place) / "sound") + sharded(Path(place) / "sharded")
    print(f"{len(bugs.BUGS)} planted bugs, {share:.0%} with the right class; {count} sound conversions")
    print(f"{len(UNSEEN)} others, which no rule was made for, {unseen:.0%}")


if __name__ == "__main__":
    main()
