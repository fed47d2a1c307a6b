"""What is stored beside a monitor's files: alarms of the training, how much of it was seen, dumps of its steps."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding
from msprobe_core.monitor.alarm_dump import DIRECTORY as OF_ALARMS
from msprobe_core.monitor.coverage import Seen
from msprobe_core.monitoring.alarm_files import Alarm
from msprobe_core.monitoring.files import rank_directories
from msprobe_core.store.layout import find_steps, holds_units
from msprobe_core.untrusted.files import read_plain
from msprobe_core.untrusted.paths import shown
from msprobe_core.view.data import CoverageRow
from msprobe_core.view.trends_codes import TrendsCode

ALARM_DIRECTORY, ALARM_FILE, COVERAGE_FILE = "anomaly_detected", "anomaly.json", "coverage.json"
_DUMPS = ("dump", OF_ALARMS)
_MAX_MISSING = 20
_RANK = re.compile(r"rank_?(\d{1,5})", re.ASCII)
_TAG = re.compile(r"(?P<stage>\d+):(?P<name>.*):(?P<micro>\d+)/rank\d+/(?P<quantity>\w+)", re.ASCII | re.DOTALL)
_RULE = re.compile(r"Rule (\w{1,60}) reports", re.ASCII)
_MAX_STEP = (1 << 53) - 1

_Content = TypeVar("_Content")


@dataclass(frozen=True, kw_only=True)
class AlarmSaid:
    """An alarm that a monitor has written.

    Attributes:
        rank: Of the process.
        step: Of the value.
        quantity: Which, ``""`` if the tag does not say.
        stage: Of a virtual pipeline.
        name: Of the module or parameter.
        micro_step: Micro-batch; 0 also for values of the whole step.
        statistic: Of the value; ``""`` if the file does not say.
        rule: That holds.
        value: The value.
    """

    rank: int
    step: int
    quantity: str
    stage: int
    name: str
    micro_step: int
    statistic: str
    rule: str
    value: float | str

    @property
    def finding(self) -> Finding:
        """The alarm as a finding."""
        value = f"{self.value:.6g}" if isinstance(self.value, (int, float)) else self.value
        return Finding(TrendsCode.ALARM, fields={"rule": self.rule, "statistic": self.statistic, "value": value})


@dataclass(frozen=True)
class Beside:
    """What is stored beside a monitor's files.

    Attributes:
        alarms: By step and rank.
        coverage: By quantity.
        dumps: Directories of steps, by number.
        notes: What could not be read.
    """

    alarms: Sequence[AlarmSaid] = ()
    coverage: Sequence[CoverageRow] = ()
    dumps: Mapping[int, Path] = field(default_factory=dict[int, Path])
    notes: Sequence[Finding] = ()

    def command(self, step: int) -> str:
        """Return the command that shows the dump of a step; empty if there is none."""
        path = self.dumps.get(step)
        return "" if path is None else f"msprobe view {shlex.quote(shown(str(path)))}"


def beside(target: Path, monitored: Path, steps: Collection[int] = (), ranks: Collection[int] = ()) -> Beside:
    """Return what is stored beside a monitor's files; what cannot be read becomes a note.

    Args:
        target: What the user has named.
        monitored: The directory with the files: the same, or one in it.
        steps: Steps of alarms to return; empty for all.
        ranks: Ranks of alarms and coverage to return; empty for all.
    """
    notes: list[Finding] = []
    alarms = [
        alarm
        for alarm in _alarms(monitored, notes)
        if (not steps or alarm.step in steps) and (not ranks or alarm.rank in ranks)
    ]
    return Beside(
        alarms=sorted(alarms, key=lambda each: (each.step, each.rank)),
        coverage=_coverage(monitored, ranks, notes),
        dumps=_dumps_beside(target, monitored),
        notes=notes,
    )


def companion_files(monitored: Path) -> Iterator[Path]:
    """Return the files of alarms and coverage, whether or not they exist."""
    for directory in _alarm_directories(monitored):
        yield directory / ALARM_FILE
    for each in rank_directories(monitored):
        yield each.path / COVERAGE_FILE


# --- alarms -------------------------------------------------------------------------------------------------------


def _alarm_directories(monitored: Path) -> list[Path]:
    place = monitored / ALARM_DIRECTORY
    if not place.is_dir():
        place = monitored.parent / ALARM_DIRECTORY
        if not (place.is_dir() and any(each.path == monitored for each in rank_directories(monitored))):
            return []
    return [each for each in sorted(place.iterdir()) if _RANK.fullmatch(each.name) and each.is_dir()]


def _alarms(monitored: Path, notes: list[Finding]) -> Iterator[AlarmSaid]:
    for directory in _alarm_directories(monitored):
        match = _RANK.fullmatch(directory.name)
        assert match is not None
        records = _decoded(directory / ALARM_FILE, dict[str, Alarm], int(match[1]), notes)
        for record in (records or {}).values():
            tag = _TAG.fullmatch(record.tag_name)
            rule = _RULE.match(record.message)
            if not 0 <= record.step <= _MAX_STEP:
                continue
            yield AlarmSaid(
                rank=record.rank,
                step=record.step,
                quantity="" if tag is None else tag["quantity"],
                stage=0 if tag is None else int(tag["stage"][:9]),
                name=shown(record.tag_name if tag is None else tag["name"]),
                micro_step=0 if tag is None else int(tag["micro"][:9]),
                statistic=record.op or "",
                rule="?" if rule is None else rule[1],
                value="" if record.value is msgspec.UNSET or record.value is None else record.value,
            )


# --- coverage -----------------------------------------------------------------------------------------------------


def _coverage(monitored: Path, ranks: Collection[int], notes: list[Finding]) -> list[CoverageRow]:
    latest = {each.rank: each for each in sorted(rank_directories(monitored), key=lambda each: each.time)}
    found: dict[str, dict[int, Seen]] = {}
    for rank, directory in sorted(latest.items()):
        if not ranks or rank in ranks:
            seen = _decoded(directory.path / COVERAGE_FILE, dict[str, Seen], rank, notes)
            for quantity, own in (seen or {}).items():
                found.setdefault(shown(quantity), {})[rank] = own
    return [_summed(quantity, of_rank) for quantity, of_rank in found.items()]


def _summed(quantity: str, of_rank: Mapping[int, Seen]) -> CoverageRow:
    expected = [each.expected for each in of_rank.values() if each.expected is not None]
    first = [each.first_step for each in of_rank.values() if each.first_step is not None]
    missing: dict[str, list[int]] = {}
    for rank, own in of_rank.items():
        for name in own.missing:
            missing.setdefault(shown(name.removeprefix("0:")), []).append(rank)
    return CoverageRow(
        quantity=quantity,
        ranks=len(of_rank),
        expected=sum(expected) if expected else None,
        seen=sum(each.seen for each in of_rank.values()),
        finite=sum(each.finite for each in of_rank.values()),
        first_step=min(first, default=None),
        missing=[
            name
            if len(ranks) == len(of_rank)
            else f"{name} (rank {', '.join(map(str, ranks[:4]))}{', …' * (len(ranks) > 4)})"
            for name, ranks in list(missing.items())[:_MAX_MISSING]
        ],
    )


def _decoded(path: Path, kind: type[_Content], rank: int, notes: list[Finding]) -> _Content | None:
    """Return a file's content; ``None`` if there is no such file, or, with a note, if it cannot be read."""
    try:
        return msgspec.json.decode(read_plain(path), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = str(error.strerror)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = str(error)
    notes.append(Finding(TrendsCode.NOT_A_FILE, fields={"file": path.name, "rank": rank, "why": shown(reason)}))
    return None


# --- dumps --------------------------------------------------------------------------------------------------------


def _dumps_beside(target: Path, monitored: Path) -> dict[int, Path]:
    found: dict[int, Path] = {}
    places = (parent / name for name in _DUMPS for parent in (target, monitored, monitored.parent))
    for root in dict.fromkeys((target, *places)):
        if holds_units(root):
            try:
                steps = find_steps(root)
            except DumpError:
                continue
            found = {**steps, **found}
    return found
