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
    """Writes the pickles that ``torch.save`` writes, or would if somebody meant harm."""

    def save(self, value, save_persistent_id=True):
        if isinstance(value, Global):
            self.write(b"c" + value.module.encode() + b"\n" + value.name.encode() + b"\n")
        elif isinstance(value, Call):
            self.save(value.function)
            self.save(value.args)
            self.write(b"R")
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


V2 = Global("torch._utils", "_rebuild_tensor_v2")
FLOAT = Global("torch", "FloatStorage")


def tensor(kind=FLOAT, numel=6, offset=0, size=(2, 3), stride=(3, 1)):
    return Call(V2, Storage(kind, "0", numel), offset, size, stride, False, OrderedDict())
