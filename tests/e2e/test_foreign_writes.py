"""What code outside of PyTorch's dispatcher writes to tensors shows in every record, at every level."""

import ctypes
import json
import shutil
import subprocess
import zlib

import numpy as np
import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded, leaves
from torch import nn
from torch.utils.dlpack import from_dlpack, to_dlpack

from msprobe_core.locate import FaultKind, locate

SOURCE = "void scale(float *x, long n, float by) { for (long i = 0; i < n; i++) x[i] *= by; }"


@pytest.fixture(scope="module")
def scale(tmp_path_factory):
    """A function in C that multiplies a tensor in place, as an extension does: without a version or a call to see."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    directory = tmp_path_factory.mktemp("kernel")
    (directory / "scale.c").write_text(SOURCE)
    library = directory / "scale.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, directory / "scale.c"], check=True)
    function = ctypes.CDLL(str(library)).scale
    function.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_float]

    def run(x, factor=100.0):
        with torch._C.DisableTorchFunction():  # an extension asks in C++
            address, count = x.detach().data_ptr(), x.numel()
        function(address, count, factor)

    return run


def by_numpy(x):
    array = np.from_dlpack(from_dlpack(to_dlpack(x.detach())))
    array *= 100.0


def by_another_tensor(x):
    other = torch.empty(0)
    other.set_(x.detach())
    other.mul_(100.0)


def by_preserving_the_version(x):
    with torch.autograd._unsafe_preserve_version_counter(x), torch.no_grad():
        x.mul_(100.0)


WRITERS = {"kernel": None, "dlpack": by_numpy, "set_": by_another_tensor, "version": by_preserving_the_version}


@pytest.fixture(params=WRITERS)
def write(request):
    """Each way to write to a tensor unseen: by a factor of 100."""
    return request.getfixturevalue("scale") if request.param == "kernel" else WRITERS[request.param]


class Scaling(nn.Module):
    """Doubles what it gets, has code outside of PyTorch write to that, and hands it on."""

    def __init__(self, write):
        super().__init__()
        self.first, self.second = nn.Identity(), nn.Identity()
        self.write = write

    def forward(self, x):
        y = self.first(x * 1)
        self.write(y)
        return self.second(y) + 0


@pytest.fixture
def record(tmp_path, close_debugger):
    def run(model, level, *inputs, name="run", task="statistics", summary_mode="statistics"):
        settings = {"risk_level": "ALL", task: {"summary_mode": summary_mode}}
        (tmp_path / "config.json").write_text(json.dumps(settings))
        debugger = PrecisionDebugger(tmp_path / "config.json", dump_path=tmp_path / name, level=level, task=task)
        with debugger.start(model):
            output = model(*inputs)
            if output.requires_grad:
                output.sum().backward()
        debugger.close()
        return Recorded(tmp_path / name)

    return run


def forward_and_around(data):
    """Return the maxima before and after the writing: of the modules, and of the calls if there are any."""
    first, second = data["Module.first.Identity.forward.0"], data["Module.second.Identity.forward.0"]
    before, after = [first["output"][0]], [*second["input_args"], *second["output"]]
    if "Tensor.__mul__.0.forward" in data:
        before.append(data["Tensor.__mul__.0.forward"]["output"][0])
        after.append(data["Tensor.__add__.0.forward"]["input_args"][0])
    return before, [*after, data["Module.Scaling.forward.0"]["output"][0]]


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("takes_gradient", [False, True])
def test_what_is_written_unseen_between_two_calls_is_recorded(write, level, takes_gradient, record):
    x = torch.ones(3, requires_grad=takes_gradient)
    before, after = forward_and_around(record(Scaling(write), level, x).data)
    assert [value["Max"] for value in before] == [1.0] * len(before)
    assert [value["Max"] for value in after] == [100.0] * len(after)


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("summary_mode", ["md5", "xor", "hash", "sketch"])
def test_so_is_it_in_checksums(scale, level, summary_mode, record):
    kept = "sketch" if summary_mode == "sketch" else "md5"
    before, after = forward_and_around(record(Scaling(scale), level, torch.ones(3), summary_mode=summary_mode).data)
    assert len({value[kept] for value in before}) == len({value[kept] for value in after}) == 1
    assert before[0][kept] != after[0][kept]
    if summary_mode == "md5":
        assert after[0]["md5"] == f"{zlib.crc32(np.full(3, 100, np.float32).tobytes()):08x}"


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_files_of_tensors_say_what_the_records_say(scale, level, record):
    dump = record(Scaling(scale), level, torch.ones(3), task="tensor")
    values = [value for entry in dump.data.values() for value in leaves(entry).values() if "data_name" in value]
    assert len(values) > 5
    for value in values:
        assert dump.tensor(value).max() == value["Max"]


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("risk_level", ["ALL", "FOCUS"])
def test_fresh_memory_that_a_kernel_fills_has_statistics(scale, level, risk_level, tmp_path, close_debugger):
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level)
    x, layer = torch.ones(3), nn.Identity()
    with debugger.start(layer):
        for _ in range(2):  # the second may get the memory of the first, with what it holds
            filled = torch.empty_like(x)
            with torch._C.DisableTorchFunction():
                filled.numpy()[:] = 1.0
            scale(filled)
            layer(filled)
            torch.relu(filled)
            del filled
    debugger.close()
    data = Recorded(tmp_path / "run").data
    for i in range(2):
        assert data[f"Torch.relu.{i}.forward"]["input_args"][0]["Max"] == 100.0
        if level == "mix":
            assert data[f"Module.Identity.forward.{i}"]["input_args"][0]["Max"] == 100.0


def test_parameters_and_their_gradients_are_read_as_they_are(scale, record):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3, bias=False)
            nn.init.ones_(self.fc.weight)
            self.fc.weight.register_hook(lambda gradient: scale(gradient))

        def forward(self, x):
            first = self.fc(x)
            scale(self.fc.weight, 2.0)
            return first.detach() + self.fc(x)

    data = record(Layer(), "mix", torch.ones(1, 3)).data
    seen = [data[f"Module.fc.Linear.forward.{i}"]["parameters"]["weight"]["Max"] for i in range(2)]
    assert seen == [data[f"Functional.linear.{i}.forward"]["input_args"][1]["Max"] for i in range(2)] == [1.0, 2.0]
    assert data["Functional.linear.1.backward"]["output"][1]["Max"] == 1.0
    assert data["Module.fc.Linear.parameters_grad.0"]["weight"][0]["Max"] == 100.0


def test_gradients_that_a_hook_writes_to_are_read_as_they_are(scale, record):
    class Layers(nn.Module):
        def forward(self, x):
            y = x * 2
            y.register_hook(lambda gradient: scale(gradient))
            return y.relu()

    data = record(Layers(), "mix", torch.ones(3, requires_grad=True)).data
    assert data["Tensor.relu.0.backward"]["output"][0]["Max"] == 1.0
    assert data["Tensor.__mul__.0.backward"]["output"][0]["Max"] == 200.0


@pytest.mark.parametrize(
    ("level", "entry", "kind"),
    [
        ("L0", "Module.Scaling.forward.0", FaultKind.SCALE),
        ("L1", "Tensor.__add__.0.forward", FaultKind.OUTSIDE),
        ("mix", "Module.Scaling.forward.0", FaultKind.SCALE),
    ],
)
def test_what_a_kernel_does_is_not_blamed_on_the_next_call(scale, level, entry, kind, record, tmp_path):
    for name, write in (("golden", lambda _: None), ("target", scale)):
        record(Scaling(write), level, torch.arange(1.0, 4), name=name)
    first = locate(tmp_path / "target", tmp_path / "golden").suspects[0]
    assert (first.entry, first.kind) == (entry, kind)


@pytest.mark.slow
def test_what_an_extension_of_pybind11_writes_is_recorded(record, tmp_path, monkeypatch):
    if shutil.which("c++") is None or shutil.which("ninja") is None:
        pytest.skip("there is no C++ compiler, or no ninja")
    from torch.utils import cpp_extension

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    code = """
        torch::Tensor scale(torch::Tensor x) {
            float *p = x.data_ptr<float>();
            for (int64_t i = 0; i < x.numel(); i++) p[i] *= 100.0f;
            return x;
        }"""
    extension = cpp_extension.load_inline("scaling", code, functions="scale", extra_cflags=["-O0"])
    for level in ("L0", "mix"):
        dump = record(Scaling(extension.scale), level, torch.ones(3), name=level)
        before, after = forward_and_around(dump.data)
        assert [value["Max"] for value in before] == [1.0] * len(before)
        assert [value["Max"] for value in after] == [100.0] * len(after)
