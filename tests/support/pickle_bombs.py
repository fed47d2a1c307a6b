"""Small pickles that would take much time or memory if they were executed."""

import functools
import struct
from collections import OrderedDict

from pt_writer import FLOAT, V2, Call, Global, Storage, tensor


def shared(levels):
    """Return a tuple of 2 ** ``levels`` parts, all of them one and the same, whose pickle has as many operations."""
    value = (1,)
    for _ in range(levels):
        value = (value, value)
    return value


SHARED = b"K\x01\x85" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60))

PICKLE_BOMBS = {
    "a key that is hashed": b"\x80\x02}" + SHARED + b"K\x01s.",
    "a copy that is hashed": b"\x80\x02}K\x01\x85" + b"2\x86" * 60 + b"K\x01s.",
    "a part of a set": b"\x80\x04\x8f(" + SHARED + b"\x90.",
    "a table by number": b"\x80\x02K\x01r" + struct.pack("<I", (1 << 32) - 1) + b".",
    "an array": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",
    "a frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b".",
    "an integer": b"\x80\x02\x8b" + struct.pack("<i", (1 << 31) - 1) + b"1.",
    "digits": b"\x80\x02I" + b"9" * 1_000_000 + b"\n.",
    "marks": b"\x80\x02" + b"(" * 1_000_000 + b".",
    "tuples": b"\x80\x02)" + b"\x85" * 1_000_000 + b".",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "nothing": b"",
    "no end": b"\x80\x02K\x01",
    "below the stack": b"\x80\x020.",
    "a tuple of too few": b"\x80\x02K\x01\x87.",
    "a call of nothing": b"\x80\x02N)R.",
    "persistent nothing": b"\x80\x02Q.",
    "sizes": tensor(size=shared(60)),
    "offset": tensor(offset=shared(60)),
    "a key": Call(V2, Storage(FLOAT, shared(60), 6), 0, (2, 3), (3, 1), False, OrderedDict()),
    "a storage": Call(V2, Storage(shared(60), "0", 6), 0, (2, 3), (3, 1), False, OrderedDict()),
    "arguments": Call(V2, *shared(3), shared(60)),
    "parameters": functools.reduce(
        lambda value, _: Call(Global("torch._utils", "_rebuild_parameter"), value), range(200), tensor()
    ),
    "a view": tensor(numel=1, size=(1 << 33,), stride=(0,)),
    "a subclass": Call(Global("torch._tensor", "_rebuild_from_type_v2"), V2, Global("torch", "Tensor"), shared(60), ()),
}  # fmt: skip
