"""Files of monitored trainings of any size, as a monitor writes them, with faults planted where a test wants them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

COLUMNS = "norm,min,max,mean,nans,shape,dtype"


@dataclass(frozen=True)
class Fault:
    """One statistic block that is multiplied; NaN makes it not finite."""

    rank: int
    quantity: str
    name: str
    step: int
    factor: float


@dataclass(frozen=True)
class Training:
    """A training of a model with layers; ``names`` are per quantity and layer.

    Attributes:
        ranks: Number of ranks.
        layers: Number of layers, each with two modules and two parameters.
        steps: Number of steps.
        steps_of_file: How many steps a file has.
        micro_steps: Micro-batches of a step.
        faults: What is wrong.
        seed: Of all numbers.
    """

    ranks: int = 4
    layers: int = 6
    steps: int = 60
    steps_of_file: int = 20
    micro_steps: int = 1
    faults: Sequence[Fault] = ()
    seed: int = 0

    def names(self, quantity: str) -> list[str]:
        """Names of a quantity in the order of its file."""
        if quantity.startswith("actv"):
            modules = ["embed", *(f"layers.{i}.{part}" for i in range(self.layers) for part in ("attn", "mlp")), "head"]
            named = [f"{module}.output" for module in modules]
            return named if quantity == "actv" else named[::-1]
        parts = ("attn.qkv.weight", "mlp.up.weight")
        return ["embed.weight", *(f"layers.{i}.{part}" for i in range(self.layers) for part in parts), "head.weight"]

    def write(self, root: Path, quantities: Sequence[str] = ("actv", "grad_reduced"), first: int = 0) -> Path:
        """Write the steps from ``first`` on, and return the directory."""
        for rank in range(self.ranks):
            place = root / f"Nov22_05-55-34-rank{rank}-{rank:08x}"
            place.mkdir(parents=True, exist_ok=True)
            for quantity in quantities:
                values = self._values(rank, quantity)
                for begin in range(first, self.steps, self.steps_of_file):
                    self._write_file(
                        place, rank, quantity, values, range(begin, min(begin + self.steps_of_file, self.steps))
                    )
            (place / "coverage.json").write_text(json.dumps({each: self._coverage(each, rank) for each in quantities}))
        return root

    def _values(self, rank: int, quantity: str) -> np.ndarray:
        """Return norms by step, micro step and name: a slow trend, each name at its own level, 3 % of noise."""
        seed = sum(map(ord, quantity)) + 1000 * rank + self.seed
        names = self.names(quantity)
        shape = (self.steps, self.micro_steps, len(names))
        level = np.random.default_rng(sum(map(ord, quantity))).lognormal(0, 1.5, len(names))
        drift = 1 + 1.5 * np.exp(-np.arange(self.steps) / 15)[:, None, None]
        values = level * drift * np.random.default_rng(seed).normal(1, 0.03, shape)
        for fault in self.faults:
            if (fault.rank, fault.quantity) == (rank, quantity):
                values[fault.step :, :, names.index(fault.name)] *= fault.factor
        return values

    def _write_file(self, place: Path, rank: int, quantity: str, values: np.ndarray, steps: range) -> None:
        has_micro = quantity.startswith("actv")
        lines = [f"vpp_stage,name,step,{'micro_step,' if has_micro else ''}{COLUMNS}"]
        for step in steps:
            for micro in range(self.micro_steps if has_micro else 1):
                # Extremes and means vary by themselves.
                own = np.random.default_rng([rank, step, micro, len(quantity)]).normal(
                    1, 0.03, (len(self.names(quantity)), 3)
                )
                for i, (name, norm) in enumerate(zip(self.names(quantity), values[step, micro].tolist(), strict=True)):
                    key = f"0,{name},{step},{micro}" if has_micro else f"0,{name},{step}"
                    low, high, mean = own[i] * (-norm / 8, norm / 7, norm / 900)
                    nans = int(norm != norm)
                    lines.append(f'{key},{norm:.6f},{low:.6f},{high:.6f},{mean:.6f},{nans},"[8, 4]",torch.float32')
        (place / f"{quantity}_{steps[0]}-{steps[-1]}.csv").write_text("\n".join(lines) + "\n")

    def _coverage(self, quantity: str, rank: int) -> dict:
        count = len(self.names(quantity))
        own = [fault for fault in self.faults if (fault.rank, fault.quantity) == (rank, quantity)]
        lost = [fault.name for fault in own if fault.factor != fault.factor]
        return {
            "expected": count + 1 if quantity.startswith("grad") else None, "seen": count, "finite": count - len(lost),
            "first_step": 0, "missing": ["0:lm_head.bias"] if quantity.startswith("grad") else [], "always": count,
            "by_class": {},
        }  # fmt: skip


def alarm(rank: int, quantity: str, name: str, step: int, value: float | str, micro_step: int = 0) -> tuple[str, dict]:
    """Return an alarm as ``anomaly.json`` has it."""
    tag = f"0:{name}:{micro_step}/rank{rank}/{quantity}"
    record = {
        "rank": rank, "step": step, "micro_step": micro_step, "pp_stage": 0, "vpp_stage": 0, "call_id": 0,
        "tag_name": tag, "op": "norm", "value": value, "group_mates": [rank],
        "message": f"Rule AnomalyTurbulence reports anomaly signal in ('{tag}', 'norm') at step {step}.",
    }  # fmt: skip
    return f"{tag}_step_{step}_norm", record


def write_alarms(root: Path, rank: int, *alarms: tuple[str, dict]) -> None:
    """Write the alarms of a rank."""
    place = root / "anomaly_detected" / f"rank{rank}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "anomaly.json").write_text(json.dumps(dict(alarms)))
