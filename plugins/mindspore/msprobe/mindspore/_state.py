"""All state that a training step in the dynamic graph reads and writes, to be restored later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn

from msprobe.mindspore._dropout import is_removed
from msprobe.mindspore._quiet import RecordingGuard
from msprobe_core.interception import RandomStates

_UNREPEATABLE = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class NetState:
    """See `msprobe_core.plugin.TrainingState`. Copies stay on the tensors' device."""

    def __init__(self, models: Sequence[nn.Cell], others: Iterable[Any]) -> None:
        """Copy the current state.

        Args:
            models: Their parameters.
            others: Optimizers and other Cells.

        Raises:
            TypeError: one of ``others`` is not a Cell, or a model draws random numbers that cannot be drawn again.
        """
        self._values: dict[int, tuple[Parameter, Tensor]] = {}
        with RecordingGuard():
            for model in models:
                _refuse_unrepeatable(model)
            for cell in (*models, *others):
                if not isinstance(cell, nn.Cell):
                    raise TypeError(f"{type(cell).__name__} is no Cell")
                for parameter in cell.get_parameters():
                    self._values[id(parameter)] = parameter, parameter.copy()
            self._drawn = ms.get_rng_state().copy()
        self._random = RandomStates()

    def restore(self) -> None:
        """Restore everything."""
        with RecordingGuard():
            for parameter, value in self._values.values():
                parameter.copy_(value)
            ms.set_rng_state(self._drawn.copy())
        self._random.restore()

    def complaint(self) -> str | None:
        """Return ``None``: MindSpore does not show which optimizers make a step."""
        return None


def _refuse_unrepeatable(model: nn.Cell) -> None:
    if is_removed():
        return
    for path, cell in model.cells_and_names():
        if isinstance(cell, _UNREPEATABLE) and cell.training and getattr(cell, "p", 0):
            raise TypeError(
                f"the random numbers of {path} ({type(cell).__name__}) cannot be drawn again; call "
                "seed_all(rm_dropout=True), or take mint.nn.Dropout, which draws from the default generator"
            )
