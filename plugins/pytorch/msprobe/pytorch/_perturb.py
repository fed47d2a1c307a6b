"""Perturbation of last digits in PyTorch: see `msprobe_core.interception.perturbation`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from msprobe.pytorch._dispatch import COMMUNICATING, PLAIN, BottomMode, run_below, written_arguments
from msprobe.pytorch._modules import modules_to_watch
from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._slots import observe
from msprobe_core.interception import FLIPPED, ModuleNoise, NothingPending
from msprobe_core.plugin import NamedModel, Perturbation, PerturbMode, Removable


class Noise:
    """Perturbs tensors, with its own random numbers on each device."""

    def __init__(self, perturbation: Perturbation, seed: int) -> None:
        """Begin.

        Args:
            perturbation: Size of the perturbation.
            seed: Seed of the random numbers.
        """
        self._seed = seed
        self._coarser = perturbation.dtype.roundoff if perturbation.dtype is not None else 0.0
        self._generators: dict[torch.device, torch.Generator] = {}

    def is_floating(self, value: Any) -> bool:
        """Whether a value is a dense tensor of floating-point numbers that have arithmetic."""
        return (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and value.dtype.itemsize > 1
            and value.layout is torch.strided
            and not value.is_nested
            and not value.is_meta
            and value.numel() > 0
        )

    def is_integer(self, value: Any) -> bool:
        """Whether a value is a tensor of integers."""
        return isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()

    def perturbed(self, tensor: Tensor) -> Tensor:
        """Return a tensor with perturbed last digits; gradients pass through it unchanged."""
        changed = self.changed(tensor.detach())
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return changed.requires_grad_(tensor.requires_grad)
        return Replace.apply(tensor, changed)  # pyright: ignore[reportReturnType]

    def perturb_gradient(self, tensor: Tensor) -> None:
        """Perturb the gradient with respect to a tensor when it arrives."""
        if tensor.requires_grad:
            tensor.register_hook(self.changed)

    def quiet(self) -> AbstractContextManager[None]:
        """Return a block that is hidden from function modes."""
        return torch._C.DisableTorchFunction()

    def changed(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor with perturbed last digits; whole numbers are counts and stay unchanged."""
        changed = tensor
        with RecordingGuard():
            own = torch.finfo(tensor.dtype).eps / 2
            random = torch.rand(tensor.shape, generator=self._generator(tensor.device), device=tensor.device)
            if self._coarser > own:
                relative = (2 * random - 1) * self._coarser
            else:
                relative = torch.where(random < FLIPPED, own, 0.0) * torch.where(random < FLIPPED / 2, -1.0, 1.0)
            relative = torch.where((tensor == tensor.round()).all(), 0.0, relative)
            changed = tensor + tensor * relative.to(tensor.dtype)
            changed = torch.where(torch.isfinite(changed), changed, tensor)
        return changed  # noqa: RET504  # type checkers think that the block swallows exceptions

    def _generator(self, device: torch.device) -> torch.Generator:
        generator = self._generators.get(device)
        if generator is None:
            generator = self._generators[device] = torch.Generator(device)
            generator.manual_seed(self._seed)
        return generator


class Replace(torch.autograd.Function):
    """Replaces a tensor's values, and passes its gradient through unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, changed: Tensor) -> Tensor:  # noqa: ARG004
        """Return the other values."""
        return changed

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ARG004
        """Return the gradient as it is."""
        return gradients[0], None


class NoiseMode(BottomMode, NothingPending):
    """Perturbs the result of every PyTorch operator on this thread, and in the backward passes that it starts."""

    def __init__(self, noise: Noise) -> None:
        """Prepare; ``push`` begins.

        Args:
            noise: Perturbs tensors.
        """
        super().__init__()
        self._noise = noise

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._is_on and not all(kind in PLAIN for kind in types):
            return NotImplemented  # a tensor subclass: the operators that it calls come here
        output = run_below(func, args, kwargs or {})
        if not self._is_on or not _computes(func):
            return output
        if func._schema.is_mutable:
            with RecordingGuard():
                for tensor in written_arguments(func, args, kwargs or {}):
                    if self._noise.is_floating(tensor):
                        tensor.copy_(self._noise.changed(tensor))
            return output
        if isinstance(output, tuple | list):
            return type(output)(map(self._changed, output))
        return self._changed(output)

    def _changed(self, value: Any) -> Any:
        return self._noise.changed(value) if self._noise.is_floating(value) else value


@cache
def _computes(func: Any) -> bool:
    """Whether an operator rounds: not if it moves, selects, casts or creates numbers, or communicates."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace in COMMUNICATING:
        return False
    name = name.removeprefix("_foreach_").strip("_") if name.startswith("_foreach_") else name.rstrip("_")
    if name in _EXACT or name.startswith(_EXACT_STARTS) or name.endswith("_copy"):
        return False
    # A view: its base has been perturbed where it was computed.
    return not any(made.alias_info is not None and not made.alias_info.is_write for made in func._schema.returns)


_EXACT = frozenset(
    {
        # Move.
        "clone", "copy", "cat", "concat", "stack", "index", "_unsafe_index", "index_select", "gather", "take",
        "embedding",
        "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter", "scatter", "masked_scatter",
        "masked_select", "index_put", "_unsafe_index_put", "_index_put_impl", "index_fill", "index_copy",
        "select_backward",
        "slice_backward", "unfold", "flip", "roll", "repeat", "tile", "repeat_interleave", "constant_pad_nd", "pad",
        "tril", "triu", "diag_embed", "sort", "topk", "kthvalue", "median", "mode", "msort", "pixel_shuffle",
        "pixel_unshuffle", "channel_shuffle", "im2col", "reflection_pad1d", "reflection_pad2d", "replication_pad1d",
        "replication_pad2d", "upsample_nearest1d", "upsample_nearest2d", "max_pool2d_with_indices",
        "max_pool3d_with_indices", "max_pool2d_with_indices_backward", "_unsafe_view", "_reshape_alias", "lift_fresh",
        "lift", "set", "resize", "resize_as", "contiguous", "_chunk_cat", "chunk_cat", "all_gather_copy_in",
        # Choose.
        "where", "masked_fill", "maximum", "minimum", "max", "min", "amax", "amin", "aminmax", "cummax", "cummin",
        "clamp",
        "clamp_min", "clamp_max", "hardtanh", "hardtanh_backward", "relu", "relu6", "threshold", "threshold_backward",
        "nan_to_num", "fmax", "fmin", "heaviside", "isfinite",
        # Cast, and change signs or exponents.
        "_to_copy", "to", "neg", "abs", "sign", "sgn", "copysign", "positive", "round", "floor", "ceil", "trunc",
        "frac",
        "ldexp", "frexp", "view_as_real", "view_as_complex", "conj", "real", "imag", "complex",
        # Make.
        "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "fill",
        "zero",
        "arange", "range", "linspace", "logspace", "eye", "scalar_tensor", "tril_indices", "triu_indices", "one_hot",
        # Count.
        "histc", "bincount", "_amp_update_scale", "_amp_foreach_non_finite_check_and_unscale",
        # Draw.
        "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "uniform",
        "bernoulli",
        "exponential", "geometric", "cauchy", "log_normal", "random", "multinomial", "poisson", "binomial",
        "rrelu_with_noise",
    }
)  # fmt: skip
"""Operators with the same results in every implementation, by their names without trailing underscores."""

_EXACT_STARTS = ("empty", "new_empty", "_local_scalar", "_assert", "record_stream")


def perturb(models: Sequence[NamedModel], perturbation: Perturbation, seed: int) -> Removable:
    """See `msprobe_core.plugin.PerturbingFramework.perturb`."""
    noise = Noise(perturbation, seed)
    if perturbation.mode is PerturbMode.EVERYWHERE:
        mode = NoiseMode(noise)
        mode.install()
        return mode
    roots = [model.name for model in models]
    return ModuleNoise(modules_to_watch(models), roots, noise, everywhere=False, observe=observe)
