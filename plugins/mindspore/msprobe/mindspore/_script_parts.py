"""Functions that scripts have copies of, without their annotations, so that they need NumPy and MindSpore only.

They use what a script defines; the stand-ins here say what that is. In a script, `forward` or `backward` is ``run``.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms

INPUTS: dict[str, Any] = {}
"""By name, the arguments of `load`."""

ALLOWED: dict[str, Any] = {}
"""Has the names of the results."""

LEAVES: dict[str, str] = {}
"""For each argument that a gradient is taken of, the name of its tensor."""


def load(dtype: Any, *place: Any) -> Any:
    """Return a tensor as an array, which holds it exactly: bfloat16 in float32."""
    raise NotImplementedError


def call(x: dict[str, Any], wide: Any) -> Any:
    """Call the function as recorded."""
    raise NotImplementedError


def widest(dtype: Any) -> Any:
    return ms.float64 if dtype in (ms.float16, ms.bfloat16, ms.float32) else dtype


def array(value: Any) -> Any:
    return value.astype(widest(value.dtype)).asnumpy()


def forward(device: str, *, is_wide: bool) -> dict[str, Any]:
    """Return the results by name: in the call's own precision or, exactly, in float64."""
    ms.set_context(device_target={"cpu": "CPU", "cuda": "GPU", "npu": "Ascend"}[device])
    wide = widest if is_wide else lambda dtype: dtype
    x = {name: ms.Tensor(load(*entry)).astype(wide(entry[0])) for name, entry in INPUTS.items()}
    result = call(x, wide)
    result = result if isinstance(result, tuple | list) else [result]
    return {name: array(result[int(name.rpartition(".")[2])]) for name in ALLOWED}


def backward(device: str, *, is_wide: bool) -> dict[str, Any]:
    """Return the gradients by name: in the call's own precision or, exactly, in float64."""
    ms.set_context(device_target={"cpu": "CPU", "cuda": "GPU", "npu": "Ascend"}[device])
    wide = widest if is_wide else lambda dtype: dtype
    x = {name: ms.Tensor(load(*entry)).astype(wide(entry[0])) for name, entry in INPUTS.items()}
    leaves, given = list(dict.fromkeys(LEAVES.values())), [name for name in x if name.startswith("gradient of ")]

    def ends(*values: Any) -> Any:
        result = call({**x, **dict(zip(leaves, values, strict=True))}, wide)
        result = result if isinstance(result, tuple | list) else [result]
        return tuple(result[int(name[12:].rpartition(".")[2])] for name in given)

    at = [x[leaf] for leaf in leaves]
    incoming = tuple(x[name].astype(end.dtype) for name, end in zip(given, ends(*at), strict=True))
    found = ms.ops.GradOperation(get_all=True, sens_param=True)(ends)(*at, incoming)  # pyright: ignore[reportAttributeAccessIssue]
    return {name: found[leaves.index(leaf)].astype(ms.float64).asnumpy() for name, leaf in LEAVES.items()}
