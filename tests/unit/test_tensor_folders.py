"""Folders of tensors are compared without a dump."""

import numpy as np
import pytest
from pt_writer import Global, tensor, write_pt
from safetensors.numpy import save_file

from msprobe_core.cli import main
from msprobe_core.compare import compare_dumps
from msprobe_core.errors import CompareError, DumpError

NAMES = ["layer2/k", "layer2/q", "layer10/q", "model/a.w", "model/b/w", "x"]


@pytest.fixture
def folder(tmp_path):
    """Write a folder with every kind of file; tensors named in ``changed`` are given instead."""

    def write(name, **changed):
        rng = np.random.default_rng(0)
        values = {key: rng.normal(size=(4, 5)).astype("float32") for key in NAMES}
        values |= {key: values[key] * factor for key, factor in changed.items()}
        root = tmp_path / name
        for part in ("layer2", "layer10"):
            (root / part).mkdir(parents=True)
        np.save(root / "x.npy", values["x"])
        shaped = {"numel": 20, "size": (4, 5), "stride": (5, 1)}
        write_pt(root / "layer2" / "q.pt", tensor(**shaped), {"0": values["layer2/q"].tobytes()})
        upper = (values["layer2/k"].view("uint32") >> 16).astype("uint16")  # what bfloat16 keeps of it, cut off
        write_pt(root / "layer2" / "k.pt", tensor(Global("torch", "BFloat16Storage"), **shaped), {"0": upper.tobytes()})
        np.save(root / "layer10" / "q.npy", values["layer10/q"])
        save_file({"a.w": values["model/a.w"], "b/w": values["model/b/w"]}, root / "model.safetensors")
        return root

    return write


def run(target, golden, out):
    with pytest.raises(SystemExit) as ended:
        main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out)])
    return ended.value.code


def test_equal_folders_agree(folder, tmp_path, capsys):
    assert run(folder("t"), folder("g"), tmp_path / "out") == 0
    assert "6  pass" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_that_differs_is_found_by_its_name(folder, tmp_path, name):
    target, golden = folder("t", **{name: np.float32(1.2)}), folder("g")
    assert run(target, golden, tmp_path / "out") == 1
    rows = compare_dumps(target, golden).units[0].rows
    (bad,) = rows.filter(verdict="error").iter_rows(named=True)
    assert bad["name_target"] == f"{name}.0.debug"
    assert bad["error"] == pytest.approx(0.2, rel=0.05)


def test_names_are_in_natural_order(folder):
    names = compare_dumps(folder("t"), folder("g")).units[0].rows["name_target"].to_list()
    assert names == [f"{name}.0.debug" for name in NAMES]


def test_a_coarse_tensor_does_not_widen_the_limit_of_its_neighbours(folder):
    rows = compare_dumps(folder("t"), folder("g")).units[0].rows
    assert dict(zip(rows["name_target"], rows["limit"], strict=True)) == {
        f"{name}.0.debug": 0.05 if name == "layer2/k" else 1e-3 for name in NAMES
    }


def test_a_tensor_that_one_side_lacks_is_no_agreement(folder, tmp_path):
    target, golden = folder("t"), folder("g")
    (golden / "x.npy").unlink()
    assert run(target, golden, tmp_path / "out") == 1


@pytest.mark.parametrize("content", [b"", b"no tensor", b"\x80\x04cos\nsystem\n(S'true'\ntR."])
def test_a_file_that_cannot_be_read_is_no_agreement(folder, tmp_path, capsys, content):
    target, golden = folder("t"), folder("g")
    for side in (target, golden):
        (side / "layer2" / "q.pt").write_bytes(content)
    assert run(target, golden, tmp_path / "out") == 2
    assert "q.pt" in capsys.readouterr().out


def test_a_single_file_is_compared(folder):
    target, golden = folder("t", x=np.float32(1.2)), folder("g")
    assert not compare_dumps(target / "x.npy", golden / "x.npy").agrees
    assert compare_dumps(target / "model.safetensors", golden / "model.safetensors").units[0].rows.height == 2


def test_what_a_dump_without_its_record_has_left_is_no_folder(folder, tmp_path):
    run = tmp_path / "run" / "step0"
    for side in ("t", "g"):
        (run / side / "rank0").mkdir(parents=True)
        folder(side).rename(run / side / "rank0" / "dump_tensor_data")
    for pair in ((run / "t", run / "g"), (run / "t" / "rank0", run / "g" / "rank0")):
        with pytest.raises((CompareError, DumpError)):
            compare_dumps(*pair)
