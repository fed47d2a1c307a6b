"""Call as many of PyTorch's functions as can be guessed: those that it lets be overridden, with small tensors."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import get_overridable_functions, get_testing_overrides

_LEFT_OUT = (
    "cudnn", "miopen", "mkldnn", "quantize", "fbgemm", "cuda", "cufft", "xpu", "ipu", "storage", "share_memory", "set_",
    "resize", "sparse_", "init_", "module_load", "register", "backward", "from_file", "nested", "apply_", "map_",
    "map2_", "vmap", "names", "rename", "align", "refine", "dlpack", "pin_memory", "__cuda", "c_", "hspmm", "smm",
    "sspaddmm", "__array", "to_padded", "unravel",
)  # fmt: skip
"""Parts of names of functions that need a device, change the process, or are not about plain tensors."""


def _square() -> Tensor:
    return torch.tensor([[2.0, 0.5, 0.25], [0.5, 2.0, 0.5], [0.25, 0.5, 2.0]])


_TENSORS: list[Callable[[], Tensor]] = [
    _square,
    lambda: torch.arange(1, 10).view(3, 3),
    lambda: torch.linspace(0.1, 0.9, 2 * 4 * 4 * 4).view(2, 4, 4, 4),
    lambda: torch.linspace(0.1, 0.9, 3),
    lambda: torch.tensor([0, 2, 1]),
    lambda: torch.tensor([[True, False], [True, True]]),
    lambda: torch.linspace(0.1, 0.9, 2 * 4 * 4).view(2, 4, 4),
    lambda: torch.linspace(0.1, 0.9, 2 * 4 * 4 * 4 * 4).view(2, 4, 4, 4, 4),
    lambda: torch.ones(3, 3, dtype=torch.complex64),
    lambda: torch.tensor(2.0),
    lambda: torch.ones(2, 3, 2),
]
"""What every tensor argument of a call is, one attempt after another."""

_VALUES: dict[str, list[Any]] = {
    "dim": [0, 1, -1], "dim0": [0], "dim1": [1], "dims": [(0, 1), (0,), 1], "axis": [0], "axis0": [0], "axis1": [1],
    "p": [0.5, 2], "size": [(3, 3), (9,), 3], "shape": [(3, 3), (9,)], "dtype": [torch.float32], "k": [1],
    "diagonal": [0], "offset": [0], "n": [3, 2], "m": [3], "num_classes": [10], "chunks": [3], "sections": [3],
    "indices_or_sections": [3], "split_size": [1], "split_size_or_sections": [1], "split_sizes": [(1, 2)],
    "kernel_size": [2, (2, 2), (2, 2, 2)], "output_size": [2, (2, 2), (2, 2, 2), (4, 4)], "stride": [1], "padding": [0],
    "value": [0.5, 1], "other": [None], "exponent": [2.0, None], "min": [0.2], "max": [0.8], "start": [0], "end": [1],
    "length": [1], "step": [1], "steps": [3], "repeats": [2], "shifts": [1], "sizes": [(3, 3), (1, 3, 3)],
    "dimension": [0], "dim_src": [0], "groups": [1, 2], "num_groups": [2], "normalized_shape": [(3,), (4,)],
    "eps": [1e-5], "reduction": ["mean"], "training": [False], "inplace": [False], "upscale_factor": [2],
    "downscale_factor": [2], "scale_factor": [2], "pad": [(1, 1)], "mode": ["constant"], "equation": ["ij,jk->ik"],
    "tensors": ["tensors"], "operands": ["tensors"], "matrices": ["tensors"], "source": [(0,), 0],
    "destination": [(1,), 1],
    "lambd": [0.5], "alpha": [0.5], "beta": [0.5], "negative_slope": [0.1], "window_length": [4], "num_rows": [3],
    "N": [3], "correction": [1], "decimals": [0], "as_tuple": [False], "q": [0.5], "ord": [2], "tol": [0.1], "num": [2],
    "fill_value": [1.0], "a": [0.5], "b": [0.5], "low": [0], "high": [5], "mean": [0.0], "std": [1.0],
    "num_samples": [2],
    "index": [None, 0], "mask": [None], "indices": [None], "bins": [4], "n_fft": [4], "threshold": [0.5], "row": [3],
    "col": [3], "upper": [False], "lower": [True], "norm_type": [2], "margin": [1.0], "delta": [1.0], "tau": [1.0],
    "num_heads": [1], "maxnorm": [1.0], "start_dim": [0], "end_dim": [-1], "dropout_p": [0.0], "max_norm": [1.0],
    "size_average": [None], "reduce": [None], "out": [None], "weight": [None], "bias": [None], "target": [None],
    "running_mean": [None], "running_var": [None], "generator": [None], "requires_grad": [False], "device": [None],
    "rtol": [1e-5], "atol": [1e-8], "sample": [0.5], "n_samples": [1], "lambda_": [0.5], "total_length": [3], "r": [2],
    "condition": [None], "mat2": [None], "vec": [None], "rcond": [None], "hermitian": [False], "UPLO": ["L"],
}  # fmt: skip
"""By the name of a parameter, what it may be; ``None`` stands for the tensor of this attempt."""

_BOOLEAN_MASKS = ("mask", "condition")

TABLE: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "scaled_dot_product_attention": lambda: ((torch.ones(1, 2, 4, 8),) * 3, {}),
    "rms_norm": lambda: ((torch.ones(2, 4), (4,)), {}),
    "linear": lambda: ((torch.ones(2, 3), torch.ones(4, 3)), {}),
    "bilinear": lambda: ((torch.ones(2, 3), torch.ones(2, 4), torch.ones(5, 3, 4)), {}),
    "embedding": lambda: ((torch.tensor([0, 1]), torch.ones(3, 4)), {}),
    "embedding_bag": lambda: ((torch.tensor([[0, 1]]), torch.ones(3, 4)), {}),
    "conv1d": lambda: ((torch.ones(1, 2, 5), torch.ones(3, 2, 2)), {}),
    "conv2d": lambda: ((torch.ones(1, 2, 5, 5), torch.ones(3, 2, 2, 2)), {}),
    "conv3d": lambda: ((torch.ones(1, 2, 5, 5, 5), torch.ones(3, 2, 2, 2, 2)), {}),
    "conv_transpose1d": lambda: ((torch.ones(1, 2, 5), torch.ones(2, 3, 2)), {}),
    "conv_transpose2d": lambda: ((torch.ones(1, 2, 5, 5), torch.ones(2, 3, 2, 2)), {}),
    "conv_transpose3d": lambda: ((torch.ones(1, 2, 5, 5, 5), torch.ones(2, 3, 2, 2, 2)), {}),
    "conv_tbc": lambda: ((torch.ones(5, 1, 2), torch.ones(2, 2, 3), torch.ones(3)), {}),
    "cross_entropy": lambda: ((torch.ones(2, 3), torch.tensor([0, 1])), {}),
    "nll_loss": lambda: ((torch.ones(2, 3), torch.tensor([0, 1])), {}),
    "multi_margin_loss": lambda: ((torch.ones(2, 3), torch.tensor([0, 1])), {}),
    "ctc_loss": lambda: (
        (torch.zeros(5, 1, 3), torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2])),
        {},
    ),
    "batch_norm": lambda: ((torch.ones(2, 3), torch.zeros(3), torch.ones(3)), {}),
    "instance_norm": lambda: ((torch.arange(24.0).view(2, 3, 4),), {}),
    "layer_norm": lambda: ((torch.ones(2, 4), (4,)), {}),
    "group_norm": lambda: ((torch.ones(2, 4, 3), 2), {}),
    "local_response_norm": lambda: ((torch.ones(2, 4, 3), 2), {}),
    "one_hot": lambda: ((torch.tensor([0, 1]),), {}),
    "grid_sample": lambda: ((torch.ones(1, 1, 3, 3), torch.zeros(1, 2, 2, 2)), {"align_corners": False}),
    "affine_grid": lambda: ((torch.ones(1, 2, 3), (1, 1, 2, 2)), {"align_corners": False}),
    "interpolate": lambda: ((torch.ones(1, 1, 4, 4),), {"scale_factor": 2}),
    "fold": lambda: ((torch.ones(1, 4, 4), (3, 3), (2, 2)), {}),
    "unfold": lambda: ((torch.ones(1, 1, 3, 3), (2, 2)), {}),
    "pixel_shuffle": lambda: ((torch.ones(1, 4, 2, 2), 2), {}),
    "channel_shuffle": lambda: ((torch.ones(1, 4, 2, 2), 2), {}),
    "glu": lambda: ((torch.ones(2, 4),), {}),
    "prelu": lambda: ((torch.ones(2, 4), torch.ones(1)), {}),
    "triplet_margin_loss": lambda: ((torch.ones(2, 3), torch.zeros(2, 3), torch.ones(2, 3)), {}),
    "triplet_margin_with_distance_loss": lambda: ((torch.ones(2, 3), torch.zeros(2, 3), torch.ones(2, 3)), {}),
    "margin_ranking_loss": lambda: ((torch.ones(2), torch.zeros(2), torch.ones(2)), {}),
    "cosine_embedding_loss": lambda: ((torch.ones(2, 3), torch.ones(2, 3), torch.ones(2)), {}),
    "gaussian_nll_loss": lambda: ((torch.ones(2), torch.ones(2), torch.ones(2)), {}),
    "multi_head_attention_forward": lambda: (
        (*((torch.ones(2, 1, 4),) * 3), 4, 2, torch.ones(12, 4), torch.ones(12), None, None, False, 0.0,
         torch.ones(4, 4), torch.ones(4)),
        {},
    ),
    "__getitem__": lambda: ((torch.ones(3, 3), 0), {}),
    "__setitem__": lambda: ((torch.ones(3, 3), 0, 2.0), {}),
    "gather": lambda: ((torch.ones(3, 3), 0, torch.zeros(1, 3, dtype=torch.int64)), {}),
    "scatter": lambda: ((torch.ones(3, 3), 0, torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 3)), {}),
    "scatter_add": lambda: ((torch.ones(3, 3), 0, torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 3)), {}),
    "index_add": lambda: ((torch.ones(3, 3), 0, torch.tensor([0]), torch.ones(1, 3)), {}),
    "index_copy": lambda: ((torch.ones(3, 3), 0, torch.tensor([0]), torch.ones(1, 3)), {}),
    "index_fill": lambda: ((torch.ones(3, 3), 0, torch.tensor([0]), 2.0), {}),
    "index_put": lambda: ((torch.ones(3, 3), (torch.tensor([0]),), torch.tensor(2.0)), {}),
    "index_select": lambda: ((torch.ones(3, 3), 0, torch.tensor([0])), {}),
    "take_along_dim": lambda: ((torch.ones(3, 3), torch.zeros(1, 3, dtype=torch.int64), 0), {}),
    "where": lambda: ((torch.tensor([True, False]), torch.ones(2), torch.zeros(2)), {}),
    "masked_fill": lambda: ((torch.ones(2), torch.tensor([True, False]), 2.0), {}),
    "masked_scatter": lambda: ((torch.ones(2), torch.tensor([True, False]), torch.ones(2)), {}),
    "masked_select": lambda: ((torch.ones(2), torch.tensor([True, False])), {}),
    "addmv": lambda: ((torch.ones(2), torch.ones(2, 3), torch.ones(3)), {}),
    "addr": lambda: ((torch.ones(2, 3), torch.ones(2), torch.ones(3)), {}),
    "addbmm": lambda: ((torch.ones(2, 2), torch.ones(3, 2, 2), torch.ones(3, 2, 2)), {}),
    "baddbmm": lambda: ((torch.ones(3, 2, 2), torch.ones(3, 2, 2), torch.ones(3, 2, 2)), {}),
    "bmm": lambda: ((torch.ones(3, 2, 2), torch.ones(3, 2, 2)), {}),
    "mv": lambda: ((torch.ones(2, 3), torch.ones(3)), {}),
    "dot": lambda: ((torch.ones(3), torch.ones(3)), {}),
    "vdot": lambda: ((torch.ones(3), torch.ones(3)), {}),
    "inner": lambda: ((torch.ones(3), torch.ones(3)), {}),
    "cross": lambda: ((torch.ones(2, 3), torch.ones(2, 3)), {"dim": 1}),
    "lerp": lambda: ((torch.ones(3), torch.zeros(3), 0.5), {}),
    "einsum": lambda: (("ij,jk->ik", torch.ones(2, 3), torch.ones(3, 2)), {}),
    "stft": lambda: ((torch.ones(16), 4), {"return_complex": True, "window": torch.ones(4)}),
    "lstm_cell": lambda: (
        (torch.ones(1, 2), (torch.ones(1, 3), torch.ones(1, 3)), torch.ones(12, 2), torch.ones(12, 3)), {},
    ),
    "gru_cell": lambda: ((torch.ones(1, 2), torch.ones(1, 3), torch.ones(9, 2), torch.ones(9, 3)), {}),
    "vander": lambda: ((torch.ones(3),), {}),
    "tensordot": lambda: ((torch.ones(2, 3), torch.ones(3, 2)), {"dims": 1}),
    "cdist": lambda: ((torch.ones(2, 3), torch.ones(4, 3)), {}),
    "histogram": lambda: ((torch.ones(3), 4), {}),
    "view": lambda: ((torch.ones(2, 3), (3, 2)), {}),
    "repeat": lambda: ((torch.ones(3), 2), {}),
    "to": lambda: ((torch.ones(3), torch.float64), {}),
}  # fmt: skip
"""Arguments of functions that are not guessed, by name; those whose name ends in ``_`` go by the name without it."""

CREATION: dict[Callable[..., Any], tuple[Any, ...]] = {
    torch.zeros: (3,), torch.ones: (3,), torch.full: ((2,), 1.0), torch.rand: (3,), torch.randn: (3,), torch.eye: (3,),
    torch.arange: (3,), torch.linspace: (0, 1, 3), torch.logspace: (0, 1, 3), torch.randperm: (3,), torch.empty: (3,),
    torch.randint: (0, 5, (3,)), torch.tensor: ([1.0],), torch.as_tensor: ([1.0],), torch.hann_window: (4,),
    torch.hamming_window: (4,), torch.bartlett_window: (4,), torch.blackman_window: (4,), torch.kaiser_window: (4,),
    torch.tril_indices: (3, 3), torch.triu_indices: (3, 3), torch.complex: (torch.ones(2), torch.ones(2)),
    torch.scalar_tensor: (1.0,), torch.range: (0, 3), torch.empty_strided: ((2,), (1,)), torch.asarray: ([1.0],),
}  # fmt: skip
"""Functions that make tensors; PyTorch dispatches them, and does not list them as overridable."""

Example = tuple[Callable[..., Any], str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]


def examples() -> tuple[int, list[Example]]:
    """Return how many public functions there are, and an example of each that could be called, with its name."""
    signatures = get_testing_overrides()
    found: list[Example] = []
    seen: set[int] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for namespace, functions in get_overridable_functions().items():
            for function in functions:
                name = getattr(function, "__name__", "")
                if id(function) in seen or not _is_public(namespace, name):
                    continue
                seen.add(id(function))
                make = None if any(part in name for part in _LEFT_OUT) else _arguments(function, name, signatures)
                if make is not None:
                    found.append((function, name, make))
        for function, args in CREATION.items():
            if id(function) not in seen:
                seen.add(id(function))
                found.append((function, function.__name__, lambda args=args: (args, {})))
    return len(seen), found


def _is_public(namespace: Any, name: str) -> bool:
    is_operator = namespace is Tensor and name.startswith("__") and name not in {"__get__", "__set__", "__delete__"}
    return bool(name) and (is_operator or not name.startswith("_"))


def _arguments(function: Any, name: str, signatures: dict[Any, Any]) -> Any:
    given = TABLE.get(name) or TABLE.get(name.rstrip("_")) or CREATION.get(function)
    attempts: Iterator[Any] = iter([given] if callable(given) else [])
    for make in (*attempts, *_guesses(signatures.get(function))):
        try:
            args, kwargs = make()
            if holds_tensor(function(*args, **kwargs)):
                return make
        except Exception:  # noqa: BLE001  # a wrong guess
            continue
    return None


def _guesses(dummy: Any) -> Iterator[Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]:
    try:
        parameters = [
            p for p in inspect.signature(dummy).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip
    except (TypeError, ValueError):
        return
    for tensor in _TENSORS:
        for number in range(3):
            yield lambda tensor=tensor, number=number: (tuple(_value(p.name, tensor, number) for p in parameters), {})


def _value(name: str, tensor: Callable[[], Tensor], number: int) -> Any:
    choices = _VALUES.get(name, [None])
    choice = choices[min(number, len(choices) - 1)]
    if choice == "tensors":
        return [tensor(), tensor()]
    if choice is None:
        return tensor() > 0.5 if name in _BOOLEAN_MASKS else tensor()
    return choice


def holds_tensor(value: Any) -> bool:
    """Whether a result is a tensor, or holds one."""
    return isinstance(value, Tensor) or (isinstance(value, tuple | list) and any(map(holds_tensor, value)))
