"""The random state of PyTorch's random functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from msprobe.pytorch._quiet import RecordingGuard


class TorchState:
    """The global random state of the host and of every device in use; compare `RandomState` of the core."""

    def get(self) -> Any:
        """Return the state without waiting for a device."""
        with RecordingGuard():
            return torch.get_rng_state(), {name: device.get_rng_state_all() for name, device in devices_in_use()}

    def set(self, state: Any) -> None:
        """Restore a state. A device that was not in use then is seeded with the host's seed."""
        host, others = state
        with RecordingGuard():
            torch.set_rng_state(host)
            for name, device in devices_in_use():
                if name in others:
                    device.set_rng_state_all(others[name])
                else:
                    device.manual_seed_all(torch.initial_seed())


def devices_in_use() -> Iterator[tuple[str, Any]]:
    """Yield name and module of the kinds of devices that this process has begun to use."""
    for name in ("cuda", "npu", "xpu"):
        device: Any = getattr(torch, name, None)
        if hasattr(device, "set_rng_state_all") and device.is_available() and device.is_initialized():
            yield name, device
