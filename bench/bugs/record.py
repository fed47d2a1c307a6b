"""Record one side of a bug: ``python -m bench.bugs.record NAME SIDE DIRECTORY``; the runner starts it with releases."""

from __future__ import annotations

import argparse
import json
import logging
import os
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

from bench.bugs.bug import Bug, Side, Variant
from bench.bugs.catalogue import subject_of
from bench.bugs.checks import INITIAL, MONITOR
from bench.bugs.observed import file_of
from bench.bugs.program import Program
from bench.faults.kernels import OtherKernels
from bench.faults.recording import NUM_REPEATS

KERNELS = ("same", "other")


@dataclass(frozen=True)
class Way:
    """How a side is recorded.

    Attributes:
        mode: What is recorded of tensors.
        kernels: Kernels of the side.
        steps: Number of steps; ``None`` for the program's own.
        plain: Whether a golden run is recorded as a target is, without repetitions for calibration.
        observed: Whether it is run once more as peers observe it.
    """

    mode: str = "statistics"
    kernels: str = "same"
    steps: int | None = None
    plain: bool = False
    observed: bool = False


def record(bug: Bug | Variant, side: Side, place: Path, way: Way) -> None:
    """Record a side in this process; golden runs also repeat their steps, for calibration."""
    torch.manual_seed(0)
    contexts: dict[str, AbstractContextManager[object] | None] = {"same": None, "other": OtherKernels()}

    def program():
        made = bug.make(side)
        made.num_steps = way.steps or made.num_steps
        return made

    if side is Side.GOLDEN and not way.plain:
        if bug.world == 1:
            program().record_golden(place, way.mode)
        else:
            program().record(place, way.mode)
            for i in range(NUM_REPEATS):
                program().record(place / "calibration" / f"run{i}", way.mode, perturb={"seed": 100 * (i + 1)})
    else:
        program().record(place, way.mode, kernels=contexts[way.kernels])
    fingerprint = program().fingerprint(contexts[way.kernels])
    place.with_name(f"{place.name}.{_rank()}.fingerprint").write_text(fingerprint)
    if way.observed:
        from bench.bugs.observe import observe  # needs a PyTorch that has the peer

        torch.save(observe(bug, side, way.kernels, way.steps), file_of(place, _rank()))
    if "checkpoint" in bug.checks:
        _save(program(), place.with_name(f"{place.name}.{INITIAL}"))
    if "reduction" in bug.checks and side is Side.TARGET:
        _monitor(program(), place.with_name(f"{place.name}.{MONITOR}"))


def _save(program: Program, path: Path) -> None:
    """Save what a training begins with."""
    torch.save({"model": program.model.state_dict(), "optimizer": program.optimizer.state_dict()}, path)


def _monitor(program: Program, place: Path) -> None:
    """Train with a monitor that keeps sketches of gradients."""
    from msprobe.pytorch import TrainerMon

    place.mkdir(exist_ok=True)
    os.environ["MONITOR_OUTPUT_DIR"] = str(place)
    settings = place.with_name(f"{place.name}.{_rank()}.json")
    settings.write_text(json.dumps({"msprobe": {"sketch": "grad"}, "step_count_per_record": program.num_steps}))
    monitor = TrainerMon(settings, params_have_main_grad=False)
    monitor.set_monitor(getattr(program.model, "module", program.model), program.optimizer, grad_acc_steps=1)
    for step in range(program.num_steps):
        program.step(step)
    monitor.close()


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _on_rank(rank: int, name: str, side: str, place: Path, way: Way) -> None:
    _quiet()
    bug = subject_of(name)
    meeting = f"file://{place.with_name(place.name + '.rendezvous')}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=bug.world)
    record(bug, Side(side), place, way)
    dist.barrier()  # a rank that leaves early would take the store of the others with it
    dist.destroy_process_group()


def _quiet() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)


def main() -> None:
    """Record what the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m bench.bugs.record", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("side", choices=[side.value for side in Side])
    parser.add_argument("place", type=Path)
    parser.add_argument("--mode", default=Way.mode, help="what is recorded of tensors")
    parser.add_argument("--kernels", choices=KERNELS, default=Way.kernels)
    parser.add_argument("--steps", type=int, help="number of steps, in place of the bug's own")
    parser.add_argument("--plain", action="store_true", help="a golden run without repetitions")
    parser.add_argument("--observed", action="store_true", help="also run it as peers observe it")
    asked = parser.parse_args()
    way = Way(asked.mode, asked.kernels, asked.steps, asked.plain, asked.observed)
    bug = subject_of(asked.name)
    if bug.world > 1:
        multiprocessing.spawn(_on_rank, (asked.name, asked.side, asked.place, way), bug.world)  # pyright: ignore[reportPrivateImportUsage]
    else:
        _quiet()
        record(bug, Side(asked.side), asked.place, way)


if __name__ == "__main__":
    main()
