"""Plant wrong kernels while a training is recorded, and check each recorded call by itself, without a second run.

    python -m bench.api_check_faults [--models llama,gpt2] [--dtypes fp32,bf16,fp16] [--faults NAME] [--healthy]

A fault changes one call of one operator below the recorder. Truly wrong are the calls whose recorded result differs to
the bit from a replay in their own precision on this machine, which is deterministic. For each pair of model and dtype
it prints how many faults were found, which is when a truly wrong call is called wrong, and which were missed; with
``--healthy`` all calls of healthy recordings are checked instead, also of those with kernels that round otherwise.
"""
# ruff: noqa: ARG001  All wrong kernels take the same arguments.

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.faults.kernels import OtherKernels
from bench.faults.training import Training
from msprobe_core.api_check.call_check import CallChecker
from msprobe_core.api_check.dump_check import CheckOptions, DumpCheck
from msprobe_core.api_check.verdict import CallVerdict, Verdict
from msprobe_core.errors import ReplayError
from msprobe_core.model import ReplayCall
from msprobe_core.replay.frameworks import replaying_framework
from msprobe_core.replay.recorded import RecordedCall, RecordedCalls
from msprobe_core.store.reading import read_dump

MODELS = ("llama", "gpt2", "bert", "moe", "vit", "t5", "gemma2", "mixer")
_ATEN = torch.ops.aten
_MAX_ELEMENTS = 1 << 28

Wrong = Callable[..., Any]
"""Takes the operator's arguments and its right result, and returns the wrong one, or ``None`` if it cannot be wrong."""


@dataclass(frozen=True)
class Fault:
    """A wrong kernel.

    Attributes:
        name: What is wrong.
        operators: That it may be planted in.
        wrong: Makes the wrong result.
        dtypes: In whose rounding it does not hide.
    """

    name: str
    operators: tuple[Any, ...]
    wrong: Wrong
    dtypes: tuple[str, ...]


FAULTS: list[Fault] = []
_ALL = ("fp32", "bf16", "fp16")
_PRODUCTS = (_ATEN.mm.default, _ATEN.bmm.default, _ATEN.addmm.default)
_NORMS = (_ATEN.native_layer_norm.default,)
_SOFTMAX = (_ATEN._softmax.default,)
_ATTENTION = (_ATEN._scaled_dot_product_flash_attention_for_cpu.default,)
_ATTENTION_BACKWARD = (_ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default,)


def fault(name: str, *operators: Any, dtypes: tuple[str, ...] = _ALL) -> Callable[[Wrong], Wrong]:
    """Register the decorated function as a wrong kernel."""

    def register(wrong: Wrong) -> Wrong:
        FAULTS.append(Fault(name, operators, wrong, dtypes))
        return wrong

    return register


def _first(result: Any, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
    if not isinstance(result, tuple):
        return change(result)
    changed = change(result[0])
    return None if changed is None else (changed, *result[1:])


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 4


def _factors(args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    return (args[1], args[2], args[0]) if len(args) == 3 else (args[0], args[1], None)


@fault("product accumulated in bfloat16", *_PRODUCTS, dtypes=("fp32", "fp16"))
def _(args: Any, result: Any) -> Any:
    one, two, bias = _factors(args)
    parts = [a @ b for a, b in zip(one.bfloat16().split(8, -1), two.bfloat16().split(8, -2), strict=True)]
    total = sum(parts[1:], parts[0]).to(result.dtype)
    return total if bias is None else total + bias


@fault("last term of each sum of a product dropped", *_PRODUCTS)
def _(args: Any, result: Any) -> Any:
    one, two, bias = _factors(args)
    short = one[..., :-1] @ two[..., :-1, :]
    return short if bias is None else short + bias


@fault("rows of a product shifted by one", *_PRODUCTS)
def _(args: Any, result: Any) -> Any:
    return result.roll(1, -2) if result.shape[-2] > 1 else None


@fault("last rows of a product not written", *_PRODUCTS)
def _(args: Any, result: Any) -> Any:
    wrong = result.clone()
    wrong[..., -max(1, wrong.shape[-2] // 8) :, :] = 0
    return wrong


@fault("bias added to the wrong dimension", _ATEN.addmm.default)
def _(args: Any, result: Any) -> Any:
    bias, one, two = args
    if bias.dim() != 1 or result.shape[-1] < 2:
        return None
    return one @ two + bias.roll(1)


@fault("bias left out", _ATEN.addmm.default)
def _(args: Any, result: Any) -> Any:
    return args[1] @ args[2]


@fault("stale workspace", *_PRODUCTS)
def _(args: Any, result: Any, before: list[torch.Tensor]) -> Any:
    same = [each for each in before if each.shape == result.shape and each.dtype == result.dtype]
    return same[-1] if same else None


@fault("softmax all zero", *_SOFTMAX)
def _(args: Any, result: Any) -> Any:
    return torch.zeros_like(result)


@fault("softmax over the wrong dimension", *_SOFTMAX)
def _(args: Any, result: Any) -> Any:
    return torch.softmax(args[0], args[1] - 1 if args[1] else 1).to(result.dtype) if args[0].dim() > 1 else None


@fault("softmax computed in bfloat16", *_SOFTMAX, dtypes=("fp32",))
def _(args: Any, result: Any) -> Any:
    return torch.softmax(args[0].bfloat16(), args[1]).to(result.dtype)


@fault("gradient of softmax without its sum", _ATEN._softmax_backward_data.default)
def _(args: Any, result: Any) -> Any:
    return args[0] * args[1]


@fault("epsilon of the layer norm outside of the root", *_NORMS, dtypes=("fp32",))
def _(args: Any, result: Any) -> Any:
    x, shape, weight, bias, eps = args
    dims = tuple(range(-len(shape), 0))
    scaled = (x - x.mean(dims, keepdim=True)) / (x.var(dims, correction=0, keepdim=True).sqrt() + eps)
    return (scaled * weight + bias, *result[1:])


@fault("layer norm with the unbiased variance", *_NORMS)
def _(args: Any, result: Any) -> Any:
    x, shape, weight, bias, eps = args
    wide, dims = x.double(), tuple(range(-len(shape), 0))
    scaled = (wide - wide.mean(dims, keepdim=True)) / (wide.var(dims, keepdim=True) + eps).sqrt()
    return ((scaled * weight + bias).to(x.dtype), *result[1:])


@fault("layer norm without the mean", *_NORMS)
def _(args: Any, result: Any) -> Any:
    x, shape, weight, bias, eps = args
    wide, dims = x.double(), tuple(range(-len(shape), 0))
    scaled = wide / (wide.square().mean(dims, keepdim=True) + eps).sqrt()
    return ((scaled * weight + bias).to(x.dtype), *result[1:])


@fault("gradient of the layer norm zero", _ATEN.native_layer_norm_backward.default)
def _(args: Any, result: Any) -> Any:
    return _first(result, torch.zeros_like)


@fault("root with a table of ten bits", _ATEN.rsqrt.default, dtypes=("fp32",))
def _(args: Any, result: Any) -> Any:
    return result.half().to(result.dtype)


@fault("mean divided by one less", _ATEN.mean.dim)
def _(args: Any, result: Any) -> Any:
    count = args[0].numel() / max(result.numel(), 1)
    return result * (count / (count - 1)) if count > 1 else None


@fault("gelu by its tanh approximation", _ATEN.gelu.default, dtypes=("fp32",))
def _(args: Any, result: Any) -> Any:
    return torch.nn.functional.gelu(args[0], approximate="tanh")


@fault("silu with an exponential of bfloat16", _ATEN.silu.default, dtypes=("fp32", "fp16"))
def _(args: Any, result: Any) -> Any:
    return args[0] * args[0].bfloat16().sigmoid().to(args[0].dtype)


@fault("gradient of an activation without a term", _ATEN.silu_backward.default, _ATEN.gelu_backward.default)
def _(args: Any, result: Any) -> Any:
    return args[0] * args[1].sigmoid()


@fault("one row of an embedding's gradient dropped", _ATEN.embedding_dense_backward.default)
def _(args: Any, result: Any) -> Any:
    wrong = result.clone()
    wrong[args[1].flatten()[0]] = 0
    return wrong


@fault("repeated rows of an embedding's gradient overwritten", _ATEN.embedding_dense_backward.default)
def _(args: Any, result: Any) -> Any:
    wrong = torch.zeros_like(result)
    wrong[args[1].flatten()] = args[0].flatten(0, -2)
    return None if torch.equal(wrong, result) else wrong


@fault("rows of an embedding off by one", _ATEN.embedding.default)
def _(args: Any, result: Any) -> Any:
    return args[0][(args[1] + 1).clamp(max=args[0].shape[0] - 1)]


@fault("mask ignored", _ATEN.where.self, _ATEN.masked_fill.Scalar)
def _(args: Any, result: Any) -> Any:
    wrong = args[1] if len(args) == 3 and args[0].dtype == torch.bool else args[0]
    wrong = wrong.expand_as(result).to(result.dtype)
    return None if torch.equal(wrong, result) else wrong.clone()


@fault("end of the result not written", _ATEN.add.Tensor, _ATEN.mul.Tensor)
def _(args: Any, result: Any) -> Any:
    if not _is_number(result):
        return None
    wrong = result.clone()
    wrong.view(-1)[-max(1, result.numel() // 64) :] = 0
    return wrong


@fault("product of elements x 1.01", _ATEN.mul.Tensor)
def _(args: Any, result: Any) -> Any:
    return (result.double() * 1.01).to(result.dtype) if _is_number(result) else None


@fault("result x 2 where it is small", _ATEN.mul.Tensor, _ATEN.div.Tensor)
def _(args: Any, result: Any) -> Any:
    small = _is_number(result) and 0 < float(result.abs().max()) < 1e-2
    return result * 2 if small else None


@fault("last term of a sum dropped", _ATEN.sum.dim_IntList)
def _(args: Any, result: Any) -> Any:
    dims = [args[1]] if isinstance(args[1], int) else list(args[1])
    last = args[0].select(dims[0], -1).unsqueeze(dims[0]).sum(dims, keepdim=result.dim() == args[0].dim())
    return result - last if last.shape == result.shape else None


@fault("attention mask off by one", *_ATTENTION)
def _(args: Any, result: Any) -> Any:
    query, key, value = args[:3]
    size = query.shape[-2], key.shape[-2]
    mask = torch.ones(size, dtype=torch.bool).tril(1)
    wrong = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return (wrong, *result[1:]) if wrong.shape == result[0].shape and not torch.equal(wrong, result[0]) else None


@fault("attention without its scale", *_ATTENTION)
def _(args: Any, result: Any) -> Any:
    query, key, value = (each.double() for each in args[:3])
    weights = torch.softmax(query @ key.transpose(-1, -2), -1)
    wrong = (weights @ value).to(args[0].dtype)
    return (wrong, *result[1:]) if wrong.shape == result[0].shape else None


@fault("gradient of the keys zero", *_ATTENTION_BACKWARD)
def _(args: Any, result: Any) -> Any:
    return (result[0], torch.zeros_like(result[1]), *result[2:])


@fault("window of a convolution off by one", _ATEN.convolution.default)
def _(args: Any, result: Any) -> Any:
    return _ATEN.convolution.default(args[0].roll(1, -1), *args[1:])


@fault("loss divided by one sample more", _ATEN.nll_loss_forward.default)
def _(args: Any, result: Any) -> Any:
    count = float(result[1])
    return (result[0] * (count / (count + 1)), result[1])


@fault("parts swapped", _ATEN.cat.default)
def _(args: Any, result: Any) -> Any:
    parts = list(args[0])
    wrong = torch.cat(parts[::-1], *args[1:])
    return None if torch.equal(wrong, result) else wrong


class Planted(TorchDispatchMode):
    """Makes one call of an operator wrong, below the recorder, and counts the calls that could be wrong.

    Args:
        faults: Whose calls are counted.
        planted: The one that is planted; ``None`` to count only.
        place: Which of its calls is wrong.
    """

    def __init__(self, faults: Sequence[Fault], planted: Fault | None = None, place: int = 0) -> None:
        super().__init__()
        self._faults, self._planted, self._place = faults, planted, place
        self._before: list[torch.Tensor] = []
        self.num_places: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # operators called here are not calls of the program
            result = given = func(*args, **(kwargs or {}))
            for fault in self._faults:
                if func in fault.operators and (wrong := self._wrong(fault, args, given)) is not None:
                    if fault is self._planted and self.num_places[fault.name] == self._place:
                        result = wrong
                    self.num_places[fault.name] += 1
            if func in _PRODUCTS:
                self._before.append(given)
        return result

    def _wrong(self, fault: Fault, args: Any, result: Any) -> Any:
        code = fault.wrong.__code__
        more = (self._before,) if "before" in code.co_varnames[: code.co_argcount] else ()
        try:
            wrong = fault.wrong(args, result, *more)
        except (RuntimeError, IndexError, ValueError, TypeError):  # arguments of a form it does not know
            return None
        return wrong if wrong is not None and _differs(wrong, result) else None


def _differs(wrong: Any, result: Any) -> bool:
    """Whether a result is off by more than some roundings; what is not is no fault, such as another tiny epsilon."""
    pairs = zip(wrong, result, strict=True) if isinstance(result, tuple) else [(wrong, result)]
    for one, other in pairs:
        if not isinstance(other, torch.Tensor) or torch.equal(one, other):
            continue
        if not other.is_floating_point() or one.shape != other.shape:
            return True
        error, size = (one.double() - other.double()).norm(), other.double().norm()
        if not float(error) <= _ROUNDINGS * torch.finfo(other.dtype).eps * float(size):
            return True
    return False


_ROUNDINGS = 4


def record(name: str, dtype: str, directory: Path, kernels: AbstractContextManager[object]) -> Path:
    """Record one step of a training with whole tensors; return the dump's directory."""
    from msprobe.pytorch import PrecisionDebugger

    training = Training(name, dtype)
    config = directory / "config.json"
    directory.mkdir(parents=True)
    settings = {"task": "tensor", "level": "L1", "dump_path": str(directory), "risk_level": "ALL"}
    config.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(str(config))
    debugger.start(training.model)
    batch = training.batches(0)[0]
    labels = batch.pop("labels")
    more = {"decoder_input_ids": labels.clamp(min=0)} if name == "t5" else {}
    with kernels:
        training.loss(training.model(**batch, **more).logits, labels).backward()
    debugger.stop()
    debugger.step()
    debugger.close()
    return next(directory.rglob("dump.json")).parent


class Checks:
    """Checks the calls of one dump in this process."""

    def __init__(self, dump: Path) -> None:
        self._calls = RecordedCalls(read_dump(dump), _MAX_ELEMENTS)
        self._framework = replaying_framework("pytorch")
        self._checker = CallChecker(framework=self._framework, measures_power=False)
        self.entries = DumpCheck.of(dump, CheckOptions()).entries

    def verdict(self, entry: str) -> CallVerdict:
        return self._checker.check(self._calls.read(entry))

    def truly_wrong(self) -> Iterator[str]:
        """Yield the calls whose recorded results are not those of this machine's kernels."""
        for entry in self.entries:
            call = self._calls.read(entry)
            if call.missing is None and self._checker.why_not_checked(call) is None and self._is_other(call):
                yield entry

    def _is_other(self, call: RecordedCall) -> bool:
        given = ReplayCall(site=call.site, args=call.args, kwargs=call.kwargs, gradients=call.gradients)
        try:
            own = self._framework.replay(given).values
        except ReplayError:
            return False
        return any(
            path in own and not np.array_equal(value.values, own[path].values, equal_nan=value.values.dtype.kind == "f")
            for path, value in call.outputs.items()
        )


def plant(name: str, dtype: str, planted: Fault, place: int, directory: Path) -> tuple[str, list[CallVerdict]]:
    """Plant a fault and check the calls that are truly wrong.

    Returns: ``found``, ``missed`` or ``nowhere``, and the verdicts.
    """
    checks = Checks(record(name, dtype, directory, Planted([planted], planted, place)))
    verdicts = [checks.verdict(entry) for entry in checks.truly_wrong()]
    shutil.rmtree(directory)
    if not verdicts:
        return "nowhere", []
    is_found = any(verdict.verdict is Verdict.WRONG for verdict in verdicts)
    return "found" if is_found else "missed", verdicts


def healthy(name: str, dtype: str, directory: Path) -> Counter[str]:
    """Check all calls of healthy recordings; return counts of verdicts, and print what is not right."""
    counts: Counter[str] = Counter()
    for kind, kernels in (("own", nullcontext()), ("other", OtherKernels())):
        checks = Checks(record(name, dtype, directory / kind, kernels))
        for entry in checks.entries:
            found = checks.verdict(entry)
            counts[found.verdict.value] += 1
            if found.verdict in (Verdict.WRONG, Verdict.ILL_CONDITIONED):
                worst = found.worst
                assert worst is not None
                print(f"  {name} {dtype} {kind}: {entry} {found.verdict.value} x{worst.times:.3g} {worst.reason}")
            elif found.reason is not None:
                counts[f"  {found.reason.text[:100]}"] += 1
        shutil.rmtree(directory)
    return counts


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--dtypes", default=",".join(_ALL))
    parser.add_argument("--faults", default="")
    parser.add_argument("--healthy", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    totals: Counter[str] = Counter()
    for name in options.models.split(","):
        for dtype in options.dtypes.split(","):
            begin = time.perf_counter()
            with tempfile.TemporaryDirectory() as place:
                directory = Path(place) / "run"
                if options.healthy:
                    counts = healthy(name, dtype, directory)
                else:
                    counts = _planted(name, dtype, directory, options.faults)
            totals += counts
            print(f"{name} {dtype}: {dict(counts)} in {time.perf_counter() - begin:.0f} s", flush=True)
    print(f"in all: {dict(totals)}")


def _planted(name: str, dtype: str, directory: Path, chosen: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    faults = [each for each in FAULTS if dtype in each.dtypes and chosen in each.name]
    counting = Planted(faults)
    record(name, dtype, directory, counting)
    shutil.rmtree(directory)
    for each in faults:
        num_places = counting.num_places[each.name]
        answer, verdicts = plant(name, dtype, each, num_places // 2, directory) if num_places else ("nowhere", [])
        counts[answer] += 1
        if answer == "missed":
            print(f"  missed: {each.name}: {_shown(verdicts)}", flush=True)
    return counts


def _shown(verdicts: Sequence[CallVerdict]) -> str:
    return "; ".join(
        f"{each.entry} {each.verdict.value} {each.reason or ''} {each.worst.times if each.worst else 0:.2g}"
        for each in verdicts[:3]
    )


if __name__ == "__main__":
    main()
