"""Writes ``.pt`` files without PyTorch, also such as PyTorch would never write."""

import io
import pickle
import zipfile
from collections import OrderedDict


class Global:
    """Pickles as a bare name, as torch's own functions and types do."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Storage:
    def __init__(self, kind, key, numel):
        self.kind, self.key, self.numel = kind, key, numel


class Call:
    def __init__(self, function, *args):
        self.function, self.args = function, args


class Pickler(pickle._Pickler):
    """Writes the pickles that ``torch.save`` writes, or an attacker would write."""

    def save(self, value, save_persistent_id=True):
        if isinstance(value, Global):
            self.write(b"c" + value.module.encode() + b"\n" + value.name.encode() + b"\n")
        elif isinstance(value, Call):
            self.save(value.function)
            self.save(value.args)
            self.write(b"R")
        elif isinstance(value, Made):
            self.save(value.function)
            self.save(value.args)
            self.write(b"\x81")
            for item in value.items:
                self.save(item)
                self.write(b"a")
            for pair in value.entries:
                for part in pair:
                    self.save(part)
                self.write(b"s")
            if value.state is not None:
                self.save(value.state)
                self.write(b"b")
        else:
            super().save(value, save_persistent_id)

    def persistent_id(self, value):
        if isinstance(value, Storage):
            return ("storage", value.kind, value.key, "cpu", value.numel)
        return None


def write_pt(path, value, storages=None, *, compression=zipfile.ZIP_STORED, byteorder=b"little", pickler=Pickler):
    buffer = io.BytesIO()
    pickler(buffer, 2).dump(value)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", buffer.getvalue())
        archive.writestr("archive/byteorder", byteorder)
        for key, content in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", content)
    return path


def write_legacy(path, value, storages, *, version=1001, little_endian=True):
    """Write a file as ``torch.save`` did before version 1.6; storages are arrays by key."""
    buffer = io.BytesIO()
    sizes = {"short": 2, "int": 4, "long": 4}
    system = {"protocol_version": version, "little_endian": little_endian, "type_sizes": sizes}
    for part in (0x1950A86A20F9469CFC6C, version, system, value, sorted(storages)):
        Pickler(buffer, 2).dump(part)
    for key in sorted(storages):
        buffer.write(storages[key].size.to_bytes(8, "little") + storages[key].tobytes())
    path.write_bytes(buffer.getvalue())
    return path


class Made:
    """Pickles as an object of any class: its constructor's arguments, its state, what is appended and set."""

    def __init__(self, function, args=(), state=None, items=(), entries=()):
        self.function, self.args, self.state, self.items, self.entries = function, args, state, items, entries


V2 = Global("torch._utils", "_rebuild_tensor_v2")
FLOAT = Global("torch", "FloatStorage")


def tensor(kind=FLOAT, numel=6, offset=0, size=(2, 3), stride=(3, 1)):
    return Call(V2, Storage(kind, "0", numel), offset, size, stride, False, OrderedDict())
