"""Chapter 7: the same model on host and device, and with other kernels: no false fault, and a wrong kernel is found."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.device.chapters import Case, Chapter, Outcome, Proof
from bench.device.commands import said_by
from bench.device.machine import Host, Machine
from bench.device.programs import tiny
from bench.device.recording import Kind, recorded
from bench.device.wrong import WRONG_CALL, Wrong

MODELS = ("llama", "gpt2", "bert", "vit", "t5")

_NUM_STEPS = 2

Kernel = Callable[[], AbstractContextManager[Any]]
"""What surrounds a training whose kernels are others."""


def _run(name: str, dtype: str, machine: Machine, place: Path, kernel: Kernel) -> Path:
    training = tiny(name, dtype, machine)
    torch.manual_seed(1)
    with recorded(Kind("mix"), training, place) as around, kernel():
        for _ in range(_NUM_STEPS):
            with around():
                training.step()
    return place / "run"


def _located(target: Path, golden: Path, out: Path) -> tuple[int, list[str]]:
    """Return the exit status of ``msprobe locate`` and the calls that it blames, the first one first."""
    status, _ = said_by(["locate", str(target), str(golden), "-o", str(out)])
    suspects = json.loads((out / "locate.json").read_text())["suspects"]
    return status, [str(suspect["entry"]) for suspect in suspects]


def _healthy(name: str, dtype: str, proof: Proof) -> Outcome:
    return _compare(name, dtype, nullcontext, "", proof, Host())


def _planted(name: str, dtype: str, proof: Proof) -> Outcome:
    return _compare(name, dtype, lambda: proof.machine.with_silu(Wrong()), f"silu.{WRONG_CALL}", proof, Host())


def _other_kernels(name: str, dtype: str, kernel: Kernel, proof: Proof) -> Outcome:
    return _compare(name, dtype, kernel, "", proof, proof.machine)


def _compare(name: str, dtype: str, kernel: Kernel, expected: str, proof: Proof, beside: Machine) -> Outcome:
    work = proof.work / "against_host"
    golden = _run(name, dtype, beside, work / "golden", nullcontext)
    target = _run(name, dtype, proof.machine, work / "target", kernel)
    status, blamed = _located(target, golden, work / f"{name}_{dtype}_{expected or 'healthy'}")
    first = blamed[0] if blamed else "nothing"
    holds = status == 1 and expected in first if expected else status == 0
    return Outcome((("agrees", "fault")[status], first, expected or "nothing"), holds=holds)


@contextmanager
def _plain_attention() -> Generator[None, None, None]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def _any_order() -> Generator[None, None, None]:
    torch.use_deterministic_algorithms(mode=False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=True, warn_only=True)


@contextmanager
def _wide_sums() -> Generator[None, None, None]:
    """Have products in bfloat16 added up in float32 only."""
    matmul: Any = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before


_KERNELS: Mapping[str, Kernel] = {
    "plain attention": _plain_attention, "no deterministic algorithms": _any_order, "sums in float32": _wide_sums,
}  # fmt: skip


def _cases(proof: Proof) -> Iterator[Case]:
    if importlib.util.find_spec("polars") is None:
        return
    names = MODELS[:1] if proof.is_small else MODELS
    for name in names:
        for dtype in ("float32", "bfloat16"):
            yield Case(f"{name}, {dtype}", partial(_healthy, name, dtype, proof))
    for dtype in ("float32", "bfloat16"):
        yield Case(f"llama, {dtype}, a wrong kernel", partial(_planted, "llama", dtype, proof))
    if proof.machine.kind == "cuda":
        for label, kernel in _KERNELS.items():
            for name, dtype in (("llama", "bfloat16"), ("t5", "bfloat16"), ("llama", "float32")):
                yield Case(
                    f"{name}, {dtype}, both on the device, {label}", partial(_other_kernels, name, dtype, kernel, proof)
                )


AGAINST_HOST = Chapter(
    "against_host",
    "The device against the host, and against itself with other kernels",
    ("verdict", "first place", "planted"),
    _cases,
    absent="polars is not installed, which `msprobe locate` needs.",
)
