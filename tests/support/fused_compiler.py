"""Compile the kernels for a GPU that is not here, for every kind of arguments that they are launched with."""

import triton.language as tl
from msprobe.pytorch import _fused
from triton import compiler
from triton.backends.compiler import GPUTarget

HOPPER = GPUTarget("cuda", 90, 32)
COUNTS = {"one": ("constexpr", {(1,): 1}), "few": ("i32", {}), "many": ("i64", {})}
"""How Triton passes the number of elements: 1 is a constant."""


def compiled(kernel, pointer, rows, count, constants):
    kind, one = COUNTS[count]
    names = kernel.arg_names[3:]
    signature = {"pointer": pointer, "count": kind, "rows": rows, **dict.fromkeys(names, "constexpr")}
    values = {(index,): value for index, value in enumerate(constants, 3)}
    source = compiler.ASTSource(fn=kernel, signature=signature, constexprs={**one, **values})
    return "cubin" in compiler.compile(source, target=HOPPER, options={"num_warps": _fused._WARPS}).asm


for count in COUNTS:
    for pointer in ("*fp32", "*bf16", "*fp16", "*fp64"):
        wide = tl.float64 if pointer == "*fp64" else tl.float32
        assert compiled(_fused._moments, pointer, "*fp64", count, (wide, _fused._BLOCK))
        print("moments", pointer, count)
    for pointer in ("*i8", "*i16", "*i32", "*i64"):
        assert compiled(_fused._hashed, pointer, "*i64", count, (_fused._BLOCK,))
        print("hashed", pointer, count)
