"""What tests run in a process with a simulated device: recording on it, and checks of dumps with it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from simulated_device import simulated_device
from torch import Tensor, nn
from torch.nn import functional

from msprobe_core import names
from msprobe_core.model import Phase


@dataclass(frozen=True)
class Fault:
    """A wrong kernel: the operator, a member of `KERNELS`, and on which device; ``None`` for all."""

    operator: str
    kernel: str
    index: int | None = None


def _scaled(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs) * 1.02


def _scaled_bfloat16(original: Callable[..., Any], value: Tensor, *args: Any, **kwargs: Any) -> Any:
    result = original(value, *args, **kwargs)
    return result * 1.1 if value.dtype is torch.bfloat16 else result


def _drops_a_row(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = original(*args, **kwargs).clone()
    result[-1] = 0
    return result


def _first_scaled(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = original(*args, **kwargs)
    first = result[0] if isinstance(result, tuple) else result
    first.mul_(1.02)
    return result


def _scaled_down(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs) * 0.8


def _fails(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    del original, args, kwargs
    raise RuntimeError("EZ9999: Inner Error!\n  the kernel could not be launched")


KERNELS = {
    "scaled": _scaled, "scaled in bfloat16": _scaled_bfloat16, "drops a row": _drops_a_row,
    "scaled down": _scaled_down, "first scaled": _first_scaled, "fails": _fails,
}  # fmt: skip


class Block(nn.Module):
    """Attention by hand, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.project(x))
        weights = functional.softmax(torch.matmul(y, y.transpose(-1, -2)) / 4, dim=-1)
        return self.head(self.norm(torch.matmul(weights, y) + x))


def record(place: Path, device: str, dtype: str = "float32", faults: Sequence[Fault] = (), count: int = 1) -> Path:
    """Train one step on a device, and record it; return the directory of the dump.

    The dtype ``autocast`` is float32 with autocast to bfloat16, on the host.
    """
    from msprobe.pytorch import PrecisionDebugger

    place.mkdir(parents=True, exist_ok=True)
    config = {"task": "tensor", "level": "mix", "dump_path": str(place / "run")}
    (place / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    plain = torch.float32 if dtype == "autocast" else getattr(torch, dtype)
    model = Block().to(plain)
    x = torch.randn(3, 8, 16).to(plain)
    with _wrong(faults, count):
        model, x = model.to(device), x.to(device).requires_grad_()
        debugger = PrecisionDebugger(str(place / "config.json"))
        try:
            debugger.start(model)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
                loss = model(x).float().square().mean()
            loss.backward()
            debugger.stop()
            debugger.step()
        finally:
            debugger.close()
    return next((place / "run" / "step0").iterdir())


def train_beside_host(place: Path, faults: Sequence[Fault] = (), **options: object) -> list[float]:
    """Train two steps on a device, with the task ``free_benchmark`` in mode ``to_cpu`` if there are options."""
    given = {"pert_mode": "to_cpu", "fuzz_device": "cpu", "budget": 1000, **options}
    return _train_with(place, faults, "free_benchmark", given if options else None)


def train_checked(place: Path, faults: Sequence[Fault] = ()) -> list[float]:
    """Train two steps on a device, with the task ``acc_check``."""
    return _train_with(place, faults, "acc_check", {"budget": 1000})


def _train_with(place: Path, faults: Sequence[Fault], task: str, options: Mapping[str, object] | None) -> list[float]:
    from msprobe.pytorch import PrecisionDebugger

    place.mkdir(parents=True, exist_ok=True)
    config = {"task": task, "level": "L1", "dump_path": str(place / "run"), task: options}
    (place / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model = Block()
    losses: list[float] = []
    with _wrong(faults, 1):
        model = model.to("npu")
        debugger = PrecisionDebugger(str(place / "config.json")) if options is not None else None
        for _ in range(2):
            if debugger is not None:
                debugger.start(model)
            loss = model(torch.randn(3, 8, 16).to("npu")).square().mean()
            loss.backward()
            losses.append(loss.item())
            if debugger is not None:
                debugger.stop()
                debugger.step()
        if debugger is not None:
            debugger.close()
    return losses


def check(
    dump: Path, devices: Sequence[str] = (), faults: Sequence[Fault] = (), count: int = 1
) -> Mapping[str, tuple[str, Mapping[str, str], Sequence[str]]]:
    """Check all calls of a dump; return the verdict, that of each side, and the codes of the notes, by entry."""
    from msprobe_core.api_check.call_check import CallChecker
    from msprobe_core.api_check.three_way import check_devices, check_on
    from msprobe_core.api_check.verdict import worst_of
    from msprobe_core.replay.recorded import RecordedCalls
    from msprobe_core.store.reading import read_dump

    framework, found = _framework(), {}
    checker = CallChecker(framework=framework)
    with _wrong(faults, count):
        check_devices(framework, devices)
        calls = RecordedCalls(read_dump(dump), 1 << 20)
        for entry in calls.entries:
            if not _is_api_call(entry):
                continue
            verdict = check_on(checker, calls.read(entry), devices)
            if not verdict.outputs:
                continue
            sides = {
                side: worst_of(each.verdict for each in verdict.outputs if each.side == side).value
                for side in {each.side for each in verdict.outputs}
            }
            found[entry] = verdict.verdict.value, sides, [note.code.value for note in verdict.notes]
    return found


def store(dump: Path, directory: Path, devices: Sequence[str], faults: Sequence[Fault] = ()) -> int:
    """Compute the calls of a dump on devices, and store them; return their number."""
    from msprobe_core.api_check.remote import store_computed
    from msprobe_core.replay.recorded import RecordedCalls
    from msprobe_core.store.reading import read_dump

    with _wrong(faults, 1):
        entries = [entry for entry in RecordedCalls(read_dump(dump), 1 << 20).entries if _is_api_call(entry)]
        return store_computed(dump, entries, directory, devices)


def _is_api_call(entry: str) -> bool:
    return not names.is_module(entry) and names.parse_entry(entry).phase in (Phase.FORWARD, Phase.BACKWARD)


def command(words: Sequence[str], faults: Sequence[Fault] = ()) -> tuple[int, str]:
    """Run a command of msprobe; return its exit status and what it said."""
    from msprobe_core.cli import main

    said = io.StringIO()
    with _wrong(faults, 1), redirect_stdout(said), redirect_stderr(said):
        try:
            main(list(words))
        except SystemExit as ended:
            return int(ended.code or 0), said.getvalue()
    raise AssertionError("a command ends the program")


def replay(call: Any, device: str | None = None, faults: Sequence[Fault] = (), count: int = 1) -> Any:
    """Replay a call; return the results, and whether it drew random numbers."""
    with _wrong(faults, count):
        replayed = _framework().replay(call, None, device)
        return {path: value.values for path, value in replayed.values.items()}, replayed.is_random


def replay_beside_a_program(call: Any, count: int = 1) -> Mapping[str, bool]:
    """Replay a random call on the device; return what of the program's state is as before."""
    device = simulated_device(count=count)
    torch.manual_seed(3)
    before = torch.get_rng_state(), device.generators[0].get_state()
    with torch.autocast("npu", torch.bfloat16):
        result, is_random = _framework().replay(call, None, "npu"), True
        still_on = torch.is_autocast_enabled("npu")
    return {
        "random": result.is_random is is_random,
        "host": torch.equal(before[0], torch.get_rng_state()),
        "device": torch.equal(before[1], device.generators[0].get_state()),
        "autocast": still_on,
    }


def devices(count: int = 1) -> Sequence[str]:
    """Return the devices that the plugin sees."""
    simulated_device(count=count)
    return _framework().replay_devices()


def operators_of(size: int) -> Sequence[str]:
    """Return the operators of one program on the device, and check what such a device promises."""
    device, seen = simulated_device(), list[str]()
    device.watchers.append(lambda name, args, kwargs: seen.append(name))
    x = torch.randn(size, size).to("npu")
    y = (x @ x).softmax(-1)
    assert y.device == torch.device("npu:0")
    y.sum().item()
    device.watchers.clear()
    return seen


def made_there() -> Sequence[Sequence[float]]:
    """Return the elements of tensors that PyTorch's functions make on the device from nothing."""
    simulated_device()
    options = {"device": "npu", "dtype": torch.float32}
    made = [
        torch.tensor([1.0, 2.0], **options), torch.zeros(2, **options), torch.arange(2, **options),
        torch.full((2,), 3.0, **options), torch.linspace(0, 1, 2, **options), torch.eye(2, **options)[0],
    ]  # fmt: skip
    return [value.tolist() for value in made if str(value.device) == "npu:0"]


def mixed() -> str:
    """Return the error of an operator on tensors of two devices."""
    simulated_device()
    try:
        torch.mm(torch.ones(2, 2).to("npu"), torch.ones(2, 2))
    except RuntimeError as error:
        return str(error)
    return ""


def _framework() -> Any:
    from msprobe.pytorch._framework import PyTorchFramework

    return PyTorchFramework()


def _wrong(faults: Sequence[Fault], count: int) -> ExitStack:
    stack, device = ExitStack(), simulated_device(count=count)
    for fault in faults:
        stack.enter_context(device.wrong(fault.operator, KERNELS[fault.kernel], fault.index))
    return stack
