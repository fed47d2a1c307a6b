"""What a plugin promises to the manifest of a run, as tests that each plugin with a `DescribingFramework` inherits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from msprobe_core.capture import Session
from msprobe_core.capture.window import Model
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.manifest.facts import RunFacts
from msprobe_core.protocols.capabilities import DescribingFramework, ForwardDescribingFramework
from msprobe_core.store.manifest_file import DATA_ROWS_FILE, MANIFEST_FILE, read_data_rows, read_manifest
from msprobe_core.testing.contract_base import RiggedContract, bits_of, session_of
from msprobe_core.testing.rig import MonitoredRig

Array: TypeAlias = NDArray[Any]

_RNG = np.random.default_rng(7)

ROWS: dict[str, Array] = {
    "int64": _RNG.integers(0, 50_000, (6, 33)),
    "int64, long": _RNG.integers(0, 50_000, (3, 70_000)),
    "int64, vector": np.arange(9),
    "int32": _RNG.integers(-5, 50_000, (5, 7)).astype(np.int32),
    "uint8": _RNG.integers(0, 255, (4, 3, 2)).astype(np.uint8),
    "float32": _RNG.normal(size=(4, 3, 5, 5)).astype(np.float32),
    "float16": _RNG.normal(size=(40_000, 2)).astype(np.float16),
    "bool": _RNG.integers(0, 2, (3, 1, 8, 8)).astype(bool),
    "no rows": np.zeros((0, 4), np.int64),
    "no columns": np.zeros((4, 0), np.int64),
}
"""Arrays whose rows' hashes are compared with those of NumPy."""


class ManifestContract(RiggedContract[MonitoredRig]):
    """Inherit it, and provide the fixture ``rig``."""

    @pytest.fixture
    def framework(self, rig: MonitoredRig) -> DescribingFramework:
        """Return the same framework, which must describe runs."""
        framework = rig.framework
        assert isinstance(framework, DescribingFramework)
        return framework

    @pytest.fixture
    def open_session(self, rig: MonitoredRig, tmp_path: Path) -> Callable[..., Session]:
        """Return a function that creates a session with the given settings, writing under ``tmp_path / "run"``."""

        def make(**settings: Any) -> Session:
            return session_of(rig, tmp_path, {"level": "L0", "step": [0, 2], **settings})

        return make

    def test_switches_of_a_forward_have_the_names_of_those_of_the_run(self, framework: DescribingFramework) -> None:
        """They replace them in the manifest."""
        if not isinstance(framework, ForwardDescribingFramework):
            pytest.skip("no switch is set around a forward")
        switches = framework.forward_switches()
        assert switches
        assert switches.keys() <= framework.run_facts([]).switches.keys()

    def test_the_model_is_described(self, rig: MonitoredRig, framework: DescribingFramework) -> None:
        """Every module and parameter once, with shape and dtype, each module before its children."""
        model = rig.make_model(3)
        rig.train_step(model, 0)
        (described,) = framework.run_facts([Model("", model)]).models
        assert described.name == ""
        paths = [module.path for module in described.modules]
        assert paths[0] == ""
        assert len(set(paths)) == len(paths) > 2
        for place, path in enumerate(paths[1:], 1):
            assert path.rpartition(".")[0] in paths[:place], path
        state = {name: values for name, values in rig.state_of(model).items() if not name.endswith(".grad")}
        found = {
            f"{module.path}.{each.name}".lstrip("."): each
            for module in described.modules
            for each in module.parameters
            if not each.is_buffer
        }
        assert found.keys() == state.keys()
        for name, values in state.items():
            assert found[name].shape == values.shape
            assert found[name].dtype == str(values.dtype)
            assert found[name].takes_gradient
        assert any(module.settings for module in described.modules)
        assert all(module.type.rpartition(".")[2].isidentifier() for module in described.modules)

    def test_several_models_keep_their_names(self, rig: MonitoredRig, framework: DescribingFramework) -> None:
        """In order, each with all of its modules."""
        facts = framework.run_facts([Model("0", rig.make_model(0)), Model("1", rig.make_model(1))])
        assert [model.name for model in facts.models] == ["0", "1"]
        assert facts.models[0].modules == facts.models[1].modules

    def test_the_framework_is_described(self, framework: DescribingFramework) -> None:
        """Its version, a device, switches and random generators; also without a model, and as JSON and back."""
        facts = framework.run_facts([])
        assert facts.framework.name
        assert facts.framework.version[0].isdigit()
        assert facts.device.kind
        assert facts.switches
        names = [generator.name for generator in facts.generators]
        assert {"python", "numpy"} < set(names)
        assert len(set(names)) == len(names)
        assert facts.models == ()
        assert msgspec.json.decode(msgspec.json.encode(facts), type=RunFacts) == facts

    def test_random_states_are_told_apart(self, framework: DescribingFramework) -> None:
        """And neither advanced nor set by being looked at."""
        state = np.random.get_state()  # the global generator of the program
        try:
            first = {each.name: each.state for each in framework.run_facts([]).generators}
            assert {each.name: each.state for each in framework.run_facts([]).generators} == first
            np.random.random()
            later = {each.name: each.state for each in framework.run_facts([]).generators}
            assert {name for name in first if first[name] != later[name]} == {"numpy"}
        finally:
            np.random.set_state(state)

    @pytest.mark.parametrize("case", ROWS)
    def test_rows_are_hashed_as_numpy_does(self, rig: MonitoredRig, framework: DescribingFramework, case: str) -> None:
        """One hash per slice along the first dimension, also if the tensor is overwritten afterwards."""
        values = ROWS[case]
        tensor = rig.make_tensor(values)
        pending = framework.row_hashes(tensor)
        if values.size:
            rig.overwrite(tensor, 1)
        assert pending is not None
        hashes = pending.hashes()
        assert hashes is not None
        assert list(hashes) == [int(hash_of(row).view(np.uint64)[0]) for row in values]

    def test_integers_of_any_width_agree(self, rig: MonitoredRig, framework: DescribingFramework) -> None:
        """Token ids are often cast on their way."""
        found: list[list[int]] = []
        for dtype in (np.int64, np.int32):
            pending = framework.row_hashes(rig.make_tensor(ROWS["int32"].astype(dtype)))
            assert pending is not None
            found.append(list(pending.hashes() or ()))
        assert found[0] == found[1]

    def test_a_tensor_without_rows_has_no_hashes(self, rig: MonitoredRig, framework: DescribingFramework) -> None:
        """A scalar, such as a number of items in the batch."""
        assert framework.row_hashes(rig.make_tensor(np.array(4))) is None

    def test_training_is_bitwise_unchanged(self, rig: MonitoredRig, open_session: Callable[..., Session]) -> None:
        """With and without a manifest; afterwards nothing is attached."""
        trained: list[Any] = []
        for is_described in (True, False):
            model = rig.make_model(3)
            optimizer = rig.make_adam(model)
            before = rig.traces_in(model)
            session = open_session() if is_described else None
            losses: list[str] = []
            for step in range(3):
                if session is not None:
                    session.start([model])
                losses.append(rig.train_with(model, optimizer, step).hex())
                if session is not None:
                    session.stop()
                    assert rig.traces_in(model) == before
                    session.step()
            if session is not None:
                session.close()
            trained.append((losses, bits_of(rig.state_of(model))))
        assert trained[0] == trained[1]

    def test_it_is_written_once(self, rig: MonitoredRig, open_session: Callable[..., Session], tmp_path: Path) -> None:
        """Beside the first recorded dump, with optimizers and data; beside later ones only the data."""
        model = rig.make_model(3)
        optimizer = rig.make_adam(model)
        session = open_session()
        for step in range(3):
            session.start([model])
            rig.train_with(model, optimizer, step)
            session.stop()
            session.step()
        session.close()
        (first,) = (tmp_path / "run").glob(f"*/*/{MANIFEST_FILE}")
        assert first.parent.parent.name == "step0"
        manifest = read_manifest(first)
        assert manifest.notes == ()
        names = {name for name in rig.state_of(model) if not name.endswith(".grad")}
        (found,) = manifest.run.optimizers
        assert "adam" in found.type.lower()
        assert {name for group in found.groups for name in group.parameters} == names
        assert [group.settings["lr"] for group in found.groups] == [pytest.approx(0.01)] * len(found.groups)
        assert found.state_dtypes
        assert manifest.data
        assert all(rows.step == 0 and rows.count == len(rows.rows) > 0 for rows in manifest.data)
        (later,) = (tmp_path / "run").glob(f"*/*/{DATA_ROWS_FILE}")
        assert later.parent.parent.name == "step2"
        assert [(rows.name, rows.step) for rows in read_data_rows(later.parent)] == [
            (rows.name, 2) for rows in read_data_rows(first.parent)
        ]

    def test_it_can_be_switched_off(
        self, rig: MonitoredRig, open_session: Callable[..., Session], tmp_path: Path
    ) -> None:
        """The dump is as before."""
        model = rig.make_model(3)
        session = open_session(manifest=False)
        session.start([model])
        rig.train_step(model, 0)
        session.close()
        assert list((tmp_path / "run").glob("*/*/dump.json"))
        assert not list((tmp_path / "run").glob(f"*/*/{MANIFEST_FILE}"))
