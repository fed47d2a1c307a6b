"""What plugins contribute to manifests: the settings of trainers."""

import json
from types import SimpleNamespace

import pytest
from numpy_layers import ArrayFramework, Network, train_step

from msprobe_core.capture import Session
from msprobe_core.capture.described_process import ProcessManifest
from msprobe_core.config import load_config
from msprobe_core.hookspecs import hookimpl
from msprobe_core.plugins import Plugin, registry
from msprobe_core.protocols.trainers import RunSettings
from msprobe_core.store.manifest_file import MANIFEST_FILE, find_manifest, read_manifest


@pytest.fixture
def offered():
    """Return a function that registers a plugin with these offers."""

    def offer(*offers):
        module = SimpleNamespace(
            __doc__="An example.", msprobe_register_run_settings=hookimpl(lambda: offers), __name__="example"
        )
        registry().add(Plugin("example", None, "test"), lambda: module)

    yield offer
    if registry().manager.get_plugin("example") is not None:
        registry().manager.unregister(name="example")
    registry()._plugins.pop("example", None)


@pytest.fixture
def recorded(tmp_path):
    """Return a function that records a step, and returns its manifest."""

    def record():
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"level": "L0", "step": [0]}))
        config = load_config(path, dump_path=str(tmp_path / "run"))
        session = Session(config, ArrayFramework())
        net = Network()
        session.start([net])
        train_step(net, 0)
        session.stop()
        session.close()
        (found,) = (tmp_path / "run").rglob(MANIFEST_FILE)
        return read_manifest(found)

    return record


def test_settings_of_a_trainer_are_in_the_manifest(offered, recorded):
    offered(RunSettings("mytrainer", lambda: {"optim.lr": 1e-6, "nested": {"deep": [1, 2]}}))
    assert recorded().settings["mytrainer"] == {"optim.lr": 1e-6, "nested.deep": "[1, 2]"}


def test_secrets_among_them_are_not_kept(offered, recorded):
    offered(RunSettings("mytrainer", lambda: {"wandb.api_key": "a-b-c", "logger": "hf_AbCdEfGh1234567890xyz"}))
    text = repr(recorded().settings["mytrainer"])
    assert "a-b-c" not in text
    assert "hf_" not in text


def test_a_trainer_that_is_not_in_use_is_left_out(offered, recorded):
    offered(RunSettings("mytrainer", lambda: None))
    assert "mytrainer" not in recorded().settings


def test_a_failure_is_a_note_and_costs_no_other_settings(offered, recorded):
    def fail():
        raise SystemExit("planted")

    offered(RunSettings("broken", fail), RunSettings("mytrainer", lambda: {"lr": 1.0}))
    manifest = recorded()
    assert manifest.settings["mytrainer"] == {"lr": 1.0}
    assert [note for note in manifest.notes if note.startswith("settings of broken: ")]


def test_a_recording_without_a_session_has_a_manifest_too(offered, tmp_path):
    offered(RunSettings("mytrainer", lambda: {"lr": 1.0}))
    ProcessManifest(tmp_path / "rank_0", ArrayFramework(), rank=3).complete()
    manifest = read_manifest(tmp_path / "rank_0" / MANIFEST_FILE)
    assert manifest.rank == 3
    assert manifest.settings["mytrainer"] == {"lr": 1.0}
    unit = tmp_path / "rank_0" / "Net" / "0" / "1"
    unit.mkdir(parents=True)
    assert find_manifest(unit) == tmp_path / "rank_0" / MANIFEST_FILE


def test_one_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "rank_0").write_text("a file")
    ProcessManifest(tmp_path / "rank_0", ArrayFramework()).complete()
    assert "the manifest of this run is incomplete: the file: " in caplog.text
