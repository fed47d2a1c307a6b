"""The search over steps, on trainings that are made up, and its journal."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from msprobe_core.bisect_steps.answer_report import cost_of, headline_of, rows_of, table_lines, write_result
from msprobe_core.bisect_steps.checkpoint_pairs import checkpoints_of, distance_of
from msprobe_core.bisect_steps.journal import Journal
from msprobe_core.bisect_steps.replays import last_line
from msprobe_core.bisect_steps.search import Judgement, Outcome, Search
from msprobe_core.config import load_config
from msprobe_core.config.requested_windows import REQUEST_VARIABLE, WindowRequest
from msprobe_core.errors import CompareError, ConfigError, DumpError, StoreError


@dataclass
class MadeUp:
    """Two trainings whose target is wrong from a step on, and whose kernels may round otherwise."""

    wrong_from: float
    rounding: float = 0.0
    until: float = math.inf
    """First step that is right again; the weights stay wrong."""
    repeats: bool = True
    """Whether the fault comes back in a replay."""
    rounds_from: int = 0
    has_other_start: bool = False
    windows: list = field(default_factory=list)
    calibrated: list = field(default_factory=list)
    compared: list = field(default_factory=list)

    def distance(self, step):
        self.compared.append(step)
        if self.has_other_start:
            return 1.0
        wrong = max(0, min(step, self.until) - self.wrong_from)
        return 1e-3 * wrong + self.rounding * max(0, step - self.rounds_from)

    def record(self, begin, steps):
        assert sorted({*steps}) == [*steps]
        assert steps[0] == begin
        self.windows.append((begin, tuple(steps)))

    def calibrate(self, begin, steps):
        assert (begin, tuple(steps)) in self.windows
        self.calibrated.append((begin, tuple(steps)))

    def judge(self, begin, steps, step, *, is_measured):
        assert (begin, tuple(steps)) in self.windows
        assert step in steps
        first_wrong = max(begin, self.wrong_from)
        is_fault = self.repeats and first_wrong < self.until and step >= first_wrong
        differs = is_fault or (self.rounding > 0 and step >= max(begin, self.rounds_from))
        assert not is_measured or (begin, tuple(steps)) in self.calibrated
        return Judgement(
            is_fault=is_fault, num_different=int(differs), num_calls=1, entry="Torch.add.0.forward" * is_fault
        )


EACH_TEN = range(10, 410, 10)


@pytest.mark.parametrize("num_windows", [2, 3, 4, 9])
@pytest.mark.parametrize("wrong_from", [0, 1, 9, 10, 11, 19, 20, 300, 305, 389, 390, 399])
def test_the_step_is_found_where_both_sides_are_equal_before(wrong_from, num_windows):
    lab = MadeUp(wrong_from)
    answer = Search(lab, EACH_TEN, 400, num_windows).run()
    assert answer.outcome is Outcome.FOUND
    assert answer.place.step == wrong_from
    assert len(lab.compared) <= 8
    assert sum(len(steps) for _, steps in lab.windows) <= 20
    assert all(end - begin <= 10 for begin, steps in lab.windows for end in steps)


@pytest.mark.parametrize("wrong_from", [0, 7, 10, 11, 20, 295, 300, 305, 399])
def test_the_step_is_found_among_rounding(wrong_from):
    lab = MadeUp(wrong_from, rounding=1e-4)
    answer = Search(lab, EACH_TEN, 400, 4).run()
    assert answer.place.step == wrong_from
    assert answer.place.is_measured


def test_rounding_that_begins_in_the_middle_is_no_fault():
    lab = MadeUp(27, rounding=1e-9, rounds_from=23)
    answer = Search(lab, [10, 20, 30, 40], 40, 4).run()
    assert (answer.place.step, answer.place.is_measured) == (27, True)
    assert Search(MadeUp(math.inf, rounding=1e-9, rounds_from=23), [10, 20], 30, 4).run().outcome is Outcome.AGREE


def test_equal_trainings_agree_without_a_replay():
    lab = MadeUp(math.inf)
    answer = Search(lab, EACH_TEN, 400).run()
    assert answer.outcome is Outcome.AGREE
    assert lab.windows == []
    assert lab.compared == [10, 400]


def test_steps_after_the_last_checkpoint_are_replayed():
    assert Search(MadeUp(47), [10, 20, 30, 40], 50).run().place.step == 47
    assert Search(MadeUp(math.inf), [10, 20, 30, 40], 50).run().outcome is Outcome.AGREE


def test_trainings_without_checkpoints_are_replayed_from_the_beginning():
    lab = MadeUp(61)
    assert Search(lab, [], 64).run().place.step == 61
    assert len(lab.windows) <= 4


def test_a_fault_that_ends_is_found_by_the_weights_it_leaves():
    assert Search(MadeUp(27, until=28), [10, 20, 30, 40], 40).run().place.step == 27


def test_a_fault_that_does_not_come_back():
    answer = Search(MadeUp(27, repeats=False), [10, 20, 30, 40], 40).run()
    assert answer.outcome is Outcome.NOT_REPEATED
    assert (answer.last_equal, answer.first_apart) == (20, 30)
    assert "from 20 to there agree" in headline_of(answer, 40).text


def test_other_initial_weights_are_said():
    answer = Search(MadeUp(math.inf, has_other_start=True), [0, 10], 10).run()
    assert answer.outcome is Outcome.OTHER_START


# --- the journal --------------------------------------------------------------------------------------------------


def test_a_journal_goes_on_after_half_a_line(tmp_path):
    settings = {"checkpoints": {10: "a", 20: "b"}}  # JSON has keys of text only
    journal = Journal(tmp_path, settings, overwrites=False)
    assert journal.once(["distance", 10], lambda: "0.5", str) == "0.5"
    with journal.path.open("ab") as file:
        file.write(b'{"question": ["dist')
    again = Journal(tmp_path, settings, overwrites=False)
    assert again.once(["distance", 10], lambda: pytest.fail("asked again"), str) == "0.5"
    assert again.once(["distance", 20], lambda: "inf", str) == "inf"
    assert len(Journal(tmp_path, settings, overwrites=False).lines) == 3


def test_a_journal_of_another_search_is_kept(tmp_path):
    Journal(tmp_path, {"a": 1}, overwrites=False)
    with pytest.raises(StoreError, match="of a search with other commands"):
        Journal(tmp_path, {"a": 2}, overwrites=False)
    assert len(Journal(tmp_path, {"a": 2}, overwrites=True).lines) == 1
    (tmp_path / "bisect_steps.jsonl").write_text("mine\n")
    with pytest.raises(StoreError, match="is no journal"):
        Journal(tmp_path, {"a": 2}, overwrites=True)


def test_the_cost_counts_what_the_journal_has(tmp_path):
    journal = Journal(tmp_path, {}, overwrites=False)
    journal.once(["distance", 10], lambda: "0.0", str)
    journal.once(["record", "golden", 10, [10, 14, 19]], lambda: 10, int)
    journal.once(["repeat", 1, 10, [10, 14, 19]], lambda: 10, int)
    found = Judgement(is_fault=True, num_different=3, num_calls=5, entry="Torch.add.0.forward")
    journal.once(["judge", 10, [10, 14, 19], 14, False], lambda: found, Judgement)
    cost = cost_of(journal)
    assert (cost.num_checkpoints, cost.num_windows, cost.num_replays, cost.num_steps) == (1, 6, 2, 20)
    lines = list(table_lines(rows_of(journal)))
    assert "equal" in lines[1]
    assert lines[2].endswith("Torch.add.0.forward")
    answer = Search(MadeUp(14), [10, 20], 20).run()
    assert write_result(answer, 20, journal, tmp_path).read_text().count('"step": 14,') == 3


# --- checkpoints and requests -------------------------------------------------------------------------------------


def test_checkpoints_are_found_by_their_pattern(tmp_path):
    for name in ("iter_0000020", "iter_0000010", "iter_x", "latest"):
        (tmp_path / name).mkdir()
    found = checkpoints_of(f"{tmp_path}/iter_{{step}}")
    assert [*found] == [10, 20]
    for pattern, said in ((f"{tmp_path}/x", "needs"), (f"{tmp_path}/y-{{step}}", "holds no"), ("/no/{step}", "cannot")):
        with pytest.raises(CompareError, match=said):
            checkpoints_of(pattern)


def test_the_distance_of_checkpoints(tmp_path):
    golden = {"a": np.ones((4, 4), np.float32), "b": np.full(9, 2, np.float32)}
    paths = []
    for number, change in enumerate(({}, {"a": golden["a"] * 1.5}, {"b": golden["b"][:3]}, {"c": golden["b"]})):
        paths.append(Path(tmp_path / f"{number}.npz"))
        np.savez(paths[-1], **golden | change)
    assert [distance_of(path, paths[0]) for path in paths] == [0, 0.5, math.inf, math.inf]


def test_checkpoints_with_a_file_of_each_rank_are_compared_rank_by_rank(tmp_path):
    for side, last in (("a", 1.0), ("b", 1.0), ("c", 1.5)):
        (tmp_path / side).mkdir()
        for rank, value in enumerate((7.0, last)):
            np.savez(tmp_path / side / f"rank_{rank}.npz", w=np.full((4, 4), value, np.float32))
    assert distance_of(tmp_path / "b", tmp_path / "a") == 0
    assert distance_of(tmp_path / "c", tmp_path / "a") == 0.5
    (tmp_path / "b" / "rank_1.npz").unlink()
    with pytest.raises(CompareError, match="files of other ranks"):
        distance_of(tmp_path / "b", tmp_path / "a")


def test_checkpoints_that_cannot_be_read_whole_are_not_equal(tmp_path):
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    for name in ("one", "two"):  # no rank's number
        content = len(header).to_bytes(8, "little") + header + np.ones(1, "<f4").tobytes()
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    with pytest.raises(DumpError, match="two tensors have the name"):
        distance_of(tmp_path, tmp_path)


def test_the_error_of_a_process_is_told_not_the_summary_of_its_launcher(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("[rank1]: ValueError: no data\nFailures:\n  time : now\n=======\n")
    assert last_line(log) == "[rank1]: ValueError: no data"
    log.write_text("begins\n\x1b[0mends\n-----\n\n")
    assert last_line(log).endswith("ends")


def test_a_request_chooses_steps_and_directory(tmp_path, monkeypatch):
    request = WindowRequest(directory=str(tmp_path), steps=(20, 25), begin=20)
    monkeypatch.setenv(REQUEST_VARIABLE, request.encoded())
    config = load_config(None, dump_path="elsewhere", step=[0], dump_enable=False)
    assert (config.dump_path, config.step, config.dump_enable) == (str(tmp_path), (20, 25), True)
    for wrong in ("x", '{"directory":"a","steps":[]}', '{"directory":"a","steps":[1],"begin":2}'):
        monkeypatch.setenv(REQUEST_VARIABLE, wrong)
        with pytest.raises(ConfigError, match="MSPROBE_WINDOW"):
            load_config(None)
