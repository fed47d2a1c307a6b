"""Trainings in one process: golden runs, targets with a fault, healthy pairs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.faults import held_out, unseen
from bench.faults.answers import MSPROBE, Ask, Nesting, has_command
from bench.faults.architectures import ARCHITECTURES
from bench.faults.in_training import MODEL_FAULTS
from bench.faults.kernels import HalvedProducts, OtherKernels
from bench.faults.scoring import Case, HealthyCase, score
from bench.faults.training import Training
from bench.faults.truth import Fault


@dataclass(frozen=True)
class Setup:
    """Settings of a golden run, and the directory of recordings.

    Attributes:
        work: Directory of all recordings.
        name: Name of the architecture.
        dtype: Dtype of the model.
        mode: Configuration of the recording.
        recipe: Recipe of the training.
    """

    work: Path
    name: str
    dtype: str
    mode: str
    recipe: str = "plain"

    @property
    def golden(self) -> Path:
        return self.work / "golden" / f"{self.name}-{self.dtype}-{self.mode}-{self.recipe}"

    def training(self, **options: object) -> Training:
        return Training(self.name, self.dtype, self.recipe, options)


def make_golden(setup: Setup) -> str:
    """Record and calibrate the golden run, unless it exists; return its fingerprint."""
    mark = setup.golden.with_suffix(".fingerprint")
    if not mark.exists():
        shutil.rmtree(setup.golden, ignore_errors=True)
        setup.training().record_golden(setup.golden, setup.mode)
        if has_command("calibrate"):
            subprocess.run([MSPROBE, "calibrate", str(setup.golden)], check=True, capture_output=True)
        mark.write_text(setup.training().fingerprint())
    return mark.read_text()


def can_train(name: str, dtype: str) -> bool:
    """Return whether an architecture trains in a dtype: DeBERTa multiplies float16 by float32 under autocast."""
    return (name, dtype) != ("deberta", "mixed-fp16")


def faults_of(name: str) -> Iterator[Fault]:
    """Yield the faults that apply to an architecture."""
    anatomy = ARCHITECTURES[name].anatomy
    for fault in MODEL_FAULTS.faults.values():
        if anatomy.has(fault.needs) and (not fault.only or name in fault.only):
            yield fault


def run_fault(setup: Setup, fault: Fault, pair: str, asks: dict[str, Ask]) -> list[Case]:
    """Plant a fault, record, and return one case for each debugger in ``asks``."""
    fingerprint = make_golden(setup)
    bare = setup.training()
    fault.plant(bare)
    is_applicable = bare.fingerprint() != fingerprint
    training = setup.training()
    truth = fault.plant(training)
    split = ARCHITECTURES[setup.name].split

    def case(tool: str) -> Case:
        return Case(
            tool, setup.name, setup.dtype, split, pair, fault.name, fault.phase.value, truth, applicable=is_applicable
        )

    if not is_applicable:
        return [case(tool) for tool in asks]
    place = setup.work / "target" / f"{setup.golden.name}-{pair}-{file_name(fault.name)}"
    shutil.rmtree(place, ignore_errors=True)
    training.record(place / "run", setup.mode, kernels=OtherKernels() if pair == "other" else None)
    cases: list[Case] = []
    for tool, ask in asks.items():
        answer = ask(place / "run", setup.golden, place / tool)
        nesting = Nesting(place / "run", setup.golden)
        cases.append(replace(case(tool), score=score(answer, fault, truth, nesting), answer=answer))
    return cases


def file_name(name: str) -> str:
    """Return a name that is suitable for a file."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _other_kernels(setup: Setup, place: Path) -> None:
    setup.training().record(place, setup.mode, kernels=OtherKernels())


def _eager_attention(setup: Setup, place: Path) -> None:
    setup.training(_attn_implementation="eager").record(place, setup.mode)


def _two_threads(setup: Setup, place: Path) -> None:
    training = setup.training()
    training.num_threads = 2
    training.record(place, setup.mode)


def _other_positions(setup: Setup, place: Path) -> None:
    training = setup.training()
    training.change_batch = lambda batch, _: {name: value[[2, 0, 3, 1]] for name, value in batch.items()}
    training.record(place, setup.mode)


def _last_digits(setup: Setup, place: Path) -> None:
    setup.training().record(place, setup.mode, perturb={"seed": 77})


def _halved_products(setup: Setup, place: Path) -> None:
    setup.training().record(place, setup.mode, kernels=HalvedProducts())


def _compiled(setup: Setup, place: Path) -> None:
    training = setup.training()
    for _, module in training.model.named_modules():
        if module is training.part("down") or module is training.part("norm"):
            module.compile()
    training.record(place, setup.mode)


HEALTHY: dict[str, Callable[[Setup, Path], None]] = {
    "other kernels": _other_kernels,
    "eager attention for fused": _eager_attention,
    "two threads for one": _two_threads,
    "samples at other positions": _other_positions,
    "one more repetition with other last digits": _last_digits,
    "matrix products in two halves": _halved_products,
    "a norm and a linear layer compiled": _compiled,
}
"""Functions that record the target of a healthy pair, by its name."""
_OF_INTERFACE: Sequence[str] = ("eager attention for fused",)
_OF_LARGE: Sequence[str] = ("two threads for one",)
"""The same bit for bit where tensors are too small to be shared by threads."""
_STATISTICS_ONLY: Sequence[str] = ("samples at other positions",)
_SLOW: Sequence[str] = ("a norm and a linear layer compiled",)


def healthy_of(name: str, dtype: str, mode: str, *, is_quick: bool) -> list[str]:
    """Return the names of the healthy pairs of an architecture; compilers are slow, so only some of them use one."""
    compiles = not is_quick and dtype == "fp32" and name in ("llama", "vit")
    return [
        pair
        for pair in HEALTHY
        if (ARCHITECTURES[name].anatomy.heads or pair not in _OF_INTERFACE)
        and (ARCHITECTURES[name].split not in (unseen.SPLIT, held_out.SPLIT) or pair not in _OF_LARGE)
        and (mode == "statistics" or pair not in _STATISTICS_ONLY)
        and (compiles or pair not in _SLOW)
    ]


def run_healthy(setup: Setup, name: str, asks: dict[str, Ask]) -> list[HealthyCase]:
    """Record a healthy target, and return one case for each debugger."""
    make_golden(setup)
    place = setup.work / "target" / f"{setup.golden.name}-healthy-{file_name(name)}"
    shutil.rmtree(place, ignore_errors=True)
    HEALTHY[name](setup, place / "run")
    split = ARCHITECTURES[setup.name].split
    return [
        HealthyCase(tool, setup.name, setup.dtype, split, name, ask(place / "run", setup.golden, place / tool))
        for tool, ask in asks.items()
    ]
