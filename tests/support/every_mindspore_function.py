"""Call as many of MindSpore's functions as can be guessed, with small tensors."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops

NAMESPACES = {
    "Functional": (ops, ""),
    "Mint": (mint, ""),
    "MintFunctional": (mint.nn.functional, ""),
    "Mint.linalg": (mint.linalg, "linalg_"),
    "Mint.special": (mint.special, "special_"),
    "Tensor": (Tensor, ""),
}

_LEFT_OUT = (
    "print", "dump", "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast_object", "isend", "irecv",
    "send", "recv", "reduce_scatter", "process_group", "group_r", "get_", "new_group", "is_available", "is_init",
    "scatter_object", "gather_object", "comm_ops", "kernel", "register", "vm_impl", "constexpr", "add_flags", "prim_a",
    "grad", "vjp", "jvp", "jac", "jet", "derivative", "linearize", "vmap", "csr_", "coo_", "set_", "storage", "offload",
    "init_data", "assign_value", "wait_pipeline", "data_sync", "move_to", "pin_memory", "flush", "data_ptr", "device",
    "reshard", "flash", "fused_", "nsa_", "moe_", "quant", "silent", "lightning", "sparse_", "all_gather_matmul",
    "matmul_reduce", "batch_isend", "generator", "hooks", "from_", "convert_bytes", "item_index", "resize", "_info",
)  # fmt: skip
"""Parts of names of functions that need a device or a job, change the process, or are not about tensors."""


def _square() -> Tensor:
    return Tensor(np.array([[2.0, 0.5, 0.25], [0.5, 2.0, 0.5], [0.25, 0.5, 2.0]], np.float32))


def _index() -> Tensor:
    return Tensor(np.array([0, 2, 1], np.int32))


_ARGUMENTS: list[Callable[[], tuple[Any, ...]]] = [
    lambda: (_square(),),
    lambda: (_square(), _square()),
    lambda: (_square(), 1),
    lambda: (_square(), 0.5),
    lambda: ((_square(), _square()),),
    lambda: (_square(), (3, 3)),
    lambda: (_square(), 0, _index()),
    lambda: (_square(), _index(), 0),
    lambda: (_square(), _square(), _square()),
    lambda: (_square(), _square() > 1, 0.5),
    lambda: (_square() > 1, _square(), _square()),
    lambda: (_square(), 1, 2),
    lambda: ((3, 3),),
    lambda: (3,),
    lambda: (_index(),),
    lambda: (_square(), ms.float32),
    lambda: (_index(), 5),
    lambda: (_square(), (1, 0)),
    lambda: (Tensor(np.linspace(0.1, 0.9, 2 * 4 * 4 * 4, dtype=np.float32).reshape(2, 4, 4, 4)), 2),
]
"""Arguments of a call, one attempt after another."""

Example = tuple[str, Callable[..., Any], Callable[[], tuple[Any, ...]]]


def functions() -> Iterator[tuple[str, Any, str]]:
    """Yield the name in dumps, the namespace and the name there, of all functions that may be called."""
    for key, (namespace, stem) in NAMESPACES.items():
        for name in dir(namespace):
            if name.startswith("_") or any(part in name for part in _LEFT_OUT):
                continue
            raw = inspect.getattr_static(namespace, name)
            if isinstance(raw, types.FunctionType | types.MethodDescriptorType):
                yield f"{key.partition('.')[0]}.{stem}{name}", namespace, name


def examples() -> tuple[int, list[Example]]:
    """Return how many functions there are, and for each that could be called its name, itself and its arguments."""
    found: list[Example] = []
    num_functions = 0
    for label, namespace, name in functions():
        num_functions += 1
        function = getattr(namespace, name)
        for make in _ARGUMENTS:
            try:
                if holds_tensor(function(*make())):
                    found.append((label, function, make))
                    break
            except Exception:  # noqa: BLE001  # not what it takes; without a kernel; not on this device
                continue
    return num_functions, found


def holds_tensor(value: Any) -> bool:
    """Whether there is a tensor in what a call has returned."""
    if isinstance(value, tuple | list):
        return any(map(holds_tensor, value))
    return isinstance(value, Tensor)
