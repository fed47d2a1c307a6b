"""Replays of a few functions in NumPy, on the host and on devices whose results can be made wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msprobe_core.errors import ConfigError, ReplayError
from msprobe_core.model import ReplayCall, Replayed, ReplayTensor, Site

FUNCTIONS: Mapping[str, Callable[..., Any]] = {"matmul": np.matmul, "argmax": np.argmax, "exp": np.exp}


@dataclass
class NumPyReplays:
    """A framework that replays `FUNCTIONS`.

    Attributes:
        faults: What changes the results of a device, or raises a `ReplayError`.
        present: The devices.
        is_coarse: Whether results are rounded to one decimal place in every precision but float64: a wrong host.
        is_unique: Whether calls have one right result.
    """

    faults: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    present: Sequence[str] = ("npu:0", "npu:1")
    is_coarse: bool = False
    is_unique: bool = True

    def why_not_replayed(self, site: Site) -> str | None:
        return None if site.path in FUNCTIONS else "it is not among the functions of this test"

    def replay_devices(self) -> Sequence[str]:
        return self.present

    def replay(self, call: ReplayCall, model: object | None = None, device: str | None = None) -> Replayed:
        del model
        if device is not None and device not in self.present:
            raise ConfigError(f"device {device!r}: there is none")
        dtype = "float32"
        values: list[Any] = []
        for value in call.args:
            if not isinstance(value, ReplayTensor):
                raise ReplayError("one of its arguments is no tensor")
            values.append(value.values.astype(np.float64))
            dtype = value.dtype
        try:
            result = np.asarray(FUNCTIONS[call.site.path](*values))
        except (TypeError, ValueError) as error:
            raise ReplayError("it cannot be called again") from error
        if result.dtype.kind == "f":
            result = result.astype(np.float64 if call.is_widened else np.float32)
            if self.is_coarse and not call.is_widened:
                result = np.round(result, 1)
        if device in self.faults:
            result = self.faults[device](result)
        value = ReplayTensor(values=result, dtype=dtype if result.dtype.kind == "f" else "int64")
        return Replayed(values={"0": value}, is_unique=self.is_unique)
