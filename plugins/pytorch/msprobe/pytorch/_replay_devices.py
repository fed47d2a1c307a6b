"""The devices on which calls are replayed."""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from msprobe_core.plugin import ConfigError

HOST = torch.device("cpu")

_KINDS = ("cuda", "xpu", "mps", "npu")
_ADDED_BY = {"npu": "torch_npu"}
"""Packages that add a kind of device to PyTorch when they are imported; from 2.5 on it imports them by itself."""


def devices() -> list[str]:
    """Return the devices present besides the host, such as ``cuda:0``."""
    found: list[str] = []
    for kind in dict.fromkeys((*_KINDS, torch._C._get_privateuse1_backend_name())):
        backend = _backend(kind)
        with suppress(Exception):  # of a driver: what cannot even be asked is not there
            found += [f"{kind}:{index}" for index in range(backend.device_count() if backend is not None else 0)]
    return found


def device_of(name: str) -> torch.device:
    """Return a device by its name in PyTorch: ``cuda``, ``npu:1``; a kind alone is its first device.

    Raises:
        ConfigError: there is no such device here.
    """
    kind, _, index = name.partition(":")
    if kind == HOST.type and index in ("", "0"):
        return HOST
    present = devices()
    wanted = name if index else f"{kind}:0"
    if wanted not in present:
        there = ", ".join(("cpu", *present))
        raise ConfigError(f"device {name!r}: PyTorch sees no such device on this machine; it sees {there}")
    return torch.device(wanted)


def _backend(kind: str) -> Any:
    """Return the module of a kind of devices, such as ``torch.cuda``; ``None`` if this PyTorch does not have it."""
    if not hasattr(torch, kind) and kind in _ADDED_BY:
        with suppress(ImportError, OSError):  # not installed, or without its driver
            importlib.import_module(_ADDED_BY[kind])
    return getattr(torch, kind, None)


@dataclass(frozen=True)
class RandomState:
    """State of the random generators of the host and of one device; ``of_device`` is ``None`` if it has none."""

    device: torch.device
    of_host: Tensor
    of_device: Tensor | None

    def restore(self) -> None:
        """Set the generators to this state."""
        torch.set_rng_state(self.of_host)
        if self.of_device is not None:
            _backend(self.device.type).set_rng_state(self.of_device, *_of(self.device))

    def is_same(self, other: RandomState) -> bool:
        """Whether no number was drawn between the two."""
        if self.of_device is None or other.of_device is None:
            return torch.equal(self.of_host, other.of_host)
        return torch.equal(self.of_host, other.of_host) and torch.equal(self.of_device, other.of_device)


def state_of(device: torch.device) -> RandomState:
    """Return the state of the random generators of the host and of a device."""
    of_host = torch.get_rng_state()
    if device == HOST:
        return RandomState(device, of_host, None)
    backend = _backend(device.type)
    has_generator = hasattr(backend, "get_rng_state") and hasattr(backend, "set_rng_state")
    return RandomState(device, of_host, backend.get_rng_state(*_of(device)) if has_generator else None)


def _of(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # torch.mps has one device, and its functions take none


@contextmanager
def without_autocast(device: torch.device) -> Generator[None, None, None]:
    """Disable autocast for a kind of devices, if it is enabled."""
    if not _is_autocast_on(device.type):
        yield
        return
    with torch.autocast(device.type, enabled=False):
        yield


def _is_autocast_on(kind: str) -> bool:
    if kind == HOST.type:
        return False  # the caller's own block
    with suppress(RuntimeError, TypeError):  # no autocast for it; PyTorch 2.1 takes no argument
        return torch.is_autocast_enabled(kind)
    return torch.is_autocast_enabled()
