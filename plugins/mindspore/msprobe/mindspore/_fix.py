"""Replaces results of calls by more precise ones: the only part of this plugin that is meant to change a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops import Primitive

from msprobe.mindspore._functions import ApiPatches
from msprobe.mindspore._gradients import builds_graph, takes_gradient
from msprobe.mindspore._jit import JitPatches
from msprobe.mindspore._primitives import COMMUNICATION, PrimitivePatches
from msprobe.mindspore._quiet import RecordingGuard
from msprobe.mindspore._random import RANDOM_NAMES, RANDOM_OPERATORS, MindSporeState
from msprobe.mindspore._unrecorded_calls import inside, unseen
from msprobe_core.interception import FixingCalls, map_values
from msprobe_core.plugin import CallFixer, NamedModel, RiskLevel

_HALVES = (ms.bfloat16, ms.float16)


class FixedCalls(FixingCalls):
    """Intercepts calls of functions in the dynamic graph; see `msprobe_core.plugin.FixingFramework`."""

    def __init__(self, fixer: CallFixer, apis: ApiPatches, models: Sequence[NamedModel]) -> None:
        """Install it.

        Args:
            fixer: Chooses calls.
            apis: Patches of all functions.
            models: Nets whose Cells hold operators.
        """
        super().__init__(fixer)
        self._state = MindSporeState()
        self._apis = apis
        self._jit = JitPatches(cast("Any", self), apis.step_aside)
        self._primitives = PrimitivePatches(models, cast("Any", self), RiskLevel.ALL)
        self._primitives.install()
        self._jit.install()
        apis.install(cast("Any", self))

    def detach(self) -> None:
        """Remove it."""
        self._apis.remove()
        self._jit.remove()
        self._primitives.remove()

    # --- calls, as the patches pass them on -------------------------------------------------------------------------

    @property
    def is_looking(self) -> bool:
        """Whether a call that begins now on this thread may be fixed."""
        return not inside.value

    def run(
        self, prefix: str, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any],
        *, mutates: bool = False, shown: Any = None,
    ) -> Any:  # fmt: skip
        """Call a function, and return its result or the more precise one; functions that it calls are left alone."""
        del shown
        with unseen():
            writes = mutates or prefix == COMMUNICATION or _writes(function)
            return super().run(prefix, name, function, args, kwargs, mutates=writes)

    def run_foreign(
        self, prefix: str, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any],
        *, owner: str | None = None,  # noqa: ARG002
    ) -> Any:  # fmt: skip
        """Call compiled code, in which nothing is replaced."""
        if self.fixer.wants(prefix, name):
            self.fixer.refused(prefix, name, "it is compiled")
        with unseen():
            return function(*args, **kwargs)

    # --- what is MindSpore's ----------------------------------------------------------------------------------------

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a dense tensor."""
        return isinstance(value, Tensor)

    def watch_random(self, name: str, args: Any) -> Callable[[], bool]:  # noqa: ARG002
        """Compare the state of the generator, and how often operators have drawn; some have a state of their own."""
        if name in RANDOM_NAMES or name.rpartition(".")[2] in RANDOM_OPERATORS:
            return lambda: True
        before = self._drawn()
        return lambda: self._drawn() != before

    def again(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> Any | None:
        """Compute a call in float32; with its gradient if that is what is replaced."""
        if self.fixer.is_backward:
            return self._again(function, args, kwargs, result)
        found: list[Any] = []
        with RecordingGuard():
            found.append(self._again(function, args, kwargs, result))
        return found[0]

    def _again(self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], result: Any) -> Any | None:
        changed: list[Tensor] = []

        def improved(value: Any) -> Any:
            if value.dtype not in _HALVES:
                return value
            changed.append(value)
            return value.astype(ms.float32)

        fine_args, fine_kwargs = map_values((args, dict(kwargs)), self.is_tensor, improved)
        if not changed or self.shares_memory(result, (args, dict(kwargs))):
            return None
        return function(*fine_args, **fine_kwargs)

    def joined(self, own: Any, fine: Any) -> Any:
        """Return the values of one and the gradient of the other."""
        has_gradient = builds_graph() and takes_gradient(own)
        if not self.fixer.is_backward:
            values = fine.astype(own.dtype)
            return _Replace()(own, ops.stop_gradient(values)) if has_gradient else values
        return _Replace()(fine.astype(own.dtype), ops.stop_gradient(own)) if has_gradient else own

    def place_of(self, tensor: Any) -> int | None:
        """Return the address of its storage."""
        return tensor.untyped_storage().data_ptr() if tensor.size else None

    def _drawn(self) -> tuple[bytes, dict[Any, Any]]:
        generator, counts = self._state.get()
        return generator.asnumpy().tobytes(), counts


def _writes(function: Callable[..., Any]) -> bool:
    """Whether an operator writes to its arguments, as a batch norm does to its statistics."""
    operator = function.args[0] if isinstance(function, partial) and function.args else None
    return isinstance(operator, Primitive) and bool(operator.attrs.get("side_effect_mem"))


class _Replace(nn.Cell):
    """The values of the second argument, with the gradient of the first one."""

    def construct(self, own: Any, values: Any) -> Any:  # noqa: ARG002
        """Return the values."""
        return values

    def bprop(self, own: Any, values: Any, out: Any, dout: Any) -> Any:  # noqa: ARG002
        """Pass the gradient to the first argument."""
        with unseen():
            return dout, ops.zeros_like(values)
