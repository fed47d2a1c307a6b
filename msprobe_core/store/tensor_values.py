"""Dtypes of stored tensors: how NumPy reads their bytes, and which NumPy dtype represents their values exactly."""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def widen(values: Array, dtype: str) -> Array:
    """Return stored values in a dtype that NumPy has; bfloat16, float8 and complex32 as float32 and complex64.

    Args:
        values: Of any shape, as read by ``DTYPES[dtype]``.
        dtype: Without a framework's name.
    """
    if dtype == "bfloat16":
        # asarray: NumPy converts a 0-d array to a scalar here.
        bits: Any = np.asarray(values.astype(np.uint32) << np.uint32(16))
        return bits.view(np.float32)
    if dtype.startswith("float8_"):
        return np.asarray(float8_values(dtype)[values])
    if dtype == "complex32":
        codes = cast("Any", np.ravel(np.ascontiguousarray(values)))
        return np.reshape(codes.view(np.float16).astype(np.float32).view(np.complex64), values.shape)
    return values


def float8_values(dtype: str) -> NDArray[np.float32]:
    """Return the values of the 256 codes of a float8 dtype.

    Raises:
        KeyError: the dtype is unknown.
    """
    if dtype == _EXPONENT_ONLY:
        codes = np.arange(256)
        return np.asarray(np.where(codes == 255, np.nan, np.ldexp(1.0, codes - 127)), np.float32)
    return _float8_table(*_FLOAT8[dtype])


_EXPONENT_ONLY = "float8_e8m0fnu"
"""Source: OCP Microscaling Formats 1.0, 5.4.1."""


class _Special(Enum):
    """Form of the codes that are not numbers."""

    IEEE = "infinities and NaN at the largest exponent"
    FINITE = "NaN at the largest code of either sign"
    UNSIGNED_ZERO = "NaN in the place of negative zero, and a bias one larger"


@cache
def _float8_table(num_exponent_bits: int, num_mantissa_bits: int, special: _Special) -> NDArray[np.float32]:
    """Return the value of each code.

    Sources: Micikevicius et al., FP8 Formats for Deep Learning, 2022, table 1; for the formats without a negative zero
    Noune et al., 8-bit Numerical Formats for Deep Neural Networks, 2022.
    """
    codes = np.arange(256)
    exponent = (codes >> num_mantissa_bits) & (2**num_exponent_bits - 1)
    mantissa = codes & (2**num_mantissa_bits - 1)
    bias = 2 ** (num_exponent_bits - 1) - (special is not _Special.UNSIGNED_ZERO)
    is_normal = exponent > 0
    fraction = mantissa / 2.0**num_mantissa_bits + is_normal
    value = fraction * 2.0 ** (np.maximum(exponent, 1) - bias)
    is_top = exponent == 2**num_exponent_bits - 1
    if special is _Special.IEEE:
        value[is_top] = np.where(mantissa[is_top] == 0, np.inf, np.nan)
    elif special is _Special.FINITE:
        value[is_top & (mantissa == 2**num_mantissa_bits - 1)] = np.nan
    else:
        value[128] = np.nan
    value[codes >= 128] *= -1
    return value.astype(np.float32)


_FLOAT8 = {
    "float8_e4m3fn": (4, 3, _Special.FINITE), "float8_e5m2": (5, 2, _Special.IEEE),
    "float8_e4m3fnuz": (4, 3, _Special.UNSIGNED_ZERO), "float8_e5m2fnuz": (5, 2, _Special.UNSIGNED_ZERO),
}  # fmt: skip

DTYPES: dict[str, str] = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "complex128": "<c16",
    "complex64": "<c8", "int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "|i1", "uint64": "<u8",
    "uint32": "<u4", "uint16": "<u2", "uint8": "|u1", "bool": "|b1", "float8_e4m3fn": "|u1", "float8_e5m2": "|u1",
    "float8_e4m3fnuz": "|u1", "float8_e5m2fnuz": "|u1", "float8_e8m0fnu": "|u1", "complex32": "<u4",
}  # fmt: skip
"""NumPy's dtype for the stored bytes of each dtype."""

SAFETENSORS_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
"""Dtype of each of the names in a shard's header. Source: safetensors 0.8."""

_CODES: dict[str, tuple[int | None, int | None]] = {
    "float32": (0, 1), "float16": (1, 2), "int8": (2, 3), "uint8": (4, 4), "int16": (6, 5), "uint16": (7, 6),
    "int32": (3, 7), "int64": (9, 8), "uint32": (8, 9), "uint64": (10, 10), "bool": (12, 11), "float64": (11, 12),
    "complex64": (16, 16), "complex128": (17, 17), "bfloat16": (27, 27), "complex32": (33, None),
    "float8_e5m2": (35, 34), "float8_e4m3fn": (36, 35), "float8_e8m0fnu": (37, 36),
}  # fmt: skip
"""Numbers of each dtype in files that CANN writes: its ``aclDataType``, and the ``OutputDataType`` of its dumps.

Sources: CANN's interface reference, aclDataType; the enumeration of data types of its dump data, which is another one.
"""

ACL_DTYPES = {acl: dtype for dtype, (acl, _) in _CODES.items() if acl is not None}
"""Dtype of each number of ``aclDataType`` that NumPy can read; others, such as 4-bit types, are missing."""

DUMP_DTYPES = {dump: dtype for dtype, (_, dump) in _CODES.items() if dump is not None}
"""Dtype of each number in the header of a dump of CANN."""
