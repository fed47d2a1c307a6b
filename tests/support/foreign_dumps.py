"""Foreign files of tensors, built from the published layouts by other code than that of the readers."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np

ACL_CODES = {
    "float32": 0, "float16": 1, "int8": 2, "int32": 3, "uint8": 4, "int16": 6, "uint16": 7, "uint32": 8, "int64": 9,
    "uint64": 10, "float64": 11, "bool": 12, "complex64": 16, "complex128": 17, "bfloat16": 27, "float8_e5m2": 35,
    "float8_e4m3fn": 36,
}  # fmt: skip
DUMP_CODES = {
    "float32": 1, "float16": 2, "int8": 3, "uint8": 4, "int16": 5, "uint16": 6, "int32": 7, "int64": 8, "uint32": 9,
    "uint64": 10, "bool": 11, "float64": 12, "complex64": 16, "complex128": 17, "bfloat16": 27, "float8_e5m2": 34,
    "float8_e4m3fn": 35,
}  # fmt: skip
SIZES = {
    "float32": 4, "float16": 2, "int8": 1, "int32": 4, "uint8": 1, "int16": 2, "uint16": 2, "uint32": 4, "int64": 8,
    "uint64": 8, "float64": 8, "bool": 1, "complex64": 8, "complex128": 16, "bfloat16": 2, "float8_e5m2": 1,
    "float8_e4m3fn": 1,
}  # fmt: skip
SHAPES = [(), (0,), (3,), (2, 3, 4), (1, 0, 5)]


def elements(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return bytes for a tensor: every one of them different from its neighbours, and 0 or 1 for booleans."""
    count = int(np.prod(shape, dtype=int)) * SIZES[dtype]
    values = np.arange(count) * 37 + 11
    return (values % (2 if dtype == "bool" else 251)).astype(np.uint8).tobytes()


def atb(content: bytes, code: int, shape: tuple[int, ...], *, end: str = "$End=1", form: int = 2) -> bytes:
    """Return a file of ATB with one object."""
    lines = [
        "$Version=1.0", "$Object.Count=1", f"$Object.Length={len(content)}", f"format={form}", f"dtype={code}",
        f"dims={','.join(map(str, shape))}", f"$Object.data=0,{len(content)}", end,
    ]  # fmt: skip
    return "\n".join(lines).encode() + b"\n" + content


def dump_messages():
    """Return the message class ``DumpData``, as the protobuf library makes it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="dump_data.proto", package="toolkit.dumpdata", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name, *fields):
        made = file.message_type.add(name=name)
        for number, field, kind, repeated in fields:
            one = made.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, str):
                one.type, one.type_name = kinds.TYPE_MESSAGE, f".toolkit.dumpdata.{kind}"
            else:
                one.type = kind

    number, text, data = kinds.TYPE_UINT64, kinds.TYPE_STRING, kinds.TYPE_BYTES
    message("Shape", (1, "dim", number, True))
    message("OriginalOp", (1, "name", text, False), (2, "output_index", kinds.TYPE_UINT32, False))
    message(
        "OpInput", (1, "data_type", number, False), (2, "format", number, False), (3, "shape", "Shape", False),
        (4, "data", data, False), (5, "size", number, False), (6, "original_shape", "Shape", False),
        (7, "sub_format", kinds.TYPE_INT32, False),
    )  # fmt: skip
    message(
        "OpOutput", (1, "data_type", number, False), (2, "format", number, False), (3, "shape", "Shape", False),
        (4, "original_op", "OriginalOp", False), (5, "data", data, False), (6, "size", number, False),
        (7, "original_shape", "Shape", False), (8, "sub_format", kinds.TYPE_INT32, False),
    )  # fmt: skip
    message("OpBuffer", (1, "buffer_type", number, False), (2, "data", data, False), (3, "size", number, False))
    message(
        "DumpData", (1, "version", text, False), (2, "dump_time", number, False), (3, "output", "OpOutput", True),
        (4, "input", "OpInput", True), (5, "buffer", "OpBuffer", True), (6, "op_name", text, False),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("toolkit.dumpdata.DumpData"))


def cann_dump(inputs=(), outputs=(), buffers=(), *, space: bytes = b"", op_name: str = "MatMul") -> bytes:
    """Return a dump of CANN.

    Args:
        inputs: Of each its bytes, code of its dtype, shape, format, and shape before the format.
        outputs: The same.
        buffers: Bytes of each.
        space: Bytes that the header gives to nothing.
        op_name: Name of the operator.
    """
    header = dump_messages()(version="2.0", dump_time=1700000000, op_name=op_name)
    for parts, target in ((outputs, header.output), (inputs, header.input)):
        for content, code, shape, *rest in parts:
            form, plain = (*rest, *(2, ())[len(rest) :])
            one = target.add(data_type=code, format=form, size=len(content))
            one.shape.dim.extend(shape)
            one.original_shape.dim.extend(plain)
    for content in buffers:
        header.buffer.add(size=len(content))
    text = header.SerializeToString()
    contents = [part[0] for part in (*inputs, *outputs)] + list(buffers)
    return len(text).to_bytes(8, "little") + text + b"".join(contents) + space


def npz(members: dict[str, np.ndarray], *, compresses: bool = False) -> bytes:
    """Return an archive of NumPy."""
    buffer = io.BytesIO()
    (np.savez_compressed if compresses else np.savez)(buffer, **members)
    return buffer.getvalue()


def many_members(count: int) -> bytes:
    """Return a zip archive whose table of contents lists very many members, and holds one."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", b"")
    content = bytearray(buffer.getvalue())
    place = content.rfind(b"PK\x05\x06")
    # The numbers of a small archive have 16 bits; a wide record has more.
    wide = b"PK\x06\x06" + (44).to_bytes(8, "little") + b"\x2d\x00\x2d\x00" + bytes(8)
    wide += count.to_bytes(8, "little") * 2 + (46 * count).to_bytes(8, "little") + bytes(8)
    pointer = b"PK\x06\x07" + bytes(4) + place.to_bytes(8, "little") + (1).to_bytes(4, "little")
    return bytes(content[:place]) + wide + pointer + bytes(content[place:])


def safetensors(tensors: dict[str, tuple[str, tuple[int, ...], int, int]], content: bytes) -> bytes:
    """Return a file of safetensors; of each tensor its dtype, shape, begin and end."""
    header = json.dumps(
        {name: {"dtype": d, "shape": s, "data_offsets": [b, e]} for name, (d, s, b, e) in tensors.items()}
    ).encode()
    return len(header).to_bytes(8, "little") + header + content


def to_nz(values: np.ndarray, size: int = 16) -> np.ndarray:
    """Return a matrix, or several, in CANN's format FRACTAL_NZ: blocks of 16 rows, column of blocks by column."""
    *batch, height, width = values.shape
    num_h, num_w = -(-height // 16), -(-width // size)
    padded = np.zeros((*batch, num_h * 16, num_w * size), values.dtype)
    padded[..., :height, :width] = values
    blocks = padded.reshape(*batch, num_h, 16, num_w, size)
    order = (*range(len(batch)), *(len(batch) + i for i in (2, 0, 1, 3)))
    return np.ascontiguousarray(blocks.transpose(order))


def to_five_dims(values: np.ndarray, size: int = 16) -> np.ndarray:
    """Return NCHW values in NC1HWC0."""
    num, channels, height, width = values.shape
    num_c = -(-channels // size)
    padded = np.zeros((num, num_c * size, height, width), values.dtype)
    padded[:, :channels] = values
    return np.ascontiguousarray(padded.reshape(num, num_c, size, height, width).transpose(0, 1, 3, 4, 2))


def to_fractal_z(values: np.ndarray, size: int = 16) -> np.ndarray:
    """Return NCHW values in FRACTAL_Z."""
    num, channels, height, width = values.shape
    num_c, num_n = -(-channels // size), -(-num // 16)
    padded = np.zeros((num_n * 16, num_c * size, height, width), values.dtype)
    padded[:num, :channels] = values
    blocks = padded.reshape(num_n, 16, num_c, size, height, width).transpose(2, 4, 5, 0, 1, 3)
    return np.ascontiguousarray(blocks).reshape(num_c * height * width, num_n, 16, size)


def write_sglang(directory: Path, values: dict[tuple[int, int, str, int | None], np.ndarray]) -> None:
    """Write files as SGLang's dumper names and fills them; keys are step, rank, name and layer."""
    import torch

    directory.mkdir(parents=True, exist_ok=True)
    for index, ((step, rank, name, layer), array) in enumerate(values.items(), 1):
        tags = {"step": step, "rank": rank, "dump_index": index, "name": name, "recompute_status": "disabled"}
        if layer is not None:
            tags["layer_id"] = layer
        file = "___".join(f"{key}={value}" for key, value in tags.items()) + ".pt"
        torch.save({"value": torch.from_numpy(array), "meta": tags}, directory / file)
