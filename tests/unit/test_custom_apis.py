"""Functions that users name, in code or in a file: checked, found when they are there, recorded, and given back."""

import json
import logging
import sys
import types

import numpy as np
import pytest
from numpy_layers import Array, ArrayFramework, Network, train_step
from recorded import Recorded

from msprobe_core.capture import Session
from msprobe_core.capture.custom_apis import CustomApis
from msprobe_core.config import ListedApi, load_config
from msprobe_core.errors import ConfigError, SessionError


def shift(x, by=1.0):
    return Array(x.values + by)


def one(value):
    return Array(np.array([value]))


@pytest.fixture
def extension(monkeypatch):
    module = types.ModuleType("own_extension")
    module.shift = shift
    module.twice = lambda x: module.shift(module.shift(x))
    module.number = 3
    module.fails = lambda x: 1 / 0
    monkeypatch.setitem(sys.modules, "own_extension", module)
    return module


@pytest.fixture
def open_session(tmp_path):
    sessions = []

    def open_session(level="L1", lines=None, **fields):
        if lines is not None:
            (tmp_path / "apis.yaml").write_text(lines)
            fields["custom_apis"] = str(tmp_path / "apis.yaml")
        (tmp_path / "c.json").write_text(json.dumps(fields))
        config = load_config(tmp_path / "c.json", dump_path=tmp_path / "run", level=level)
        session = Session(config, ArrayFramework())
        sessions.append(session)
        return session

    yield open_session
    for session in sessions:
        session.close()


def data(tmp_path, step=0):
    return Recorded(tmp_path / "run", step).data


def test_calls_are_recorded_between_start_and_stop(open_session, extension, tmp_path):
    session = open_session()
    session.custom_apis.register(extension, "shift")
    extension.shift(one(1.0))
    assert extension.shift is shift
    session.start([])
    extension.shift(one(2.0), by=3.0)
    session.stop()
    extension.shift(one(4.0))
    assert extension.shift is shift
    record = data(tmp_path)["own_extension.shift.0.forward"]
    assert list(data(tmp_path)) == ["own_extension.shift.0.forward"]
    assert record["input_args"][0]["Max"] == 2.0
    assert record["input_kwargs"]["by"] == {"type": "float", "value": 3.0}
    assert record["output"][0]["Max"] == 5.0


def test_registering_and_restoring_while_recording(open_session, extension, tmp_path):
    session = open_session()
    session.start([])
    session.custom_apis.register(extension, "shift", "Own")
    extension.shift(one(1.0))
    session.custom_apis.register(extension, "shift", "Other")  # wins
    extension.shift(one(1.0))
    session.custom_apis.restore(extension, "shift")
    assert extension.shift is shift
    extension.shift(one(1.0))
    session.stop()
    assert list(data(tmp_path)) == ["Own.shift.0.forward", "Other.shift.0.forward"]


def test_only_the_outermost_call_is_recorded_and_errors_pass(open_session, extension, tmp_path):
    session = open_session()
    for name in ("shift", "twice", "fails"):
        session.custom_apis.register(extension, name, "Own")
    session.start([])
    assert extension.twice(one(1.0)).values == 3.0
    with pytest.raises(ZeroDivisionError):
        extension.fails(one(1.0))
    extension.shift(one(1.0))
    session.stop()
    assert list(data(tmp_path)) == ["Own.twice.0.forward", "Own.fails.0.forward", "Own.shift.0.forward"]
    assert "output" not in data(tmp_path)["Own.fails.0.forward"]


def test_an_object_without_a_name_is_custom(open_session, tmp_path):
    owner = types.SimpleNamespace(shift=shift)
    session = open_session()
    session.custom_apis.register(owner, "shift")
    session.start([])
    owner.shift(one(1.0))
    session.stop()
    assert list(data(tmp_path)) == ["Custom.shift.0.forward"]
    assert vars(owner) == {"shift": shift}


def test_names_in_other_modules_count_too(open_session, extension, tmp_path, monkeypatch):
    user = types.ModuleType("user_of_extension")
    user.by_name = shift
    monkeypatch.setitem(sys.modules, "user_of_extension", user)
    session = open_session()
    session.custom_apis.register(extension, "shift")
    session.start([])
    user.by_name(one(1.0))
    session.stop()
    assert user.by_name is shift
    assert list(data(tmp_path)) == ["own_extension.shift.0.forward"]


def test_at_level_l0_nothing_is_replaced(open_session, extension, tmp_path):
    session = open_session("L0")
    session.custom_apis.register(extension, "shift")
    model = Network()
    session.start([model])
    assert extension.shift is shift
    train_step(model)
    session.stop()
    assert not [entry for entry in data(tmp_path) if "shift" in entry]


@pytest.mark.parametrize(("owner", "api", "prefix", "expected"), [
    ("extension", "missing", None, "own_extension.missing does not exist; give an object and the name"),
    ("extension", "number", None, "own_extension.number is int, which cannot be called"),
    ("extension", 3, None, "'api' is 3, but must be the name of a function"),
    ("extension", "shift", 3, "own_extension.shift: 'api_prefix' is 3, but must be a word"),
    ("extension", "shift", "", "'api_prefix' is '', but must be a word"),
    ("extension", "shift", "My own", "'api_prefix' is 'My own', but must be a word"),
    (int, "bit_length", None, "int.bit_length cannot be replaced"),
    (None, "shift", None, "Custom.shift does not exist"),
])  # fmt: skip
def test_what_cannot_be_registered_is_a_clear_error(extension, owner, api, prefix, expected):
    before = dict(vars(extension))
    apis = CustomApis()
    with pytest.raises(ConfigError, match=expected):
        apis.register(extension if owner == "extension" else owner, api, prefix)
    assert dict(vars(extension)) == before
    with pytest.raises(SessionError, match="is not registered; give what register_custom_api was given"):
        apis.restore(extension, "shift")


# --- the file -----------------------------------------------------------------------------------------------------


def test_a_file_lists_modules_and_names(open_session, extension, tmp_path):
    session = open_session(lines="own_extension: [shift, twice]\nnumpy_layers.Relu: forward\n")
    session.start([])
    extension.shift(one(1.0))
    extension.twice(one(1.0))
    session.stop()
    assert list(data(tmp_path)) == ["own_extension.shift.0.forward", "own_extension.twice.0.forward"]


def test_what_is_not_there_yet_is_looked_for_again(open_session, monkeypatch, tmp_path, caplog):
    session = open_session(lines="late_extension: [shift]\nnever_there: [f]\nown_extension_x.Y: g\n")
    session.start([])
    session.stop()
    assert "'custom_apis': not found yet, will be looked for at each start: late_extension.shift (Module" in caplog.text
    module = types.ModuleType("late_extension")
    module.shift = shift
    monkeypatch.setitem(sys.modules, "late_extension", module)
    caplog.clear()
    session.start([])
    module.shift(one(1.0))
    session.stop()
    assert list(data(tmp_path)) == ["late_extension.shift.0.forward"]
    assert not caplog.records
    session.close()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "'custom_apis': never found, so not recorded: never_there.f (ModuleNotFoundError" in record.getMessage()
    assert "own_extension_x.Y.g" in record.getMessage()
    assert "late_extension" not in record.getMessage()


def test_a_module_that_breaks_when_it_is_imported_is_named(open_session, tmp_path, monkeypatch, caplog):
    (tmp_path / "breaking_extension.py").write_text("raise RuntimeError('no such device')\n")
    monkeypatch.syspath_prepend(tmp_path)
    session = open_session(lines="breaking_extension: f\n")
    session.start([])
    session.stop()
    assert "breaking_extension.f (RuntimeError: no such device)" in caplog.text


def test_a_module_that_nobody_has_imported_yet_is_imported(open_session, tmp_path, monkeypatch):
    (tmp_path / "fresh_extension.py").write_text("class Kernels:\n    @staticmethod\n    def f(x): return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    session = open_session(lines="fresh_extension.Kernels: f\n")
    session.start([])
    kernels = sys.modules["fresh_extension"].Kernels
    kernels.f(one(1.0))
    session.stop()
    assert list(data(tmp_path)) == ["fresh_extension.Kernels.f.0.forward"]
    assert isinstance(vars(kernels)["f"], staticmethod)
    del sys.modules["fresh_extension"]


@pytest.mark.parametrize(("lines", "expected"), [
    ("- a\n- b\n", "holds list, but must hold lines such as 'my.module: \\[api\\]'"),
    ("3: [f]\n", "3 is not the path of a module"),
    ("a..b: [f]\n", "'a..b' is not the path of a module"),
    ("'os; import x': [f]\n", "is not the path of a module"),
    (f"? {'a' * 4097}\n: [f]\n", "is not the path of a module"),
    ("a.b: 3\n", "'a.b' is 3, but must be the name of a function, or a list of names"),
    ("a.b: [3]\n", "'a.b' lists 3, which is not the name of a function"),
    ("a.b: ['f g']\n", "'a.b' lists 'f g', which is not"),
    (f"a.b: {'f' * 256}\n", "'a.b' lists 'ffff.*which is not"),
    ("a: [\n", "cannot be read"),
    (b"\xff\xfe", "cannot be read"),
    (None, "No such file"),
])  # fmt: skip
def test_a_wrong_file_is_a_clear_error(tmp_path, lines, expected):
    path = tmp_path / "apis.yaml"
    if lines is not None:
        path.write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    with pytest.raises(ConfigError, match=expected) as error:
        load_config(custom_apis=path)
    assert "'custom_apis'" in str(error.value)
    assert str(path) in str(error.value)


def test_a_file_is_part_of_the_configuration(tmp_path):
    path = tmp_path / "apis.yaml"
    path.write_text("a.b: [f, g, f]\nc: h\n")
    assert load_config(custom_apis=path).listed_apis == (
        ListedApi("a.b", "f"), ListedApi("a.b", "g"), ListedApi("c", "h"),
    )  # fmt: skip
    path.write_text("")
    assert load_config(custom_apis=path).listed_apis == ()


# --- risk level ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("block", "expected"), [
    ({}, "CORE"), ({"list": ["x"]}, "ALL"), ({"scope": ["Functional.a.0.forward", "Functional.b.0.forward"]}, "ALL"),
    ({"data_mode": ["forward"]}, "CORE"),
])  # fmt: skip
def test_who_names_entries_gets_them_whatever_risk_they_are(open_session, monkeypatch, block, expected):
    given = []
    attach = ArrayFramework.attach
    monkeypatch.setattr(
        ArrayFramework, "attach", lambda self, models, options, recorder: (
            given.append((options.risk_level, options.custom_op_namespaces)), attach(self, models, options, recorder)
        )[1],
    )  # fmt: skip
    session = open_session(risk_level="CORE", statistics=block)
    session.start([])
    session.stop()
    assert given == [(expected, ("_C_ascend",))]
