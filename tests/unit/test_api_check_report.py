"""What a check of calls prints and writes, and that its file is read as anybody's."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import polars as pl
import pytest
from checked_calls import call, not_checked, output, some_calls, statistics_only
from rich.console import Console
from wording import Snapshot

from msprobe_core.api_check.probe_codes import ProbeCode
from msprobe_core.api_check.verdict import CallVerdict, Verdict
from msprobe_core.errors import CompareError, StoreError
from msprobe_core.findings import Finding, Language, Level, noted, worded
from msprobe_core.report.api_check import print_checks
from msprobe_core.report.api_check_files import (
    CHECK_FILE,
    CHECK_TABLE,
    check_content,
    read_checks,
    refuse_foreign_checks,
    write_checks,
)
from msprobe_core.report.api_check_summary import CheckSummary

DUMP = Path("dump/step0/rank0/dump.json")


def printed(verdicts: list[CallVerdict], **options: object) -> list[str]:
    """Return the printed lines."""
    stream = io.StringIO()
    print_checks(verdicts, Console(file=stream, width=500, color_system=None), dump=DUMP, **options)  # type: ignore[arg-type]
    return stream.getvalue().splitlines()


class TestSummary:
    def test_the_headline_names_the_only_wrong_call(self) -> None:
        verdicts = [call(f"Torch.add.{i}.forward") for i in range(2133)]
        verdicts.append(call("Functional.softmax.7.forward", Verdict.WRONG, 9.0))
        headline = CheckSummary.of(verdicts).headline
        assert headline.text == "1 of 2,134 checked calls is wrong: Functional.softmax.7.forward"
        assert worded(headline, Language.CHINESE) == "已检查的 2,134 个调用中有 1 个错误:Functional.softmax.7.forward"
        assert headline.level is Level.ERROR

    def test_calls_are_ordered_by_verdict_and_effect(self) -> None:
        summary = CheckSummary.of(some_calls())
        assert [each.entry for each in summary.ranked] == [
            "Torch.div.0.forward",
            "Functional.softmax.1.forward",
            "Tensor.mul.0.forward",
            "Torch.sub.0.forward",
        ]
        assert summary.headline.text == (
            "2 of 7 checked calls are wrong; the one with the largest effect is Torch.div.0.forward"
        )
        assert summary.counted.text == "2 wrong, 1 suspect, 1 ill-conditioned, 3 right, 3 not checked"

    def test_reasons_are_counted_whatever_calls_they_name(self) -> None:
        verdicts = [statistics_only(f"Torch.add.{i}.forward") for i in range(3)]
        verdicts += [not_checked("Torch.rand.0.forward", noted("random")), not_checked("Torch.x.0.forward", noted("y"))]
        summary = CheckSummary.of(verdicts)
        assert [(group.count, group.first) for group in summary.not_checked] == [
            (3, "Torch.add.0.forward"),
            (1, "Torch.rand.0.forward"),
            (1, "Torch.x.0.forward"),
        ]
        assert summary.headline.text == "nothing was checked: 5 calls could not be replayed or judged"

    def test_a_call_that_a_probe_finds_wrong_is_a_fault(self) -> None:
        """Its recorded result may be right all the same; what is wrong for recorded inputs comes first."""
        wrong = Finding(ProbeCode.NOT_REPLAYED, Level.ERROR, {"why": "the sum is another"})
        narrow = Finding(ProbeCode.NOT_REPLAYED, Level.WARNING, {"why": "bfloat16"})
        verdicts = [call("Torch.a.0.forward", notes=(wrong,)), call("Torch.b.0.forward", notes=(narrow,))]
        verdicts += [call("Torch.c.0.forward", notes=(narrow, noted("said")))]
        summary = CheckSummary.of(verdicts)
        assert summary.is_fault
        assert summary.headline.text == (
            "1 of 3 checked calls is wrong for small integers, though not for its recorded inputs: Torch.a.0.forward"
        )
        assert "Note: 2 calls, such as Torch.b.0.forward: not probed: bfloat16." in printed(verdicts)
        assert not any("said" in line for line in printed(verdicts))
        later = CheckSummary.of([*verdicts, call("Torch.d.0.forward", Verdict.WRONG, 3.0)])
        assert later.headline.text == "1 of 4 checked calls is wrong: Torch.d.0.forward"

    def test_only_right_calls_are_weak(self) -> None:
        """Half of the mutants is weak; of a call that is not right, the power does not matter."""
        half, fewer = output().applied[:3], output().applied[:2]
        verdicts = [
            call("Torch.a.0.forward", outputs=(output(accepted=half[:3], applied=output().applied[:6]),)),
            call("Torch.b.0.forward", outputs=(output(accepted=fewer),)),
            call("Torch.c.0.forward", Verdict.WRONG, outputs=(output(Verdict.WRONG, 9.0, accepted=half),)),
        ]
        summary = CheckSummary.of(verdicts)
        assert [each.entry for each in summary.weak] == ["Torch.a.0.forward"]
        assert summary.weakness is not None
        assert summary.weakness.text.endswith("at Torch.a.0.forward: zeros, the input itself, 1 % more")


class TestText:
    def test_everything(self, wording_snapshot: Snapshot) -> None:
        wording_snapshot.check(
            "acc_check",
            "\n".join(printed(some_calls(), files=[Path("out/acc_check.json")])),
            "\n".join(printed([statistics_only("Torch.add.0.forward")])),
        )

    def test_a_written_script_is_named_instead(self) -> None:
        lines = printed(some_calls(), scripts=[Path("out/softmax.py")])
        assert "Reproducer, which needs no msprobe: out/softmax.py" in lines
        assert not any(line.startswith("Next:") for line in lines)

    def test_a_dump_of_statistics_is_told_what_to_record(self) -> None:
        lines = printed([statistics_only("Torch.add.0.forward")])
        assert lines[2].startswith(f"Next: msprobe acc_check -api_info {DUMP} after the training is recorded")
        config = json.loads("\n".join(lines[3:-1]))
        assert config["task"] == "tensor"
        assert lines[-1] == "Nothing was checked: 1 call could not be replayed or judged"

    def test_nothing_wrong_has_no_next_command(self) -> None:
        assert printed([call("Torch.add.0.forward")])[1:] == ["None of 1 checked call is wrong"]

    def test_long_tables_are_cut(self) -> None:
        lines = printed([call(f"Torch.add.{i}.forward", Verdict.WRONG, 2.0) for i in range(25)])
        assert "  … and 15 more, in the files" in lines

    def test_names_command_no_terminal(self) -> None:
        lines = printed([call("Torch.\x1b[2J.0.forward", Verdict.WRONG, 2.0)])
        assert not any("\x1b" in line for line in lines)


class TestFiles:
    def test_what_was_written_is_read(self, tmp_path: Path) -> None:
        verdicts = some_calls()
        paths = write_checks(verdicts, tmp_path / "out", dump=DUMP)
        assert [path.name for path in paths] == [CHECK_FILE, CHECK_TABLE]
        found = read_checks(paths[0])
        assert found.dump == str(DUMP)
        # Of findings, numbers that JSON has not are text; NaN differs from itself.
        assert check_content(found.verdicts, DUMP) == check_content(verdicts, DUMP)
        assert [msgspec.structs.replace(each, outputs=()) for each in found.verdicts] == [
            msgspec.structs.replace(each, outputs=()) for each in verdicts
        ]
        assert found.verdicts[2] == verdicts[2]

    def test_the_table_has_a_row_for_each_output(self, tmp_path: Path) -> None:
        write_checks(some_calls(), tmp_path, dump=DUMP)
        table = pl.read_parquet(tmp_path / CHECK_TABLE)
        assert table.height == 12
        assert table["entry"].n_unique() == 10
        wrong = table.filter(pl.col("entry") == "Functional.softmax.1.forward").row(0, named=True)
        assert (wrong["verdict"], wrong["times"], wrong["reach"], wrong["worst_index"]) == ("wrong", 320.0, 6, "[2, 5]")
        assert table.filter(pl.col("not_checked").is_not_null())["output"].to_list() == [None] * 3

    def test_no_calls(self, tmp_path: Path) -> None:
        path, table = write_checks([], tmp_path, dump=DUMP)
        assert read_checks(path).verdicts == []
        assert pl.read_parquet(table).height == 0

    @pytest.mark.parametrize("name", [CHECK_FILE, CHECK_TABLE])
    def test_a_users_file_is_not_replaced(self, tmp_path: Path, name: str) -> None:
        refuse_foreign_checks(tmp_path)
        write_checks(some_calls(), tmp_path, dump=DUMP)
        refuse_foreign_checks(tmp_path)
        (tmp_path / name).write_text('{"version": 3}')
        with pytest.raises(StoreError, match="`msprobe acc_check` has not written it"):
            refuse_foreign_checks(tmp_path)

    def test_findings_of_later_releases_are_their_texts(self, tmp_path: Path) -> None:
        path, _ = write_checks(some_calls(), tmp_path, dump=DUMP)
        content = json.loads(path.read_text())
        content["calls"][2]["outputs"][0]["reason_finding"]["code"] = "later.code"
        content["calls"][2]["outputs"][0]["published"]["later_column"] = 3
        path.write_text(json.dumps(content))
        assert read_checks(path).verdicts[2].outputs[0].reason == noted("off by 320 times what rounding explains")

    @pytest.mark.parametrize(
        ("place", "value", "message"),
        [
            (("version",), 7, "is of version 7, and 1 is known"),
            (("calls",), {"0": 1}, "is not what msprobe acc_check writes"),
            (("calls", 2, "verdict"), "fine", "is not what msprobe acc_check writes"),
            (("calls", 2, "outputs", 0, "error"), "much", r"got `str` - at `\$\.calls\[2\]\.outputs\[0\]\.error`"),
            (("calls", 2, "outputs", 0, "published"), {"cosine": "x" * 99}, r"got `str` - at `.*published\.cosine`"),
            (("calls", 2, "outputs", 0, "reason_finding"), [1], "is not what msprobe acc_check writes"),
        ],
        ids=lambda value: None if not isinstance(value, tuple) else ".".join(map(str, value)),
    )
    def test_a_damaged_file_is_one_sentence(
        self, tmp_path: Path, place: tuple[str | int, ...], value: object, message: str
    ) -> None:
        path, _ = write_checks(some_calls(), tmp_path, dump=DUMP)
        content = json.loads(path.read_text())
        inner = content
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        path.write_text(json.dumps(content))
        with pytest.raises(CompareError, match=message):
            read_checks(path)

    @pytest.mark.parametrize(
        "content", [b"", b"[" * 200_000, b"\xff\xfe", b"{}"], ids=["empty", "deep", "bytes", "object"]
    )
    def test_what_is_no_such_file_is_one_sentence(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / CHECK_FILE
        path.write_bytes(content)
        with pytest.raises(CompareError, match="is not what msprobe acc_check writes"):
            read_checks(path)

    def test_a_finding_without_its_fields_is_its_text(self, tmp_path: Path) -> None:
        path, _ = write_checks([call("Torch.a.0.forward", notes=(noted("seen"),))], tmp_path, dump=DUMP)
        content = json.loads(path.read_text())
        content["calls"][0]["notes_finding"] = []
        content["calls"][0]["outputs"][0]["reason_finding"]["fields"] = {"text": {"code": 3}}
        path.write_text(json.dumps(content))
        found = read_checks(path).verdicts[0]
        assert found.notes == (noted("seen"),)
        assert found.outputs[0].reason.text == "within what rounding explains"


def test_a_finding_is_kept_with_its_fields() -> None:
    """Scripts rely on codes."""
    content = check_content(some_calls(), DUMP)
    assert content["headline_finding"]["code"] == "acc-check.headline.wrong-several"
    assert content["not_checked"][0]["reason_finding"]["fields"] == {"text": "it draws random numbers"}
    assert isinstance(some_calls()[6].reason, Finding)
