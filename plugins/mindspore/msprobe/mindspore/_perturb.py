"""Perturbation of last digits in MindSpore: see `msprobe_core.interception.perturbation`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from msprobe.mindspore._cells import cells_of
from msprobe.mindspore._compiling import Compiling
from msprobe.mindspore._gradients import takes_gradient
from msprobe.mindspore._quiet import RecordingGuard
from msprobe.mindspore._unrecorded_calls import unseen
from msprobe_core.interception import ModuleNoise, NothingPending, relative_changes
from msprobe_core.plugin import NamedModel, Perturbation, PerturbMode, RoundingUnit

_ROUNDOFFS = {
    ms.float64: RoundingUnit.FLOAT64.roundoff,
    ms.float32: RoundingUnit.FLOAT32.roundoff,
    ms.float16: RoundingUnit.FLOAT16.roundoff,
    ms.bfloat16: RoundingUnit.BFLOAT16.roundoff,
}


class Noise:
    """Perturbs tensors, on the host; see `msprobe_core.interception.perturbation.TensorKinds`."""

    def __init__(self, perturbation: Perturbation, seed: int) -> None:
        """Begin.

        Args:
            perturbation: Size of the perturbation.
            seed: Seed of the random numbers.
        """
        self._coarser = None if perturbation.dtype is None else perturbation.dtype.roundoff
        self._random = np.random.default_rng(seed)

    def is_floating(self, value: Any) -> bool:
        """Whether a value is a dense tensor of floating-point numbers."""
        return isinstance(value, Tensor) and value.dtype in _ROUNDOFFS and value.size > 0

    def is_integer(self, value: Any) -> bool:
        """Whether a value is a tensor of integers."""
        return isinstance(value, Tensor) and value.dtype not in _ROUNDOFFS

    def perturbed(self, tensor: Any) -> Any:
        """Return a tensor with perturbed last digits; gradients pass through it unchanged."""
        changed = self._changed(tensor)
        if not takes_gradient(tensor):
            return changed
        # The difference of two neighbours is exact, and so is the sum.
        return tensor + ops.stop_gradient(changed - tensor)

    def perturb_gradient(self, tensor: Any) -> None:
        """Perturb the gradient with respect to a tensor when it arrives."""
        if takes_gradient(tensor):
            tensor.register_hook(self._changed)

    def quiet(self) -> AbstractContextManager[None]:
        """Return a block whose calls are not recorded."""
        return unseen()

    def _changed(self, tensor: Any) -> Any:
        changed = tensor
        with RecordingGuard():
            is_bfloat16 = tensor.dtype == ms.bfloat16  # NumPy lacks it; float32 represents it exactly
            values = (tensor.astype(ms.float32) if is_bfloat16 else tensor).asnumpy()
            relative = relative_changes(self._random.random(values.shape), _ROUNDOFFS[tensor.dtype], self._coarser)
            with np.errstate(all="ignore"):
                sums = values + values * relative.astype(values.dtype)
            if np.array_equal(values, np.round(values)):
                return tensor  # whole numbers are counts
            changed = Tensor(np.where(np.isfinite(sums), sums, values), tensor.dtype)
        return changed  # noqa: RET504  # type checkers think that the block swallows exceptions


class CellNoise(NothingPending):
    """Hooks in the Cells of nets; they are absent during compilation."""

    def __init__(self, noise: ModuleNoise) -> None:
        """Begin.

        Args:
            noise: The hooks.
        """
        self._noise = noise
        self._compiling = Compiling(noise.detach, noise.install)
        self._compiling.install()

    def detach(self) -> None:
        """Remove all hooks."""
        self._compiling.remove()
        self._noise.detach()


def perturb(models: Sequence[NamedModel], perturbation: Perturbation, seed: int) -> CellNoise:
    """See `msprobe_core.plugin.PerturbingFramework.perturb`."""
    noise, roots = Noise(perturbation, seed), [model.name for model in models]
    everywhere = perturbation.mode is PerturbMode.EVERYWHERE
    return CellNoise(ModuleNoise(cells_of(models), roots, noise, everywhere=everywhere))
