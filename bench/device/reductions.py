"""Chapter 1: reductions on the device against those of the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec
import torch
from msprobe.pytorch._reduce import TorchReducer
from msprobe.pytorch._statistics import WITHOUT_DOUBLE
from torch import Tensor

from bench.device.chapters import Case, Chapter, Outcome, Proof
from bench.device.machine import Machine
from msprobe_core.model import Digest, Fp8Stats, Stats

_DTYPES = (
    "float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int16", "int32",
    "int64", "bool", "complex64",
)  # fmt: skip

_IN_FLOAT32 = (torch.complex64,)

_SIZES = (1, 100, 2048, 16385, 300_000)

_VIEWS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x[:2000].view(40, 50).t(), "every other": lambda x: x[:999:2],
    "expanded": lambda x: x[:1].expand(70), "0-d": lambda x: x[0], "empty": lambda x: x[:0],
    "from an odd address": lambda x: x[3:1000],
}  # fmt: skip

_SPECIAL: Mapping[str, list[float]] = {
    "not a number": [1.0, math.nan, 2.0, math.inf], "infinite": [1.0, math.inf, -math.inf],
    "minus infinity alone": [-math.inf] * 5, "negative zero": [-0.0, 0.0],
}  # fmt: skip

_OF_HOST, _OF_FLOAT32, _OF_FLOAT64 = 1e-5, 1e-4, 1e-12
"""Relative differences that sums may have: of the host, which rounds them to float32, see `host_statistics`; of a
device without float64, which adds 300,000 numbers in float32; and of float64."""

_NEGATED: Callable[[Tensor], Tensor] = getattr(torch, "_neg_view")  # noqa: B009

_MANY = (1 << 31) + 17


def _tensors(dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    drawn = torch.randn(max(_SIZES), dtype=torch.float64) * 20
    if dtype.is_complex:
        drawn = torch.complex(drawn, drawn.flip(0))
    elif dtype is torch.bool:
        drawn = drawn > 0
    elif not dtype.is_floating_point:
        drawn = drawn.abs() if dtype is torch.uint8 else drawn
    base = drawn.to(dtype).to(device)
    found = {f"{size} elements": base[:size] for size in _SIZES} | {name: view(base) for name, view in _VIEWS.items()}
    if dtype.is_complex:
        found |= {"conjugated": base[:100].conj(), "negated": base[:100].conj().imag}
    if dtype.is_floating_point and dtype.itemsize > 1:
        special = {name: torch.tensor(values, dtype=dtype).to(device) for name, values in _SPECIAL.items()}
        found |= {**special, "negated": _NEGATED(base[:100])}
    return found


_KINDS = ("statistics", "hash", "xor", "checksum", "sketch", "fp8")


def _digests(tensors: Mapping[str, Tensor], reducer: TorchReducer) -> dict[str, dict[str, Digest]]:
    found: dict[str, dict[str, Digest]] = {}
    for kind in _KINDS:
        found[kind] = {name: Digest() for name in tensors}
        for name, tensor in tensors.items():
            getattr(reducer, kind)(tensor, found[kind][name])
        reducer.collect()
    return found


def _is_equal(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))


def _is_equal_as_float32(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return _is_equal(*torch.tensor([one, other], dtype=torch.float32).tolist())


@dataclass
class _Difference:
    """The largest relative difference of means and norms, and the tensors whose other statistics differ."""

    is_equal: Callable[[float | None, float | None], bool]
    sums: float = 0.0
    wrong: tuple[str, ...] = ()

    def add(self, name: str, own: Stats | None, host: Stats | None, numel: int) -> None:
        if own is None or host is None or own.l2_norm is None or host.l2_norm is None:
            self.wrong += (name,) * (own != host)
            return
        exact = [(stats.max, stats.min, stats.num_nan, stats.num_inf) for stats in (own, host)]
        if not all(map(self.is_equal, *exact)):
            self.wrong += (name,)
        scale = host.l2_norm if math.isfinite(host.l2_norm) else 0.0
        if scale:
            means = abs((own.mean or 0.0) - (host.mean or 0.0)) * math.sqrt(numel)
            self.sums = max(self.sums, abs(own.l2_norm - scale) / scale, means / scale)
        elif not (_is_equal(own.mean, host.mean) and _is_equal(own.l2_norm, host.l2_norm)):
            self.wrong += (name,)


def _compare(dtype: torch.dtype, machine: Machine) -> Outcome:
    host, device = (_tensors(dtype, kind) for kind in ("cpu", machine.kind))
    expected = _digests(host, TorchReducer())
    reducer = TorchReducer(defer_host=machine.kind == "cpu")
    is_narrow = dtype is torch.float64 and machine.kind in WITHOUT_DOUBLE
    difference, wrong = _Difference(_is_equal_as_float32 if is_narrow else _is_equal), list[str]()
    for window in range(3):  # in the first one a kernel only proves itself
        found = _digests(device, reducer)
        for name, tensor in host.items():
            difference.add(name, found["statistics"][name].stats, expected["statistics"][name].stats, tensor.numel())
            for kind in ("hash", "xor", "checksum"):
                if found[kind][name].checksum != expected[kind][name].checksum:
                    wrong.append(f"{kind} of {name}, window {window}")
            if not _is_near(found["sketch"][name].sketch, expected["sketch"][name].sketch):
                wrong.append(f"sketch of {name}, window {window}")
            if not _is_near_fp8(found["fp8"][name].fp8, expected["fp8"][name].fp8):
                wrong.append(f"fp8 of {name}, window {window}")
    wrong += [f"extremes of {name}" for name in difference.wrong]
    is_single = dtype in _IN_FLOAT32 or (dtype.is_floating_point and dtype.itemsize < 8)
    most = _OF_HOST if is_single else _OF_FLOAT64
    most = max(most, _OF_FLOAT32) if machine.kind in WITHOUT_DOUBLE else most
    cells = str(len(host)), f"{difference.sums:.1e}", ", ".join(dict.fromkeys(wrong)) or "none"
    return Outcome(cells, holds=not wrong and difference.sums <= most)


def _is_near(own: bytes | None, other: bytes | None) -> bool:
    if own is None or other is None:
        return own == other
    values = [torch.frombuffer(bytearray(each), dtype=torch.float32) for each in (own, other)]
    scale = float(values[1].nan_to_num(posinf=0.0, neginf=0.0).abs().max())
    return torch.allclose(*values, rtol=1e-4, atol=1e-4 * scale, equal_nan=True)


def _is_near_fp8(own: Fp8Stats | None, other: Fp8Stats | None) -> bool:
    if own is None or other is None:
        return own is other
    pairs = zip(msgspec.structs.astuple(own), msgspec.structs.astuple(other), strict=True)
    return all(
        one == two or (None not in (one, two) and math.isclose(one, two, rel_tol=1e-4, abs_tol=1e-7))
        for one, two in pairs
    )


def _many(machine: Machine) -> Outcome:
    """Reduce more elements than an int32 can count, of which a few are not zero."""
    values = torch.zeros(_MANY, dtype=torch.bfloat16, device=machine.kind)
    values[-1], values[1 << 31], values[5] = 3.0, -2.0, 1.0
    reducer, wrong = TorchReducer(), list[str]()
    for window in range(2):
        digest = Digest()
        reducer.statistics(values, digest)
        reducer.collect()
        stats = digest.stats or Stats()
        expected = 3.0, -2.0, 2.0 / _MANY, math.sqrt(14.0)
        if not all(
            one is not None and math.isclose(one, other, rel_tol=1e-9)
            for one, other in zip((stats.max, stats.min, stats.mean, stats.l2_norm), expected, strict=True)
        ):
            wrong.append(f"window {window}: {stats}")
    hashes = [Digest(), Digest()]
    reducer.hash(values, hashes[0])
    reducer.collect()
    TorchReducer().hash(values.cpu(), hashes[1])
    wrong += ["hash"] * (hashes[0].checksum != hashes[1].checksum)
    del values
    machine.release()
    return Outcome(("1", "", ", ".join(wrong) or "none"), holds=not wrong)


def _cases(proof: Proof) -> Iterator[Case]:
    for name in _DTYPES:
        yield Case(name, partial(_compare, getattr(torch, name), proof.machine))
    if proof.machine.free_bytes() > 40e9:
        yield Case(f"{_MANY:,} elements of bfloat16", partial(_many, proof.machine))


REDUCTIONS = Chapter(
    "reductions",
    "Reductions on the device against the host",
    ("tensors", "largest difference of means and norms", "different"),
    _cases,
)
