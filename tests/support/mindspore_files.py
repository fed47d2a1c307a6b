"""Writes ``.ckpt`` files of MindSpore without MindSpore."""

import numpy as np

TYPES = {"float32": "Float32", "float64": "Float64", "int64": "Int64", "int32": "Int32", "bool": "Bool"}


def varint(value):
    """Return a number of variable length."""
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def field(number, value):
    """Return a field: a number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(tag, kind, dims, content):
    """Return one value of a checkpoint."""
    inner = b"".join(field(1, size) for size in dims) + field(2, kind.encode()) + field(3, content)
    return field(1, field(1, tag.encode()) + field(2, inner))


def write_checkpoint(path, arrays, text=None, parts=1):
    """Write arrays by name, each in so many parts, and maybe a text."""
    values = b""
    for name, array in arrays.items():
        for part in np.array_split(array.reshape(-1), parts):
            values += tensor(name, TYPES[array.dtype.name], array.shape, part.tobytes())
    if text is not None:
        values += tensor("text", "str", (0,), text.encode("utf-32-le"))
    path.write_bytes(values)
    return path
