"""The part of a framework's contract about records: names, order, selection and files."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from msprobe_core import names
from msprobe_core.capture import Session
from msprobe_core.model import Phase, SiteKind
from msprobe_core.store import layout
from msprobe_core.store.json_reader import read_json_dump
from msprobe_core.store.tensors import read_tensor
from msprobe_core.testing.contract_base import (
    LEVELS,
    VALUES,
    ContractBase,
)
from msprobe_core.testing.rig import TrainingRig


class RecordContract(ContractBase):
    """What a window records, under which names, and what settings leave out."""

    @pytest.mark.parametrize("level", LEVELS)
    def test_entries_follow_the_grammar_and_the_level(
        self, rig: TrainingRig, open_session: Callable[..., Session], level: str
    ) -> None:
        """Every name can be parsed and formatted; L0 has modules only, L1 has APIs only, mix has both."""
        session = self._record(rig, open_session(level=level))
        entries = self._dump(session)
        session.close()
        sites = [names.parse_entry(entry) for entry in entries]
        assert [names.format_entry(site) for site in sites] == list(entries)
        kinds = {site.kind for site in sites}
        expected = {"L0": {SiteKind.MODULE}, "L1": {SiteKind.API}, "mix": {SiteKind.MODULE, SiteKind.API}}[level]
        assert kinds == (expected if self.records_apis else expected - {SiteKind.API})

    def test_modules_have_both_directions_and_gradients(
        self, rig: TrainingRig, open_session: Callable[..., Session]
    ) -> None:
        """Each module, the root too, has a forward and a backward entry; those with parameters also have gradients."""
        session = self._record(rig, open_session(level="L0"))
        entries = self._dump(session)
        session.close()
        sites = [names.parse_entry(entry) for entry in entries]
        forward = {site.path for site in sites if site.phase is Phase.FORWARD}
        backward = {site.path for site in sites if site.phase is Phase.BACKWARD}
        assert "" in forward
        assert len(forward) >= 3
        assert backward == forward
        with_parameters = {names.parse_entry(name).path for name, record in entries.items() if record.get("parameters")}
        assert {site.path for site in sites if site.phase is Phase.PARAMETERS_GRAD} == with_parameters

    @pytest.mark.parametrize("level", ["L0", "mix"])
    def test_children_come_before_their_parents(
        self, rig: TrainingRig, open_session: Callable[..., Session], level: str
    ) -> None:
        """This holds for the order in the file, in both directions; the stored sequence is that order."""
        session = self._record(rig, open_session(level=level))
        entries = self._dump(session)
        directory = self._directory(session)
        session.close()
        positions = {entry: i for i, entry in enumerate(entries)}
        parents: dict[str, str | None] = json.loads((directory / layout.CONSTRUCT_FILE).read_text())
        nested = [(entry, parent) for entry, parent in parents.items() if parent in positions and entry in positions]
        assert nested
        assert all(positions[entry] < positions[parent] for entry, parent in nested if parent is not None)
        stored = [record["execution"]["sequence"] for record in entries.values()]
        assert stored == list(range(len(stored)))

    def test_indices_count_calls_within_a_step(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """A second window in the same step continues the count; the next step begins at 0."""
        model, session = rig.make_model(3), open_session(level="L0")
        for _ in range(2):
            session.start([model])
            rig.train_step(model, 0)
            session.stop()
        first = self._dump(session)
        session.step()
        session.start([model])
        rig.train_step(model, 0)
        session.stop()
        second = self._dump(session)
        session.close()
        assert {names.parse_entry(entry).index for entry in first} == {0, 1}
        assert {names.parse_entry(entry).index for entry in second} == {0}

    def test_files_are_strict_json_for_the_owner_only(
        self, rig: TrainingRig, open_session: Callable[..., Session]
    ) -> None:
        """No bare NaN, no permissions for others."""
        session = self._record(rig, open_session(level="mix", task="tensor"))
        directory = self._directory(session)
        session.close()
        for name in (layout.DUMP_FILE, layout.STACK_FILE, layout.CONSTRUCT_FILE):
            json.loads((directory / name).read_text(), parse_constant=_refuse)
        for path in [directory, *directory.rglob("*")]:
            assert path.stat().st_mode & 0o077 == 0, path

    def test_tensors_are_kept_as_they_were(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """Every stored tensor has the statistics of its record."""
        session = self._record(rig, open_session(level="mix", task="tensor"))
        directory = self._directory(session)
        session.close()
        frame = read_json_dump(directory / layout.DUMP_FILE).frame.filter(kind="tensor")
        assert frame["file_name"].null_count() == 0
        for row in frame.rows(named=True):
            values = read_tensor(directory / layout.TENSOR_DIRECTORY / row["file_name"]).astype(np.float64)
            assert str(list(values.shape)) == row["shape"]
            assert values.max() == pytest.approx(row["max"], rel=1e-6)
            assert np.sqrt((values**2).sum()) == pytest.approx(row["norm"], rel=1e-5)

    @pytest.mark.parametrize(
        ("modes", "parts"),
        [
            (["forward"], {"input_args", "input_kwargs", "output", "parameters"}),
            (["backward"], {"input", "output"}),
            (["forward", "input"], {"input_args", "input_kwargs", "parameters"}),
            (["output"], {"output"}),
        ],
        ids=["forward", "backward", "forward inputs", "outputs"],
    )
    def test_data_mode(
        self, rig: TrainingRig, open_session: Callable[..., Session], modes: list[str], parts: set[str]
    ) -> None:
        """Only the requested directions and sides are recorded."""
        session = self._record(rig, open_session(level="L0", data_mode=modes))
        entries = self._dump(session)
        session.close()
        found = {
            part
            for entry, record in entries.items()
            if names.parse_entry(entry).phase is not Phase.PARAMETERS_GRAD
            for part in record
        }
        assert found - {"execution", "output_kwargs"} == parts

    def test_list_keeps_what_contains_a_string(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """Only entries whose name contains the string are kept, with the same indices as without it."""
        session = self._record(rig, open_session(level="L0"))
        everything = list(self._dump(session))
        session.close()
        wanted = names.parse_entry(next(e for e in everything if names.parse_entry(e).path)).path
        session = self._record(rig, open_session(level="L0", list=[wanted]))
        kept = list(self._dump(session))
        session.close()
        assert kept == [entry for entry in everything if wanted in entry]

    def test_scope_includes_both_ends(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """From the start of the first entry to the end of the last, inclusive."""
        session = self._record(rig, open_session(level="L0"))
        complete = self._dump(session)
        session.close()
        forwards = [entry for entry in complete if names.parse_entry(entry).phase is Phase.FORWARD]
        children = [entry for entry in forwards if names.parse_entry(entry).path.isidentifier()]
        first, last = children[:2]
        session = self._record(rig, open_session(level="L0", scope=[first, last]))
        scoped = self._dump(session)
        session.close()
        # Nothing runs before the root's first child; everything inside the scope runs before its last entry.
        assert list(scoped) == forwards[: forwards.index(last) + 1]
        assert scoped[last]["output"] == complete[last]["output"]

    def test_values_are_saved_at_level_debug(self, rig: TrainingRig, open_session: Callable[..., Session]) -> None:
        """Without start and stop; values are recorded as they are when saved, in structures of any nesting."""
        session = open_session(level="debug", task="tensor")
        values = VALUES["float32"]
        tensor = rig.make_tensor(values)
        session.save({"k": [tensor, 3]}, "state", save_backward=True)
        if not self.is_immutable:
            rig.overwrite(tensor, -7.0)
        session.step()
        directory = self._directory(session)
        session.close()
        data = json.loads((directory / layout.DEBUG_FILE).read_text(), parse_constant=_refuse)["data"]
        assert data["state_grad.0.debug"] == {"k": [None, None]}
        found, number = data["state.0.debug"]["k"]
        assert number == {"type": "int", "value": 3}
        assert found["Max"] == pytest.approx(values.max())
        np.testing.assert_array_equal(read_tensor(directory / layout.TENSOR_DIRECTORY / found["data_name"]), values)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
