"""Chapter 8: commands that compute on the device themselves: healthy calls pass, and a wrong kernel is found."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from bench.device.chapters import Case, Chapter, Outcome, Proof
from bench.device.programs import tiny
from bench.device.recording import Kind, recorded
from bench.device.wrong import WRONG_CALL, Wrong

MODELS = ("llama", "gpt2", "bert", "vit", "t5", "moe", "mamba2")

_DTYPES = ("float32", "bfloat16")
_MODES = ("improve_precision", "bit_noise", "no_change", "to_cpu")

_STEP_FILE = """
from bench.device.machine import MACHINES
from bench.device.programs import tiny

training = tiny({name!r}, {dtype!r}, MACHINES[{machine!r}]())
model, optimizer = training.model, training.optimizer


def step():
    loss = model(**training.batches[0]).loss
    loss.backward()
    return loss
"""


def said_by(arguments: Sequence[str]) -> tuple[int, str]:
    """Run a command of ``msprobe`` in this process; return its exit status and what it has printed.

    Raises:
        RuntimeError: it has ended with something else than 0 or 1.
    """
    from msprobe_core.cli import main

    said = io.StringIO()
    status = 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main([*arguments])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 2
    if status not in (0, 1):
        raise RuntimeError(said.getvalue().strip()[-200:].replace("\n", " "))
    return status, said.getvalue().strip()


def _recorded(
    name: str, dtype: str, kind: Kind, proof: Proof, *, num_steps: int = 1, kernel: AbstractContextManager[Any]
) -> Path:
    place = Path(tempfile.mkdtemp(dir=proof.work))
    training = tiny(name, dtype, proof.machine)
    with recorded(kind, training, place) as around, kernel:
        for _ in range(num_steps):
            with around():
                training.step()
    return place / "run"


def _outcome(status: int, said: str, *, expected: str = "") -> Outcome:
    line = next((line.strip() for line in said.splitlines() if line.strip() and "checking" not in line), "")
    holds = status == 1 and expected in said if expected else status == 0
    return Outcome((str(status), line[:160].replace("|", "/"), expected or "nothing"), holds=holds)


def _checked(name: str, dtype: str, proof: Proof, *, is_wrong: bool = False) -> Outcome:
    kernel = proof.machine.with_silu(Wrong()) if is_wrong else nullcontext()
    run = _recorded(name, dtype, Kind("L1", "tensor"), proof, kernel=kernel)
    dump = next(run.rglob("dump.json"))
    device = ["--device", proof.machine.kind] if proof.machine.kind != "cpu" else []
    if is_wrong:
        lists = proof.work / "lists.json"
        lists.write_text(json.dumps({"white_list": ["silu"]}))
        chosen = ["-config", str(lists)]
    else:
        chosen = ["--filter_api"]
    out = tempfile.mkdtemp(dir=proof.work)
    status, said = said_by(["acc_check", "-api_info", str(dump), *device, *chosen, "-o", out, "-n", "0"])
    return _outcome(status, said, expected=f"silu.{WRONG_CALL}" if is_wrong else "")


def _perturbed(mode: str, dtype: str, proof: Proof) -> Outcome:
    options: dict[str, Any] = {"pert_mode": mode, "budget": 1000, "fuzz_stage": "forward"}
    if mode == "to_cpu":
        options["fuzz_device"] = "cpu"
    run = _recorded("llama", dtype, Kind("L1", "free_benchmark", options=options), proof, num_steps=3,
                    kernel=nullcontext())  # fmt: skip
    return _outcome(*said_by(["free_benchmark", "show", str(run)]))


def _compiled(name: str, dtype: str, proof: Proof) -> Outcome:
    file = proof.work / "compiled" / f"{name}_{dtype}.py"
    file.parent.mkdir(exist_ok=True)
    machine = {"npu": "simulated"}.get(proof.machine.kind, proof.machine.kind)
    file.write_text(_STEP_FILE.format(name=name, dtype=dtype, machine=machine))
    return _outcome(*said_by(["compile", "check", f"{file}:step", "-o", str(proof.work / "compiled" / "out")]))


def _cases(proof: Proof) -> Iterator[Case]:
    if importlib.util.find_spec("polars") is None:
        return
    names, dtypes, modes = (MODELS[:1], ("bfloat16",), _MODES[1:2]) if proof.is_small else (MODELS, _DTYPES, _MODES)
    if proof.machine.kind != "npu" and not proof.is_small:
        for name, dtype in (("llama", "bfloat16"), ("gpt2", "float32")):
            yield Case(f"compile check, {name}, {dtype}", partial(_compiled, name, dtype, proof))
    for name, dtype in itertools.product(names, dtypes):
        yield Case(f"acc_check, {name}, {dtype}", partial(_checked, name, dtype, proof))
    for dtype in dtypes:
        wrong: Callable[[], Outcome] = partial(_checked, "llama", dtype, proof, is_wrong=True)
        yield Case(f"acc_check, llama, {dtype}, a wrong kernel", wrong)
    for mode in modes:
        if mode != "to_cpu" or proof.machine.kind != "cpu":
            yield Case(f"free_benchmark {mode}, llama, bfloat16", partial(_perturbed, mode, "bfloat16", proof))


COMMANDS = Chapter(
    "commands",
    "Commands that compute on the device",
    ("exit status", "first line", "planted"),
    _cases,
    absent="polars is not installed, which these commands need.",
)
