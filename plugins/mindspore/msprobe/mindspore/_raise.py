"""Single Cells in a more precise format while a step is repeated; see `msprobe_core.plugin.RaisingFramework`."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore._c_expression import MixedPrecisionType, amp
from mindspore.ops import operations
from mindspore.train.amp import AmpDecorator

from msprobe.mindspore._apis import TENSOR
from msprobe.mindspore._cells import HiddenHooks, cells_of, own_parameters
from msprobe.mindspore._compiling import Compiling
from msprobe.mindspore._device import COMPLEX, FLOATING
from msprobe.mindspore._functions import ApiPatches
from msprobe.mindspore._jit import JitPatches
from msprobe.mindspore._optimizer_calls import is_optimizer
from msprobe.mindspore._primitives import COMMUNICATION, PrimitivePatches
from msprobe.mindspore._quiet import RecordingGuard, executor
from msprobe.mindspore._unrecorded_calls import held, inside, unseen
from msprobe_core.interception import (
    COARSER,
    FoundModule,
    Function,
    FunctionPatch,
    RaisingModules,
    converted,
    observe_by_hooks,
)
from msprobe_core.plugin import NamedModel, RiskLevel, SessionError

_MAX_NESTED = 1000
"""More Cells than call each other."""

_DTYPE: Any = ms.common.dtype.Type
_CASTS = ("half", "bfloat16", "float")
"""Methods that cast to a format which their name says."""

_TO_DTYPE = ("astype", "to", "type", "cast")
"""Functions that also take the name of a format as text."""


class RaisedCells(RaisingModules):
    """See `msprobe_core.plugin.RaisedModules`."""

    def __init__(self, models: Sequence[NamedModel], apis: ApiPatches) -> None:
        """Prepare; nothing is attached.

        Args:
            models: Their Cells.
            apis: Patches of all functions.
        """
        super().__init__(_raisable(models), observe_by_hooks)
        self._models = models
        self._apis = apis
        self._compiled: list[str] = []

    # --- tensors ------------------------------------------------------------------------------------------------

    def is_floating(self, value: Any) -> bool:
        """Whether it is a dense one."""
        return isinstance(value, Tensor) and value.dtype in FLOATING - COMPLEX

    def format_of(self, tensor: Any) -> str:
        """Return the dtype's name."""
        return str(tensor.dtype).lower()

    def cast(self, tensor: Any, name: str) -> Any:
        """Cast it, in the graph if there is one."""
        with unseen(), _at_level(None):
            return tensor.astype(getattr(ms, name))

    def own_tensors(self, module: nn.Cell) -> Mapping[str, Tensor]:
        """Return parameters and buffers."""
        own: dict[str, Tensor] = {**own_parameters(module), **getattr(module, "_buffers", {})}
        return {name: tensor for name, tensor in own.items() if self.is_floating(tensor)}

    # --- mixed precision ----------------------------------------------------------------------------------------

    def mixed_precision(self) -> Any:
        """Return the level ``auto`` that is entered; what `Cell.to_float` has set is switched around the step."""
        return amp.get_curr_amp_strategy()

    def with_mixed_precision(self, state: Any) -> AbstractContextManager[None]:
        """Enter it."""
        return _at_level(state)

    @contextmanager
    def _types_set(self) -> Generator[None, None, None]:
        """Give each Cell the type of `Cell.to_float` that it has or inherits; a raised one gets none.

        MindSpore switches it at each call, and on errors. Doing that here would count some errors twice.
        """
        own = {each.path: (each.module, each.module.mixed_precision_type) for each in self.found}
        if self.is_learning or all(kind is None for _, kind in own.values()):
            yield
            return

        def effective(path: str | None) -> Any:
            kind = own[path][1] if path in own else MixedPrecisionType.NOTSET
            return effective(self.caller_of(path)) if kind is None and path is not None else kind

        for path, (cell, _) in own.items():
            cell.mixed_precision_type = MixedPrecisionType.NOTSET if self.is_raised(path) else effective(path)
        try:
            yield
        finally:
            for cell, kind in own.values():
                cell.mixed_precision_type = kind
            _clear_types()

    def _enter_amp(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Enter the level ``auto``, but without effect on the code of a raised Cell."""
        return _push(None) if self.is_inside else function(*args, **kwargs)

    # --- calls --------------------------------------------------------------------------------------------------

    @contextmanager
    def computing_fine(self, module: nn.Cell) -> Generator[None, None, None]:
        """Switch mixed precision off, and give the Cell its tensors in the finer format; it gets its own back."""
        places: list[dict[str, Any]] = [module._params, getattr(module, "_buffers", {})]
        made: list[tuple[dict[str, Any], str, Any, Any]] = []
        for name, tensor in self.own_tensors(module).items():
            place = next(each for each in places if name in each)
            if (finer := self.finer(tensor)) is not tensor:
                place[name] = finer
                made.append((place, name, tensor, finer))
        try:
            with _at_level(None), held(inside, value=False):  # a function may have called the Cell
                yield
        finally:
            for place, name, tensor, finer in made:
                now = place.get(name)
                place[name] = tensor
                if now is not None and not tensor.requires_grad:
                    self._keep_written(tensor, finer, now)

    def _keep_written(self, tensor: Tensor, finer: Tensor, now: Tensor) -> None:
        """Write to a buffer what the Cell has written to its finer copy, such as the mean of a batch norm."""
        with RecordingGuard():
            before = self.cast(tensor, self.fine)
            if now is not finer or not np.array_equal(now.asnumpy(), before.asnumpy(), equal_nan=True):
                tensor.copy_(now.astype(tensor.dtype))

    @contextmanager
    def intercepting(self) -> Generator[None, None, None]:
        """Do nothing: functions are patched around the step."""
        yield

    @contextmanager
    def around_step(self) -> Generator[None, None, None]:
        """Patch functions, operators that Cells hold, and casts; hooks are absent while a function is compiled."""
        calls: Any = _FineCalls(self, self._compiled)
        hidden = HiddenHooks([each.module for each in self.found])
        put: list[Any] = [
            PrimitivePatches(self._models, calls, RiskLevel.ALL),
            FunctionPatch(operations.Cast, "__call__", calls.cast),
            FunctionPatch(AmpDecorator, "__enter__", self._enter_amp),
            JitPatches(calls, self._apis.step_aside),
            Compiling(hidden.hide, hidden.show),
        ]
        with ExitStack() as stack:
            stack.enter_context(self._types_set())
            for each in put:
                each.install()
                stack.callback(each.remove)
            self._apis.install(calls)
            stack.callback(self._apis.remove)
            yield

    @contextmanager
    def watched(self) -> Generator[None, None, None]:
        """Watch the unchanged step.

        Raises:
            SessionError: what calls the Cells is compiled.
        """
        with super().watched():
            yield
        if not self.modules and self._compiled:
            raise SessionError(
                f"{self._compiled[0]} runs compiled (jit), so that nothing inside of it can be raised; run it with the "
                "environment variable MS_JIT=0"
            )


class _FineCalls:
    """Keeps functions that a raised Cell calls from becoming coarser, and from mixing formats.

    Stands for `msprobe.mindspore._calls.ApiCalls` with what patches it.
    """

    def __init__(self, raised: RaisedCells, compiled: list[str]) -> None:
        self._raised = raised
        self._compiled = compiled
        self._dtype: Any = getattr(ms, raised.fine)

    @property
    def is_looking(self) -> bool:
        return not inside.value

    def run(
        self, prefix: str, name: str, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any],
        *, mutates: bool = False, shown: Any = None,
    ) -> Any:  # fmt: skip
        del shown
        raised = self._raised
        if not raised.is_inside:
            return function(*args, **kwargs)
        if prefix == TENSOR and name in _CASTS:
            return raised.cast(args[0], raised.fine)
        if prefix != COMMUNICATION:
            finer = self._finer_name if name in _TO_DTYPE else self._finer_dtype
            args, kwargs = converted((args, dict(kwargs)), finer)
            if not mutates and len(set(raised.formats_of((args, kwargs)))) > 1:
                args, kwargs = converted((args, kwargs), raised.finer)
        with unseen():
            result = self._stand_in(name, function)(*args, **kwargs)
            executor.sync()  # what has no kernel for this format fails here, and not in another Cell
        return result

    def run_foreign(
        self, prefix: str, name: str, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any],
        *, owner: str | None = None,
    ) -> Any:  # fmt: skip
        del prefix
        if owner is None:
            self._compiled.append(name)
        with unseen():
            return function(*args, **kwargs)

    def cast(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a call of the operator that casts; Cells hold some, and mixed precision makes others."""
        if self.is_looking and self._raised.is_inside:
            args, kwargs = converted((args, dict(kwargs)), self._finer_dtype)
        return function(*args, **kwargs)

    def _stand_in(self, name: str, function: Function) -> Function:
        return _WITHOUT_DOUBLE.get(name, function) if self._dtype is ms.float64 else function

    def _finer_dtype(self, value: Any) -> Any:
        return self._dtype if isinstance(value, _DTYPE) and _is_coarser(str(value), self._raised.fine) else value

    def _finer_name(self, value: Any) -> Any:
        is_coarser = isinstance(value, str) and _is_coarser(value, self._raised.fine)
        return self._raised.fine if is_coarser else self._finer_dtype(value)


def _is_coarser(name: str, fine: str) -> bool:
    return name.lower() in COARSER[fine]


def _layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Normalise over the last axes, as `mint.nn.functional.layer_norm` is defined."""
    axes = tuple(range(-len(normalized_shape), 0))
    centred = x - ops.mean(x, axes, keep_dims=True)
    found = centred * ops.rsqrt(ops.mean(centred * centred, axes, keep_dims=True) + eps)
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


def _gelu(x: Any, *, approximate: str = "none") -> Any:
    """Compute as `mint.nn.functional.gelu` is defined; Hendrycks and Gimpel, 2016."""
    if approximate == "tanh":
        return 0.5 * x * (1 + ops.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + ops.erf(x * math.sqrt(0.5)))


_WITHOUT_DOUBLE: dict[str, Function] = {"layer_norm": _layer_norm, "gelu": _gelu}
"""What stands for functions without a kernel for float64 on some devices."""


# --- mixed precision ------------------------------------------------------------------------------------------------


@contextmanager
def _at_level(strategy: Any) -> Generator[None, None, None]:
    _push(strategy)
    try:
        yield
    finally:
        amp.pop_amp_strategy()


def _push(strategy: Any) -> None:
    if strategy is None:
        amp.push_amp_strategy(amp.AmpLevel.AmpO0, ms.float16, [], [])
        return
    amp.push_amp_strategy(
        strategy.get_amp_level(), strategy.get_amp_dtype(), strategy.get_white_list(), strategy.get_black_list()
    )


def _clear_types() -> None:
    """Take back the types of calls that have raised, which MindSpore leaves for all that is computed later."""
    one = Tensor([[1.0]], ms.float32)
    with RecordingGuard(), _at_level(None):
        for _ in range(_MAX_NESTED):
            if ops.matmul(one, one).dtype == ms.float32:
                return
            executor.set_mixed_precision_type(MixedPrecisionType.NOTSET, False)


# --- Cells ----------------------------------------------------------------------------------------------------------


def _raisable(models: Sequence[NamedModel]) -> Iterator[FoundModule]:
    """Yield the Cells of some nets but for optimizers, what is inside of them, and the Cells that hold them."""
    found = list(cells_of(models))
    optimizers = [each.path for each in found if is_optimizer(each.module)]
    for each in found:
        is_inside = any(_is_within(each.path, path) for path in optimizers)
        if not is_inside and not any(_is_within(path, each.path) for path in optimizers):
            yield each


def _is_within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")
