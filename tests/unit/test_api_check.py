"""Checks of single calls without a framework: power, journal, settings, what is chosen from a dump."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from msprobe_core.api_check.journal import Journal
from msprobe_core.api_check.power import power_of
from msprobe_core.api_check.settings_file import CheckSettings, read_settings
from msprobe_core.api_check.verdict import CallVerdict, Mutant, OutputVerdict, Verdict, by_effect, worst_of
from msprobe_core.errors import CompareError, ConfigError, DumpError, StoreError
from msprobe_core.findings import Finding, noted
from msprobe_core.model import Phase, ReplayTensor
from msprobe_core.replay.judge import Held, judge_of
from msprobe_core.replay.replay_codes import ReplayCode
from msprobe_core.replay.replays import Replays


def output(**more):
    common = {
        "path": "0", "side": "recorded", "dtype": "float32", "shape": (2,), "verdict": Verdict.WRONG,
        "reason": noted("off"), "error": 0.5, "rounding": 1e-7, "condition": 0.0, "own_error": None, "times": 5e6,
        "amplification": None, "worst_index": (1,), "bias": None,
    }  # fmt: skip
    return OutputVerdict(**(common | more))


def verdict(entry="Functional.gelu.0.forward", kind=Verdict.WRONG, **more):
    given = {"api": entry.rpartition(".")[0], "phase": Phase.FORWARD, "outputs": (output(verdict=kind),)} | more
    return CallVerdict(entry=entry, verdict=kind, **given)


# --- power ------------------------------------------------------------------------------------------------------


def judge(values, oracle, dtype="float32"):
    recorded = ReplayTensor(values=np.asarray(values), dtype=dtype)
    replays = Replays(
        oracle={"0": ReplayTensor(values=np.asarray(oracle), dtype="float64")}, own=None, disturbed=[],
        roundoff=2.0**-24, num_summed=1,
    )  # fmt: skip
    return recorded, judge_of("0", recorded, replays)


def test_a_sharp_check_accepts_no_mutant():
    exact = np.random.default_rng(0).normal(size=1000)
    recorded, judged = judge(exact.astype(np.float32), exact)
    assert judged.judgement.held is Held.RIGHT
    applied, accepted = power_of(judged, recorded, [ReplayTensor(values=recorded.values + 1, dtype="float32")])
    assert set(applied) == set(Mutant)
    assert accepted == ()


def test_what_equals_the_result_is_no_mutant():
    ones = np.ones(8, dtype=np.float32)
    recorded, judged = judge(ones, ones.astype(np.float64))
    applied, accepted = power_of(judged, recorded, [recorded])
    assert {Mutant.SHUFFLED, Mutant.INPUT_RETURNED, Mutant.HALF_PRECISION}.isdisjoint(applied)
    assert (Mutant.ZEROS in applied, accepted) == (True, ())


def test_a_wide_limit_accepts_small_changes_and_says_so():
    exact = np.random.default_rng(0).normal(size=1000)
    recorded = ReplayTensor(values=exact.astype(np.float32), dtype="float32")
    noisy = {"0": ReplayTensor(values=exact * 1.05, dtype="float64")}
    replays = Replays(
        oracle={"0": ReplayTensor(values=exact, dtype="float64")}, own=None, disturbed=[noisy], roundoff=2.0**-24,
        num_summed=1,
    )  # fmt: skip
    _, accepted = power_of(judge_of("0", recorded, replays), recorded, [])
    assert Mutant.SCALED in accepted
    assert Mutant.HALF_PRECISION in accepted
    assert Mutant.ZEROS not in accepted


def test_mutants_keep_what_is_not_finite():
    values = np.array([1.0, np.inf, 2.0, np.nan], dtype=np.float32)
    recorded, judged = judge(values, values.astype(np.float64))
    applied, accepted = power_of(judged, recorded, [])
    assert Mutant.ZEROS in applied
    assert accepted == ()


def test_half_of_the_mutants_accepted_is_weak():
    assert output(applied=(Mutant.ZEROS, Mutant.SCALED), accepted=(Mutant.SCALED,)).is_weak
    assert not output(applied=tuple(Mutant), accepted=(Mutant.SCALED,)).is_weak
    assert not output(applied=(), accepted=()).is_weak


# --- verdicts ---------------------------------------------------------------------------------------------------


def test_the_worst_verdict_counts():
    assert worst_of([Verdict.RIGHT, Verdict.ILL_CONDITIONED]) is Verdict.ILL_CONDITIONED
    assert worst_of([Verdict.CANNOT_TELL, Verdict.RIGHT]) is Verdict.RIGHT
    assert worst_of([]) is Verdict.CANNOT_TELL


def test_order_by_effect():
    far = verdict("Functional.a.0.forward", reach=100, position=5)
    near = verdict("Functional.b.0.forward", reach=1, position=1)
    ill = verdict("Functional.c.0.forward", Verdict.ILL_CONDITIONED, reach=1000)
    right = verdict("Functional.d.0.forward", Verdict.RIGHT)
    assert [each.entry for each in by_effect([right, ill, near, far])] == [far.entry, near.entry, ill.entry]


def test_without_mutants_nothing_is_weak():
    assert not output(applied=(), accepted=(Mutant.ZEROS,)).is_weak  # of a damaged file
    assert output(applied=(Mutant.ZEROS, Mutant.SCALED), accepted=(Mutant.ZEROS,)).is_weak


def test_complex_inputs_stand_for_no_real_result():
    """As of ``abs``: a cast would drop the imaginary part, with a warning, which is an error here."""
    numbers = np.array([3 + 4j, 6 - 8j, 1j], dtype=np.complex64)
    recorded, judged = judge(np.abs(numbers), np.abs(numbers.astype(np.complex128)))
    applied, _ = power_of(judged, recorded, [ReplayTensor(values=numbers, dtype="complex64")])
    assert Mutant.INPUT_RETURNED not in applied


# --- journal ----------------------------------------------------------------------------------------------------


def test_what_is_in_a_journal_is_known_again(tmp_path):
    path = tmp_path / "journal"
    unusual = verdict("Functional.b.0.forward", outputs=(output(error=float("inf"), times=float("nan")),))
    journal = Journal(path, "digest")
    journal.append(verdict())
    journal.append(unusual)
    journal.close()
    assert path.stat().st_mode & 0o077 == 0
    again = Journal(path, "digest")
    again.close()
    assert again.verdicts["Functional.gelu.0.forward"] == verdict()
    assert str(again.verdicts[unusual.entry]) == str(unusual)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_an_error_in_one_sentence_also_when_the_file_is_closed(tmp_path):
    """What is left in the buffer is written again on closing."""
    journal = Journal(tmp_path / "journal", "digest")
    journal._file.close()
    journal._file = Path("/dev/full").open("wb")  # noqa: SIM115
    for write in (lambda: journal.append(verdict()), journal.close):
        with pytest.raises(StoreError, match="No space left on device"):
            write()


@pytest.mark.parametrize("missing", [1, 3, 40])
def test_a_record_that_was_cut_off_is_dropped_and_the_journal_goes_on(missing, tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path, "digest")
    for number in range(3):
        journal.append(verdict(f"Functional.gelu.{number}.forward"))
    journal.close()
    path.write_bytes(path.read_bytes()[:-missing])
    again = Journal(path, "digest")
    assert len(again.verdicts) == 2
    again.append(verdict("Functional.gelu.7.forward"))
    again.close()
    last = Journal(path, "digest")
    last.close()
    assert list(last.verdicts) == [f"Functional.gelu.{number}.forward" for number in (0, 1, 7)]


def test_a_journal_of_another_dump_is_refused(tmp_path):
    Journal(tmp_path / "journal", "one").close()
    with pytest.raises(CompareError, match="belongs to another dump"):
        Journal(tmp_path / "journal", "two")


@pytest.mark.parametrize("content", [b"\x03\x00\x00\x00abc", b"\x01\x00\x00\x00\xc0", b"PK\x03\x04"])
def test_what_is_no_journal_is_refused(content, tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(DumpError, match="journal"):
        Journal(path, "digest")


@pytest.mark.parametrize("length", [0, 3, 20])
def test_a_journal_whose_first_record_is_cut_off_begins_again(length, tmp_path):
    path = tmp_path / "journal"
    Journal(path, "digest").close()
    path.write_bytes(path.read_bytes()[:length])
    journal = Journal(path, "digest")
    journal.append(verdict())
    journal.close()
    again = Journal(path, "digest")
    again.close()
    assert list(again.verdicts) == [verdict().entry]


def test_a_journal_is_not_written_through_a_link(tmp_path):
    journal = Journal(tmp_path / "other", "digest")
    journal.close()
    content = (tmp_path / "other").read_bytes()
    (tmp_path / "journal").symlink_to(tmp_path / "other")
    with pytest.raises(StoreError, match="remove it"):
        Journal(tmp_path / "journal", "digest")
    assert (tmp_path / "other").read_bytes() == content


def test_a_journal_with_a_finding_without_its_fields_is_refused(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path, "digest")
    journal.append(verdict(outputs=(output(reason=Finding(ReplayCode.OUTPUT_OFF)),)))
    journal.close()
    with pytest.raises(DumpError, match="is not the journal of a check"):
        Journal(path, "digest")


def test_verdicts_survive_a_file():
    found = verdict()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=CallVerdict) == found


# --- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "white_list: [linear]\nblack_list: []\nprecision: 6\n"),
        ("a.json", '{"white_list": ["linear"], "precision": 6}'),
        ("b.json", '{"acc_check": {"white_list": ["linear"], "precision": 6, "error_data_path": null}}'),
        (
            "config.json",
            '{"task": "acc_check", "acc_check": {"white_list": ["linear"], "precision": 6, "budget": 0.1}}',
        ),
    ],
)
def test_settings(name, text, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    assert read_settings(path) == CheckSettings(white_list=("linear",), precision=6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("whitelist: [linear]", "whitelist"),
        ("white_list: linear", "white_list"),
        ("precision: 21", "0 to 20"),
        ("budget: 0.1", "budget"),
        ("task: statistics\nstatistics: {}", "of the task 'statistics', not 'acc_check'"),
        ('"white_list": ["\\ud800"]', "neither JSON nor YAML"),
        ("{", "neither JSON nor YAML"),
        ("!!python/object:os.system {}", "neither JSON nor YAML"),
    ],
)
def test_wrong_settings(text, message, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_settings(path)
