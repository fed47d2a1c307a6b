"""What the training monitor needs to know of MindSpore: parameters, their gradients, and optimizers.

A gradient is no field of its parameter here: the program takes it from autograd, and gives it to the optimizer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from msprobe.mindspore._cells import ParameterHooks, Unnamed, cells_of, own_parameters
from msprobe.mindspore._communication import CommunicationPatches, communication_files
from msprobe.mindspore._compiling import api
from msprobe.mindspore._deferred_digests import widest_float
from msprobe.mindspore._device import WITH_ARITHMETIC
from msprobe.mindspore._optimizer_calls import by_parameter, is_optimizer, watch_every_optimizer
from msprobe.mindspore._quiet import RecordingGuard, executor
from msprobe.mindspore._reduce import values_of
from msprobe.mindspore.graph.attachment import check_calls
from msprobe_core.interception import Function, FunctionPatch, Inside, Patches, Removal
from msprobe_core.plugin import CallRecorder, NamedModel, Removable, SessionError

_logger = logging.getLogger(__name__)

_FIRST = ("exp_avg", "moment1", "moments1", "moments", "moment")
_SECOND = ("exp_avg_sq", "moment2", "moments2")
"""Attributes in which optimizers keep first and second moments, in the order of their parameters."""

_MAX_FUNCTIONS_SAID = 20

_FOLLOWED = "the training monitor follows calls of the optimizer and of Cells"

_MEAN = ops.ReduceMean()


class Monitoring:
    """See `msprobe_core.plugin.MonitoringFramework`."""

    _defers: bool

    def __init__(self) -> None:
        """Begin without an optimizer."""
        self._given: dict[int, Any] = {}
        self._moments: WeakKeyDictionary[nn.Cell, Mapping[int, tuple[Any, Any]]] = WeakKeyDictionary()

    def parameters_of(self, model: nn.Cell) -> Mapping[str, Parameter]:
        """Return the parameters that require a gradient, by the paths of their Cells, without those of optimizers."""
        found: dict[int, tuple[str, Parameter]] = {}
        for path, _, cell in cells_of([Unnamed(model)]):
            for name, parameter in own_parameters(cell).items() if not is_optimizer(cell) else ():
                if parameter.requires_grad:
                    found.setdefault(id(parameter), (f"{path}.{name}" if path else name, parameter))
        return dict(found.values())

    def is_training(self, model: nn.Cell) -> bool:
        """Whether the net is in training mode, or differentiated: Cells are not in training mode by default."""
        return model.training or bool(executor.grad_flag())

    def gradient_of(self, parameter: Any, *, is_main: bool) -> Any:
        """Return what the running call of an optimizer has been given; ``None`` outside of such a call."""
        del is_main
        return self._given.get(id(parameter))

    def moments_of(self, optimizer: nn.Cell, parameter: Any) -> tuple[Any, Any]:
        """Return what Adam and its like keep; a momentum is a first moment."""
        moments = self._moments.get(optimizer)
        if moments is None:
            moments = self._moments[optimizer] = _moments_by_parameter(optimizer)
        return moments.get(id(parameter), (None, None))

    def share_below(self, tensor: Any, eps: float) -> Any:
        """Return the mean of whether elements are below; of a tensor on the host, a number."""
        if self._defers:
            if not isinstance(tensor, Tensor) or not tensor.size or tensor.dtype not in WITH_ARITHMETIC - {ms.bool_}:
                return None
            return _MEAN(ops.cast(ops.abs(tensor) < eps, widest_float()), ())
        values = values_of(tensor)
        if values is None or not values.array.size or values.array.dtype.kind == "b":
            return None
        return (np.abs(values.numbers) < eps).mean()

    def floats(self, numbers: Sequence[Any]) -> Sequence[float]:
        """Stack the numbers on a device and fetch them at once."""
        waiting = [number for number in numbers if isinstance(number, Tensor)]
        fetched = iter(_fetched(waiting) if waiting else ())
        return [next(fetched) if isinstance(number, Tensor) else float(number) for number in numbers]

    def watch_accumulation(self, models: Sequence[NamedModel], recorder: CallRecorder) -> Removable:
        """Hook the parameters of all Cells."""
        hooks = ParameterHooks(models, recorder)
        hooks.install()
        return Removal(hooks.remove)

    @property
    def communication_frames(self) -> Sequence[str]:
        """The files that define and wrap the functions of communication."""
        return communication_files()

    def watch_communication(self, recorder: CallRecorder) -> Removable:
        """Patch the functions, as recording does."""
        patches = CommunicationPatches(Inside())
        patches.install(recorder)
        return Removal(patches.remove)

    def watch_updates(
        self, optimizer: Any, before: Callable[[], None], after: Callable[[], None]
    ) -> Callable[[], None]:
        """Hook the optimizer.

        Raises:
            SessionError: it is no optimizer, or calls of it cannot be seen because whole nets are compiled.
        """
        if not is_optimizer(optimizer):
            raise SessionError(
                f"set_monitor() got the optimizer {type(optimizer).__name__}, which is no Cell with the parameters "
                "that it updates; give an optimizer of mindspore.nn, mint.optim or experimental.optim"
            )
        check_calls(_FOLLOWED)
        return _Updates(optimizer, self._given, before, after).end

    def updated_by(self, optimizer: Any) -> Mapping[str, Any] | None:
        """Return them by the names that they have."""
        return {each.name: each for each in optimizer.parameters} if is_optimizer(optimizer) else None

    def watch_all_updates(
        self, before: Callable[[Sequence[Any]], None], after: Callable[[], None]
    ) -> Callable[[], None]:
        """Watch the calls of all Cells.

        Raises:
            SessionError: calls of optimizers cannot be seen because whole nets are compiled.
        """
        check_calls(_FOLLOWED)
        given = self._given

        def around(optimizer: Any, gradients: Any, run: Callable[[], Any]) -> Any:
            given.update(by_parameter(optimizer, gradients))
            try:
                before(optimizer.parameters)
            finally:
                given.clear()
            result = run()
            after()
            return result

        return watch_every_optimizer(around)


class _Updates:
    """Surrounds the calls of an optimizer, and says which functions are compiled.

    Not by hooks of the optimizer: monitoring begins and ends at these calls, and may concern a Cell that holds the
    optimizer, whose table of hooks must not change while it is read.
    """

    def __init__(
        self, optimizer: nn.Cell, given: dict[int, Any], before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        self._optimizer = optimizer
        self._given = given
        self._before_update = before
        self._after_update = after
        self._num_updates = 0
        self._said: set[str] = set()
        patches = (
            FunctionPatch(type(optimizer), "__call__", self._call),
            FunctionPatch(api._JitExecutor, "__call__", self._note),
        )
        self._patches = Patches(patches, are_imported=False)
        self._patches.install()

    def _call(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if args[0] is not self._optimizer:
            return function(*args, **kwargs)
        self._given.update(by_parameter(self._optimizer, next(iter((*args[1:], *kwargs.values())), None)))
        try:
            self._before_update()
        finally:
            self._given.clear()
        result = function(*args, **kwargs)
        self._num_updates += 1
        self._after_update()
        return result

    def _note(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Say once of each function of the program that it is compiled: coverage expects no particular Cells."""
        compiled = getattr(args[0], "fn", function)
        name: str = getattr(compiled, "__qualname__", type(compiled).__name__)
        is_own = str(getattr(compiled, "__module__", "")).startswith("mindspore.")  # optimizers are compiled
        if not is_own and name not in self._said and len(self._said) < _MAX_FUNCTIONS_SAID:
            self._said.add(name)
            _logger.warning("the monitor sees nothing inside of %s, which runs compiled (jit)", name)
        return function(*args, **kwargs)

    def end(self) -> None:
        """Take the patches out; say if the optimizer was never called."""
        self._patches.remove()
        if not self._num_updates:
            _logger.warning(
                "the monitor saw no step of %s and wrote nothing; a function under jit hides calls of the optimizer: "
                "call it outside",
                type(self._optimizer).__name__,
            )


def _fetched(numbers: Sequence[Tensor]) -> Any:
    with RecordingGuard():
        return ops.stack(numbers).asnumpy().tolist()


def _moments_by_parameter(optimizer: Any) -> Mapping[int, tuple[Any, Any]]:
    first: Sequence[str] = () if isinstance(optimizer, nn.FTRL) else (*_FIRST, *_momentum_of_sgd(optimizer))
    firsts, seconds = (_kept(optimizer, names) for names in (first, _SECOND))
    return {id(each): (firsts.get(id(each)), seconds.get(id(each))) for each in optimizer.parameters}


def _kept(optimizer: Any, names: Sequence[str]) -> Mapping[int, Any]:
    """Return what an optimizer keeps of each parameter, in the first of these attributes that it has."""
    parameters: Sequence[Parameter] = optimizer.parameters
    for name in names:
        kept = getattr(optimizer, name, None)
        if isinstance(kept, tuple | list) and len(kept) == len(parameters):
            pairs = zip(parameters, kept, strict=True)
            return {id(one): each for one, each in pairs if each.shape == one.shape}  # AdaFactor: not of matrices
    return {}


def _momentum_of_sgd(optimizer: Any) -> Sequence[str]:
    """Return the attributes of SGD's momentum, if it has one; others keep sums of squares as ``accum``."""
    names = ("accum",) if hasattr(optimizer, "stat") else ("momentum_buf",)
    if not hasattr(optimizer, names[0]):
        return ()
    groups: Sequence[Mapping[str, Any]] = getattr(optimizer, "param_groups", ())
    factors = [group["momentum"] for group in groups] or [optimizer.momentum.asnumpy()]
    return names if any(factors) else ()
