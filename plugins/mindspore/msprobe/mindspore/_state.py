"""All state that a training step in the dynamic graph reads and writes, to be restored later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn

from msprobe.mindspore._device import copied
from msprobe.mindspore._dropout import is_removed
from msprobe.mindspore._optimizer_calls import watch_every_optimizer
from msprobe.mindspore._quiet import RecordingGuard
from msprobe_core.interception import RandomStates, value_leaves

_UNREPEATABLE = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class NetState:
    """See `msprobe_core.plugin.TrainingState`. Copies stay on the tensors' device."""

    def __init__(self, models: Sequence[nn.Cell], others: Iterable[Any]) -> None:
        """Copy the current state.

        Args:
            models: Their parameters.
            others: Optimizers and other Cells, and objects that hold parameters, such as schedulers and loss scalers.

        Raises:
            TypeError: one of ``others`` holds none, or a model draws random numbers that cannot be drawn again.
        """
        self._values: dict[int, tuple[Parameter, Tensor]] = {}
        self._known: set[int] = set()
        with RecordingGuard():
            for model in models:
                _refuse_unrepeatable(model)
            for each in (*models, *others):
                if not has_parameters(each):
                    raise TypeError(f"{type(each).__name__} is no Cell, and holds no parameters")
                self._known |= {id(cell) for _, cell in each.cells_and_names()} if isinstance(each, nn.Cell) else set()
                for parameter in _parameters_in(each):
                    self._values[id(parameter)] = parameter, copied(parameter)
            self._drawn = ms.get_rng_state().copy()
        self._random = RandomStates()
        self._stepped: list[str] = []
        self._end_watch = watch_every_optimizer(self._note_step)

    def restore(self) -> None:
        """Restore everything."""
        self._end_watch()
        with RecordingGuard():
            for parameter, value in self._values.values():
                parameter.copy_(value)
            ms.set_rng_state(self._drawn.copy())
        self._random.restore()

    def complaint(self) -> str | None:
        """Return the name of an optimizer that has made a step and was not given; compiled ones are not seen."""
        self._end_watch()
        return f"the optimizer {self._stepped[0]} steps, but was not given beside the model" if self._stepped else None

    def _note_step(self, optimizer: nn.Cell, _given: Any, run: Callable[[], Any]) -> Any:
        if id(optimizer) not in self._known:
            self._stepped.append(type(optimizer).__name__)
        return run()


def has_parameters(value: Any) -> bool:
    """Whether a value is a Cell, or an object with a parameter among its attributes."""
    if isinstance(value, type | ModuleType):
        return False
    return isinstance(value, nn.Cell) or any(True for _ in _parameters_in(value))


def _parameters_in(value: Any) -> Iterator[Parameter]:
    if isinstance(value, nn.Cell):
        yield from value.get_parameters()
        for _, cell in value.cells_and_names():
            yield from _held(cell)
    else:
        yield from _held(value)


def _held(value: Any) -> Iterator[Parameter]:
    """Yield the parameters in attributes, such as the rates in the groups of an optimizer."""
    held: dict[str, Any] = vars(value) if hasattr(value, "__dict__") else {}
    return (each for each in value_leaves(dict(held)) if isinstance(each, Parameter))


def _refuse_unrepeatable(model: nn.Cell) -> None:
    if is_removed():
        return
    for path, cell in model.cells_and_names():
        if isinstance(cell, _UNREPEATABLE) and cell.training and getattr(cell, "p", 0):
            raise TypeError(
                f"the random numbers of {path} ({type(cell).__name__}) cannot be drawn again; call "
                "seed_all(rm_dropout=True), or take mint.nn.Dropout, which draws from the default generator"
            )
