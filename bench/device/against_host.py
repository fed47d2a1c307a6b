"""Chapter 6: the same model on host and device, compared: no false fault, and a wrong kernel is found."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.device.chapters import Case, Chapter, Outcome, Proof
from bench.device.machine import Host, Machine
from bench.device.programs import tiny
from bench.device.recording import Kind, recorded

MODELS = ("llama", "gpt2", "bert", "vit", "t5")

_NUM_STEPS = 2
_WRONG_CALL = 1


Kernel = Callable[[], AbstractContextManager[Any]]
"""What surrounds a training whose kernel is wrong."""


class _Wrong:
    """Scales the result of one call of a kernel: more than rounding of bfloat16 explains, without measured noise."""

    def __init__(self) -> None:
        self._num_calls = 0

    def __call__(self, kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        self._num_calls += 1
        return result * 1.2 if self._num_calls == _WRONG_CALL + 1 else result


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
    from msprobe_core.cli import main

    said = io.StringIO()
    status = 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(["locate", str(target), str(golden), "-o", str(out)])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 2
    if status not in (0, 1):
        raise RuntimeError(said.getvalue().strip()[-200:])
    suspects = json.loads((out / "locate.json").read_text())["suspects"]
    return status, [str(suspect["entry"]) for suspect in suspects]


def _healthy(name: str, dtype: str, proof: Proof) -> Outcome:
    return _compare(name, dtype, nullcontext, "", proof)


def _planted(name: str, dtype: str, proof: Proof) -> Outcome:
    return _compare(name, dtype, lambda: proof.machine.with_silu(_Wrong()), f"silu.{_WRONG_CALL}", proof)


def _compare(name: str, dtype: str, kernel: Kernel, expected: str, proof: Proof) -> Outcome:
    work = proof.work / "against_host"
    golden = _run(name, dtype, Host(), work / "host", nullcontext)
    target = _run(name, dtype, proof.machine, work / "device", kernel)
    status, blamed = _located(target, golden, work / f"{name}_{dtype}_{expected or 'healthy'}")
    first = blamed[0] if blamed else "nothing"
    holds = status == 1 and expected in first if expected else status == 0
    return Outcome((("agrees", "fault")[status], first, expected or "nothing"), holds=holds)


def _cases(proof: Proof) -> Iterator[Case]:
    if importlib.util.find_spec("polars") is None:
        return
    names = MODELS[:1] if proof.is_small else MODELS
    for name in names:
        for dtype in ("float32", "bfloat16"):
            yield Case(f"{name}, {dtype}", partial(_healthy, name, dtype, proof))
    for dtype in ("float32", "bfloat16"):
        yield Case(f"llama, {dtype}, a wrong kernel", partial(_planted, "llama", dtype, proof))


AGAINST_HOST = Chapter(
    "against_host",
    "The device against the host",
    ("verdict", "first place", "planted"),
    _cases,
    absent="polars is not installed, which `msprobe locate` needs.",
)
