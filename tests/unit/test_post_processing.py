"""Tensors are multiplied by matrices before they are compared."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe_core.cli.main import main
from msprobe_core.compare import post_processing
from msprobe_core.compare.pairs import UnitPair
from msprobe_core.compare.post_processing import Factors, PostProcessing, Product, load_post_processing
from msprobe_core.compare.unit import CompareOptions, compare_unit
from msprobe_core.errors import ConfigError, DumpError
from msprobe_core.store.tensor_source import HeldTensor


@pytest.fixture
def matrix(tmp_path):
    def write(name, values):
        np.save(tmp_path / name, values)
        return tmp_path / name

    return write


def whole(product, num_elements=7):
    chunks = list(product.chunks(num_elements))
    assert all(chunk.size <= num_elements for chunk in chunks)
    return np.concatenate(chunks).reshape(product.shape)


def test_the_published_example(matrix):
    factors = Factors(right=matrix("m.npy", np.diag([2.0, 2.0])))
    found = whole(Product("x", HeldTensor(np.array([[1.0, 2.0], [3.0, 4.0]])), factors))
    assert found.tolist() == [[2.0, 4.0], [6.0, 8.0]]


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_products_are_those_of_numpy(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("product")
    sizes = st.integers(1, 6)
    shape = tuple(data.draw(st.lists(sizes, min_size=1, max_size=4)))
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    values = rng.standard_normal(shape)
    which = data.draw(st.sampled_from(["left", "right"] + ["both"] * (len(shape) > 1)))
    expected, files = values, {}
    if which != "left":
        right = rng.standard_normal((shape[-1], data.draw(sizes)))
        expected = expected @ right
        np.save(directory / "right.npy", right)
        files["right"] = directory / "right.npy"
    if which != "right":
        left = rng.standard_normal((data.draw(sizes), shape[-2] if len(shape) > 1 else shape[0]))
        expected = left @ expected
        np.save(directory / "left.npy", left)
        files["left"] = directory / "left.npy"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(post_processing, "_CHUNK", data.draw(st.integers(1, 30)))
        product = Product("x", HeldTensor(values), Factors(**files))
        assert product.shape == expected.shape
        np.testing.assert_allclose(whole(product, data.draw(st.integers(1, 30))), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [("float16", "float32"), ("float32", "float32"), ("float64", "float64"), ("int64", "float64")],
)
def test_narrow_floats_stay_float32(matrix, stored, dtype):
    factors = Factors(right=matrix("m.npy", np.eye(2)))
    product = Product("x", HeldTensor(np.ones((3, 2), stored)), factors)
    assert product.dtype == dtype
    assert whole(product).dtype == dtype


@pytest.mark.parametrize(
    ("values", "factors", "expected"),
    [
        (np.ones((2, 3)), {"right": 4}, r"x: has the shape \(2, 3\), and cannot be multiplied from the right by the "),
        (np.ones((2, 3)), {"left": 3}, "cannot be multiplied from the left"),
        (np.ones(3), {"left": 3, "right": 3}, "cannot be multiplied from both sides"),
        (np.array(1.0), {"right": 1}, "takes no part in a product"),
        (np.array(["a"]), {"right": 1}, "takes no part in a product"),
        (np.ones(3, np.complex64), {"right": 3}, "takes no part in a product"),
    ],
)
def test_what_does_not_fit_says_so(matrix, values, factors, expected):
    files = {side: matrix(f"{side}.npy", np.eye(size)) for side, size in factors.items()}
    with pytest.raises(DumpError, match=expected):
        Product("x", HeldTensor(values), Factors(**files))


def test_large_tensors_are_multiplied_from_the_right_only(matrix, monkeypatch):
    monkeypatch.setattr(post_processing, "_MAX_WHOLE_BYTES", 100)
    values = HeldTensor(np.ones((5, 3)))
    with pytest.raises(DumpError, match="too large to multiply from the left"):
        Product("x", values, Factors(left=matrix("l.npy", np.ones((1, 5)))))
    assert whole(Product("x", values, Factors(right=matrix("r.npy", np.eye(3))))).sum() == 15


# --- the file ---------------------------------------------------------------------------------------------------


def write(directory, text):
    np.save(directory / "r.npy", np.eye(2))
    np.save(directory / "l.npy", np.eye(2))
    np.save(directory / "vector.npy", np.ones(2))
    (directory / "config.yaml").write_text(text)
    return directory / "config.yaml"


BOTH = """
mode: left_right_matmul
left_target_tensor_map: {l.npy: [a.pt]}
right_target_tensor_map: {r.npy: [a.pt]}
right_golden_tensor_map: {r.npy: [b.pt]}
left_golden_tensor_map:
"""


@pytest.mark.parametrize(
    ("text", "target", "golden"),
    [
        ("mode: right_matmul\ntarget_tensor_map: {r.npy: [a, b]}", {"a": (None, "r"), "b": (None, "r")}, {}),
        ("mode: left_matmul\ngolden_tensor_map: {l.npy: a.pt}", {}, {"a.pt": ("l", None)}),
        (BOTH, {"a.pt": ("l", "r")}, {"b.pt": (None, "r")}),
    ],
    ids=["right", "left", "both"],
)
def test_files_say_what_is_multiplied(tmp_path, text, target, golden):
    def factors(side):
        files = {name: [file and tmp_path / f"{file}.npy" for file in pair] for name, pair in side.items()}
        return {name: Factors(*pair) for name, pair in files.items()}

    found = load_post_processing(write(tmp_path, text))
    assert found == PostProcessing(factors(target), factors(golden))
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- 1", "holds list, but must hold the fields"),
        ("mode: x: y", r"cannot be read \(mapping values are not allowed"),
        ("mode: turn", "'mode' is 'turn', but must be one of right_matmul, left_matmul, left_right_matmul"),
        ("target_tensor_map: {}", "'mode' is None, but must be one of"),
        ("mode: right_matmul", "names no tensor; list them under target_tensor_map or golden_tensor_map"),
        (
            "mode: right_matmul\nleft_target_tensor_map: {}",
            "'left_target_tensor_map' is unknown with mode right_matmul",
        ),
        ("mode: right_matmul\ntarget_tensor_map: [a]", r"'target_tensor_map' is \['a'\], but must map files"),
        ("mode: right_matmul\ntarget_tensor_map: {r.bin: [a]}", "'r.bin', which is no .npy or .pt file with a matrix"),
        ("mode: right_matmul\ntarget_tensor_map: {no.npy: [a]}", r"no\.npy: cannot be read \(No such file"),
        ("mode: right_matmul\ntarget_tensor_map: {vector.npy: [a]}", r"shape \(2,\), not a matrix of real numbers"),
        ("mode: right_matmul\ntarget_tensor_map: {r.npy: [[a]]}", r"lists \['a'\] under r.npy, which is no file name"),
        ("mode: right_matmul\ntarget_tensor_map: {r.npy: [a, a]}", "lists 'a' twice"),
        ("mode: right_matmul\ntarget_tensor_map: {r.npy: [a], l.npy: [a]}", "lists 'a' twice"),
        ("mode: !!python/object/apply:os.system [true]", "cannot be read"),
    ],
)
def test_files_that_say_something_else_are_refused(tmp_path, text, expected):
    with pytest.raises(ConfigError, match=expected) as raised:
        load_post_processing(write(tmp_path, text))
    assert str(raised.value).startswith(str(tmp_path / "config.yaml"))


def write_dump(directory, arrays):
    (directory / "dump_tensor_data").mkdir(parents=True)
    data = {}
    for i, (name, values) in enumerate(arrays.items()):
        np.save(directory / "dump_tensor_data" / name, values)
        record = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(values.shape), "requires_grad": False}
        record |= {"Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 1.0, "data_name": name}
        data[f"Functional.relu.{i}.forward"] = {"input_args": [], "input_kwargs": {}, "output": [record]}
    content = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data}
    (directory / "dump.json").write_text(json.dumps(content))
    return directory / "dump.json"


def test_a_matrix_that_does_not_fit_is_why_a_call_was_not_compared(tmp_path, matrix, capsys):
    matrix("back.npy", np.eye(16))
    for side in ("t", "g"):
        write_dump(tmp_path / side, {"c.npy": np.ones((8, 5), np.float32)})
    (tmp_path / "config.yaml").write_text("mode: right_matmul\ntarget_tensor_map: {back.npy: [c.npy]}")
    paths = ["-tp", f"{tmp_path}/t", "-gp", f"{tmp_path}/g", "-o", f"{tmp_path}/out"]
    with pytest.raises(SystemExit) as ended:
        main(["compare", *paths, "--config", f"{tmp_path}/config.yaml"])
    assert ended.value.code == 1
    assert (
        "output could not be compared: c.npy: has the shape (8, 5), and cannot be multiplied" in capsys.readouterr().out
    )


def test_rotated_activations_agree_once_they_are_rotated_back(tmp_path, matrix):
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.standard_normal((16, 16)))
    plain = rng.standard_normal((8, 16)).astype(np.float32)
    rotated = (plain @ rotation).astype(np.float32)
    matrix("back.npy", rotation.T)
    target = write_dump(tmp_path / "t", {"a.npy": rotated, "b.npy": rotated, "c.npy": plain[:, :5]})
    golden = write_dump(tmp_path / "g", {"a.npy": plain, "b.npy": plain, "c.npy": plain[:, :5]})
    (tmp_path / "config.yaml").write_text("mode: right_matmul\ntarget_tensor_map: {back.npy: [a.npy, c.npy, d.npy]}")
    options = CompareOptions(post_processing=load_post_processing(tmp_path / "config.yaml"))
    unit = compare_unit(UnitPair("", None, None, target, golden), options)
    first, second, third = unit.rows.select("error", "problem").rows()
    assert first[0] < 1e-6
    assert second[0] > 0.1
    assert "cannot be multiplied from the right by the matrix of the shape (16, 16)" in third[1]
    assert "tensors of the target that were multiplied by a matrix first: 2" in unit.notes
    assert any("are not in the target: 1; the first is d.npy" in note for note in unit.notes)
