"""The manifest that recording writes, with a framework that describes what a test plants."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from numpy_layers import Array, ArrayFramework, Network, train_step
from secret_corpus import SECRETS

from msprobe_core.capture import Session
from msprobe_core.capture.manifests import Manifests
from msprobe_core.config import load_config
from msprobe_core.errors import DumpError
from msprobe_core.fingerprint import hash_rows
from msprobe_core.manifest import (
    Device,
    Library,
    Model,
    Module,
    Optimizer,
    ParameterGroup,
    RunFacts,
    common_generators,
)
from msprobe_core.manifest.secrets import NOT_KEPT
from msprobe_core.plugins import registry
from msprobe_core.store.manifest_file import find_manifest, read_data_rows, read_manifest


class Rows:
    def __init__(self, values):
        self.values = values

    def hashes(self):
        return hash_rows(self.values).view(np.uint64).tolist()


class Described(ArrayFramework):
    """A framework whose settings are those of a test."""

    settings: ClassVar[dict] = {}

    def run_facts(self, models):
        layers = [(path, layer) for model in models for path, layer in model.model.named_layers()]
        modules = tuple(
            Module(path=path, type=f"numpy_layers.{type(layer).__name__}", settings=self.settings)
            for path, layer in layers
        )
        return RunFacts(
            framework=Library(name="arrays", version="1.0"), device=Device(kind="cpu"),
            switches=self.settings, generators=tuple(common_generators()),
            models=(Model(settings=self.settings, modules=modules),) if models else (), settings=self.settings,
        )  # fmt: skip

    def optimizers_of(self, models):
        names = [f"{path}.{name}" for model in models for path, layer in model.model.named_layers()
                 for name in layer.parameters]  # fmt: skip
        group = ParameterGroup(settings={"lr": 0.1, **self.settings}, parameters=tuple(names))
        return [Optimizer(type="SGD", defaults=self.settings, groups=(group,))]

    def row_hashes(self, tensor):
        return Rows(tensor.values.copy()) if tensor.values.ndim else None


@pytest.fixture
def open_session(tmp_path):
    def make(framework=None, manifests=None, run="run", **settings):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"level": "L0", **settings}))
        config = load_config(path, dump_path=str(tmp_path / run))
        return Session(config, framework or Described(), manifests=manifests)

    return make


def run(session, steps=(0,), model=None):
    model = model or Network()
    for step in steps:
        session.start([model])
        train_step(model, step)
        session.stop()
        session.step()
    session.close()
    return model


def manifests_in(directory: Path) -> dict[str, Path]:
    return {path.parent.parent.name: path for path in sorted(directory.glob("step*/*/manifest.json"))}


def test_nothing_secret_is_in_the_bytes(tmp_path, open_session, monkeypatch):
    """In variables, arguments, settings of modules, optimizers and trainers, and as names."""
    for place, (name, value) in enumerate(SECRETS):
        monkeypatch.setenv(f"NCCL_{place}_{name}".replace("=", "-"), str(value).replace("\0", ""))
    arguments = [word for place, (name, value) in enumerate(SECRETS) for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    Described.settings = {f"{place}.{name}": value for place, (name, value) in enumerate(SECRETS)}
    offer = SimpleNamespace(name="trainer", read=lambda: Described.settings)
    monkeypatch.setattr(type(registry()), "run_settings", lambda _: {"trainer": offer})
    try:
        run(open_session(manifests=Manifests()))
    finally:
        Described.settings = {}
    (path,) = manifests_in(tmp_path / "run").values()
    content = path.read_text()
    texts = {str(value) for _, value in SECRETS if len(str(value)) > 4}
    assert len(texts) >= 60
    assert {text for text in texts if text in content or json.dumps(text)[1:-1] in content} == set()
    manifest = read_manifest(path)
    assert set(manifest.settings["trainer"].values()) == {NOT_KEPT}
    assert manifest.notes == ()


@pytest.mark.parametrize("task", ["statistics", "tensor", "structure"])
@pytest.mark.parametrize("writer", ["json", "arrow"])
def test_every_task_and_writer(tmp_path, open_session, task, writer):
    run(open_session(task=task, writer=writer, level="mix"), steps=(0, 1))
    assert list(manifests_in(tmp_path / "run")) == ["step0"]
    manifest = read_manifest(manifests_in(tmp_path / "run")["step0"])
    assert [(rows.name, rows.step, rows.count) for rows in manifest.data] == [("args.0", 0, 6)]
    later = next((tmp_path / "run" / "step1").iterdir())
    assert [rows.step for rows in read_data_rows(later)] == [1]
    assert find_manifest(later) == manifests_in(tmp_path / "run")["step0"]


def test_level_debug_has_one_too(tmp_path, open_session):
    session = open_session(level="debug")
    session.save(Array(np.ones(3)), "x", save_backward=False)
    session.step()
    session.close()
    manifest = read_manifest(manifests_in(tmp_path / "run")["step0"])
    assert manifest.run.framework.name == "arrays"
    assert manifest.notes == ("start() got no model, so no modules are described",)


def test_unselected_steps_have_none(tmp_path, open_session):
    run(open_session(step=[2, 3]), steps=range(5))
    assert list(manifests_in(tmp_path / "run")) == ["step2"]
    assert len(list((tmp_path / "run").glob("*/*/data_rows.json"))) == 1


def test_an_earlier_run_in_the_same_place_leaves_nothing(tmp_path, open_session):
    manifests = Manifests()
    run(open_session(manifests=manifests), steps=(0, 1))
    (rows,) = (tmp_path / "run").glob("*/*/data_rows.json")
    run(open_session(manifest=False), steps=(0, 1))
    assert not manifests_in(tmp_path / "run")
    assert not rows.exists()
    run(open_session(manifests=manifests), steps=(0, 1))
    assert list(manifests_in(tmp_path / "run")) == ["step0"]


def test_sessions_of_one_debugger_write_one(tmp_path, open_session):
    manifests = Manifests()
    first = open_session(manifests=manifests)
    run(first)
    second = open_session(manifests=manifests)
    second.begin_at(1)
    run(second)
    assert list(manifests_in(tmp_path / "run")) == ["step0"]


class Failing(Described):
    fails: str = ""

    def run_facts(self, models):
        if self.fails == "run_facts":
            raise RuntimeError("planted")
        return super().run_facts(models)

    def optimizers_of(self, models):
        if self.fails == "optimizers_of":
            raise SystemExit(3)
        return super().optimizers_of(models)

    def row_hashes(self, tensor):
        if self.fails == "row_hashes":
            raise MemoryError
        return super().row_hashes(tensor)


@pytest.mark.parametrize("fails", ["run_facts", "optimizers_of", "row_hashes"])
def test_a_failure_is_a_note(tmp_path, open_session, caplog, fails):
    framework = Failing()
    framework.fails = fails
    with caplog.at_level(logging.WARNING):
        run(open_session(framework), steps=(0, 1))
    manifest = read_manifest(manifests_in(tmp_path / "run")["step0"])
    (note,) = manifest.notes
    assert note.split(": ")[1].split(":")[0] in ("RuntimeError", "SystemExit", "MemoryError")
    assert bool(manifest.run.models) == (fails != "run_facts")
    assert bool(manifest.run.optimizers) == (fails != "optimizers_of")
    assert bool(manifest.data) == (fails != "row_hashes")
    assert sum("manifest of this run is incomplete" in message for message in caplog.messages) == 1
    assert len(list((tmp_path / "run").glob("*/*/dump.json"))) == 2


def test_a_directory_in_its_place_harms_nothing(tmp_path, open_session, monkeypatch):
    session = open_session()
    session.start([Network()])
    (place,) = (tmp_path / "run" / "step0").iterdir()
    (place / "manifest.json").unlink()
    (place / "manifest.json").mkdir()
    train_step(Network())
    session.close()
    assert (place / "dump.json").stat().st_size


def test_a_plugin_that_describes_nothing_has_one_of_the_core(tmp_path, open_session):
    run(open_session(ArrayFramework()))
    manifest = read_manifest(manifests_in(tmp_path / "run")["step0"])
    assert manifest.libraries
    assert manifest.notes == ("the plugin for numpy does not describe runs",)


def test_forwards_are_numbered_and_rows_told_apart(tmp_path, open_session):
    session = open_session()
    model = Network()
    session.start([model])
    batch = np.arange(20.0).reshape(5, 4)
    for values in (batch, batch[::-1].copy()):
        model.forward(Array(values))
    session.close()
    first, second = read_manifest(manifests_in(tmp_path / "run")["step0"]).data
    assert (first.micro_step, second.micro_step) == (0, 1)
    assert first.unordered == second.unordered
    assert first.ordered != second.ordered
    assert first.rows == second.rows[::-1]


KILLED = """
import sys
sys.path[:0] = {path!r}
from test_manifest_recording import *
config = load_config(None, dump_path={run!r}, level="L0")
session = Session(config, Described())
session.start([Network()])
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_survives_the_end_of_the_process(tmp_path):
    path = [str(Path(__file__).parent), *sys.path]
    program = KILLED.format(path=path, run=str(tmp_path / "run"))
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    (found,) = manifests_in(tmp_path / "run").values()
    assert read_manifest(found).run.models[0].modules


def test_only_its_owner_may_read_it(tmp_path, open_session):
    run(open_session(), steps=(0, 1))
    for path in (tmp_path / "run").glob("*/*/*.json"):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"schema": 99}', b'{"schema": 1, "data": 3}', b"\xff\xfe"])
def test_damaged_files_say_so(tmp_path, content):
    for name, read in (("manifest.json", read_manifest), ("data_rows.json", lambda path: read_data_rows(path.parent))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DumpError, match=name):
            read(tmp_path / name)
