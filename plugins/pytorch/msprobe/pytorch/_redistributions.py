"""Redistributions of DTensors: placements from and to, and the local shard before and after.

They are recorded among the operators below the APIs, since most are implicit: an operator redistributes inputs with
incompatible placements.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._torch_releases import is_compiling
from msprobe_core.interception import AliasSearch, Function, FunctionPatch, Patches
from msprobe_core.plugin import Call, CallRecorder

_MODULE, _FUNCTION = "torch.distributed.tensor._redistribute", "redistribute_local_tensor"
_PREFIX, _NAME = "DTensor", "redistribute"


class PlacedOperators(Protocol):
    """Knows the call that the running code is part of."""

    def place(self) -> tuple[Any, bool] | None:
        """Return the enclosing call, and whether it computes gradients; ``None`` if nothing is recorded."""
        ...


def redistributions(recorder: CallRecorder, operators: PlacedOperators, search: AliasSearch) -> Patches:
    """Return patches that report redistributions while installed; empty if DTensors have not been imported."""
    module = sys.modules.get(_MODULE)
    if module is None or not hasattr(module, _FUNCTION):
        return Patches(are_imported=False)
    handler = _Redistributions(recorder, operators)
    return Patches([FunctionPatch(module, _FUNCTION, handler, is_compiling)], search=search)


class _Redistributions:
    """Handles each call of PyTorch's function ``(local_tensor, current_spec, target_spec, ...)``."""

    def __init__(self, recorder: CallRecorder, operators: PlacedOperators) -> None:
        self._recorder = recorder
        self._operators = operators

    def __call__(self, original: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        call = self._open(args, kwargs)
        if call is None:
            return original(*args, **kwargs)
        try:
            output = original(*args, **kwargs)
        except BaseException:
            self._recorder.close(call)
            raise
        with RecordingGuard(self._recorder.note_failure):
            if call.wants_forward:
                self._recorder.record_outputs(call, output)
            self._recorder.close(call)
        return output

    def _open(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
        call: Call | None = None
        with RecordingGuard(self._recorder.note_failure):
            place = self._operators.place()
            if place is None:
                return None
            local, current, target = (
                args[i] if i < len(args) else kwargs[name]
                for i, name in enumerate(("local_tensor", "current_spec", "target_spec"))
            )
            call = self._recorder.open_operator(_PREFIX, _NAME, place[0], is_in_backward=place[1])
            if call.wants_forward:
                described = {"mesh": _mesh(current), "source": _placements(current), "destination": _placements(target)}
                self._recorder.record_inputs(call, (local,), described)
        return call


def _placements(spec: Any) -> str:
    return ", ".join(map(str, spec.placements))


def _mesh(spec: Any) -> str:
    names = spec.mesh.mesh_dim_names or range(spec.mesh.ndim)
    return ", ".join(f"{name}={size}" for name, size in zip(names, spec.mesh.shape, strict=True))
