"""Checked calls in the data of a page: which files are found, whose they are, and what the answer is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checked_calls import call, output, some_calls
from dumps import api, tensor, write_dump

from msprobe_core.api_check.verdict import CallVerdict, Verdict
from msprobe_core.errors import CompareError
from msprobe_core.report.api_check_files import CHECK_FILE, write_checks
from msprobe_core.view.build import build
from msprobe_core.view.data import State, ViewData, text_of
from msprobe_core.view.inputs import subject_of
from msprobe_core.view.stored_graphs import StoredGraphs

ENTRY = "Torch.add.0.forward"
WRONG = call(ENTRY, Verdict.WRONG, 5.0)


@pytest.fixture
def graphs() -> Iterator[StoredGraphs]:
    held = StoredGraphs()
    yield held
    held.close()


def write_rank(directory: Path, *, factor: float = 1.0) -> Path:
    """Write the dump of a rank, and return its directory."""
    record: dict[str, Any] = {ENTRY: api(tensor([1.0, 2.0]), output=tensor([factor, 3.0]))}
    write_dump(directory, record, end={"state": "complete", "calls": 1, "windows": 1})
    return directory


def viewed(graphs: StoredGraphs, subject: Path) -> ViewData:
    """Return the data of a page, as the command builds it."""
    found = subject_of(subject)
    return build(found.target, found.golden, graphs, checks=found.checks)


def texts(data: ViewData) -> list[str]:
    """Return the notes."""
    return [text_of(note) for note in data.notes]


class TestFiles:
    def test_each_rank_of_a_run_has_its_own(self, tmp_path: Path, graphs: StoredGraphs) -> None:
        for rank, verdict in enumerate((call(ENTRY), WRONG)):
            dump = write_rank(tmp_path / "run" / "step0" / f"rank{rank}")
            write_checks([verdict], dump, dump=Path("as/it/was/called"))
        data = viewed(graphs, tmp_path / "run")
        assert [(each.unit, each.counts["wrong"]) for each in data.checked] == [(0, 0), (1, 1)]
        assert data.verdict.state is State.FAULT
        assert text_of(data.verdict.sentence) == f"1 of 1 checked call is wrong: {ENTRY}"

    def test_a_result_names_its_dump(self, tmp_path: Path, graphs: StoredGraphs) -> None:
        dump = write_rank(tmp_path / "run" / "step0" / "rank0")
        write_checks([WRONG], tmp_path / "result", dump=dump / "dump.json")
        for subject in (tmp_path / "result", tmp_path / "result" / CHECK_FILE):
            data = viewed(graphs, subject)
            assert [each.unit for each in data.checked] == [0]
            assert len(data.units) == 1

    def test_a_result_of_a_dump_that_is_gone_is_shown_alone(self, tmp_path: Path, graphs: StoredGraphs) -> None:
        write_checks(some_calls(), tmp_path, dump=Path("/nowhere/dump.json"))
        data = viewed(graphs, tmp_path)
        assert (len(data.units), data.checked[0].unit) == (0, None)
        assert data.sides.target.path == "/nowhere/dump.json"

    def test_a_run_with_a_file_in_its_directory_is_the_run(self, tmp_path: Path, graphs: StoredGraphs) -> None:
        for rank in range(2):
            write_rank(tmp_path / "step0" / f"rank{rank}")
        write_checks([WRONG], tmp_path, dump=tmp_path / "step0" / "rank1")
        data = viewed(graphs, tmp_path)
        assert (len(data.units), [each.unit for each in data.checked]) == (2, [1])

    def test_a_pair_has_those_of_its_target(self, tmp_path: Path, graphs: StoredGraphs) -> None:
        target, golden = (write_rank(tmp_path / side, factor=factor) for side, factor in (("t", 2.0), ("g", 1.0)))
        write_checks([WRONG], target, dump=target)
        data = build(target, golden, graphs)
        assert [each.unit for each in data.checked] == [0]
        assert "checked" not in text_of(data.verdict.sentence)

    def test_a_damaged_file_beside_a_dump_is_a_note(self, tmp_path: Path, graphs: StoredGraphs) -> None:
        (write_rank(tmp_path) / CHECK_FILE).write_text("{")
        data = viewed(graphs, tmp_path)
        assert not data.checked
        assert any(f"{CHECK_FILE}: is not what msprobe acc_check writes" in note for note in texts(data))

    def test_a_damaged_file_that_was_asked_for_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / CHECK_FILE).write_text('{"version": 1}')
        with pytest.raises(CompareError, match="is not what msprobe acc_check writes"):
            subject_of(tmp_path / CHECK_FILE)


class TestContent:
    def shown(self, graphs: StoredGraphs, directory: Path, *calls: CallVerdict) -> ViewData:
        write_checks(calls, directory, dump=Path("/nowhere/a dump"))
        return viewed(graphs, directory)

    def test_calls_are_by_effect_and_then_in_the_order_of_the_dump(self, tmp_path: Path, graphs: StoredGraphs) -> None:
        (dump,) = self.shown(graphs, tmp_path, *some_calls()).checked
        assert [each.entry for each in dump.calls[:5]] == [
            "Torch.div.0.forward", "Functional.softmax.1.forward", "Tensor.mul.0.forward", "Torch.sub.0.forward",
            "Functional.embedding.0.forward",
        ]  # fmt: skip
        assert len(dump.calls) == 10
        assert (dump.weak, dump.counts["cannot_tell"]) == (1, 3)
        reason, count = dump.reasons[0]
        assert (text_of(reason), count) == ("it draws random numbers", 2)

    def test_the_deciding_output_comes_first(self, tmp_path: Path, graphs: StoredGraphs) -> None:
        weak = output(accepted=output().applied[:5], path="2")
        outputs = (output(path="0", times=0.9), output(path="1", times=0.1), weak)
        data = self.shown(graphs, tmp_path, call("Torch.a.0.forward", outputs=outputs))
        assert [each.path for each in data.checked[0].calls[0].outputs] == ["2", "0", "1"]

    def test_numbers_that_json_lacks_are_text(self, tmp_path: Path, graphs: StoredGraphs) -> None:
        odd = output(Verdict.WRONG, math.inf, error=math.nan)
        (dump,) = self.shown(graphs, tmp_path, call("Torch.a.0.forward", Verdict.WRONG, outputs=(odd,))).checked
        assert (dump.calls[0].outputs[0].times, dump.calls[0].outputs[0].error) == ("inf", "nan")

    def test_the_command_ends_in_a_place_for_the_call(self, tmp_path: Path, graphs: StoredGraphs) -> None:
        (dump,) = self.shown(graphs, tmp_path, WRONG).checked
        assert dump.command == "msprobe acc_check -api_info '/nowhere/a dump' --script {entry}"

    @pytest.mark.parametrize(
        ("verdict", "state"),
        [(Verdict.WRONG, State.FAULT), (Verdict.SUSPECT, State.NONE), (Verdict.RIGHT, State.NONE)],
    )
    def test_only_wrong_calls_are_a_fault(
        self, tmp_path: Path, graphs: StoredGraphs, verdict: Verdict, state: State
    ) -> None:
        data = self.shown(graphs, tmp_path, call(ENTRY, verdict, 5.0 if verdict is not Verdict.RIGHT else 0.5))
        assert data.verdict.state is state

    def test_a_nan_stays_the_first_sentence(self, tmp_path: Path, graphs: StoredGraphs) -> None:
        write_dump(tmp_path, {ENTRY: api(tensor([1.0, 2.0]), output=tensor([math.nan, 3.0]))})
        write_checks([WRONG], tmp_path, dump=tmp_path)
        data = viewed(graphs, tmp_path)
        assert data.verdict.state is State.FAULT
        assert "checked" not in text_of(data.verdict.sentence)
        assert data.checked

    def test_texts_are_findings(self, tmp_path: Path, graphs: StoredGraphs) -> None:
        (dump,) = self.shown(graphs, tmp_path, *some_calls()).checked
        assert not isinstance(dump.headline, str)
        assert dump.headline.code == "acc-check.headline.wrong-several"
        assert json.loads(json.dumps(dump.headline.fields)) == dump.headline.fields
