"""The work of a search on real trainings: their commands are run again, and record the windows that are asked for."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from msprobe_core.bisect_steps.checkpoint_pairs import distance_of
from msprobe_core.bisect_steps.journal import Journal
from msprobe_core.bisect_steps.search import Judgement
from msprobe_core.calibrate import calibrate
from msprobe_core.compare.pairs import Chosen, UnitPair
from msprobe_core.compare.result import UnitResult
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.config.repetition import REQUEST_VARIABLE as REPETITION_VARIABLE
from msprobe_core.config.repetition import RepetitionRequest, repetition_directory
from msprobe_core.config.requested_windows import REQUEST_VARIABLE, WindowRequest
from msprobe_core.errors import CompareError
from msprobe_core.judge.noise.model import NoiseModel, load_noise
from msprobe_core.judge.verdict import differs
from msprobe_core.locate.engine import Extraction, LocateOptions, locate
from msprobe_core.locate.result import LocateResult, LocateVerdict
from msprobe_core.model import TaskLost
from msprobe_core.store.atomic_file import unfinished_path
from msprobe_core.store.layout import find_steps, make_directory, refuse_links
from msprobe_core.untrusted.files import open_plain

TARGET, GOLDEN = "target", "golden"
_WINDOWS = "windows"
_TAIL_BYTES = 20_000


class Trainings(msgspec.Struct, frozen=True, kw_only=True):
    """Two trainings that can be run again.

    Attributes:
        target: Command of the target; ``{checkpoint}`` in it stands for the path of the golden checkpoint to begin
            with, empty at the beginning, ``{step}`` for its step, ``{end}`` for the step after the last window.
        golden: Command of the golden training.
        target_checkpoints: The target's checkpoints by step.
        golden_checkpoints: The golden ones.
    """

    target: str
    golden: str
    target_checkpoints: Mapping[int, str] = {}
    golden_checkpoints: Mapping[int, str] = {}


@dataclass
class Replays:
    """Asks each question once, and keeps windows and answers in a directory.

    Attributes:
        trainings: What is run.
        journal: Where answers are kept.
        directory: Where windows are recorded.
        num_repeats: Number of golden replays from which rounding is measured; 0 to estimate it by a formula.
    """

    trainings: Trainings
    journal: Journal
    directory: Path
    num_repeats: int = 3

    def distance(self, step: int) -> float:
        """See `Lab`."""
        sides = (self.trainings.target_checkpoints[step], self.trainings.golden_checkpoints[step])
        return float(self.journal.once(["distance", step], lambda: str(distance_of(*map(Path, sides))), str))

    def record(self, begin: int, steps: Sequence[int]) -> None:
        """See `Lab`."""
        for side in (GOLDEN, TARGET):
            place = self.place(begin, steps, side)
            self.journal.once(["record", side, begin, list(steps)], lambda: self._run(side, begin, steps, place), int)  # noqa: B023

    def calibrate(self, begin: int, steps: Sequence[int]) -> None:
        """See `Lab`."""
        golden = self.place(begin, steps, GOLDEN)
        for number in range(1, self.num_repeats + 1):
            place = repetition_directory(golden, number)
            self.journal.once(
                ["repeat", number, begin, list(steps)],
                lambda: self._run(GOLDEN, begin, steps, place, number),  # noqa: B023
                int,
            )
        if self.num_repeats:
            self.journal.once(["calibrate", begin, list(steps)], lambda: len(calibrate(golden).dumps), int)

    def judge(self, begin: int, steps: Sequence[int], step: int, *, is_measured: bool) -> Judgement:
        """See `Lab`."""

        def ask() -> Judgement:
            num_different: dict[int | None, int] = {}

            def take(pair: UnitPair, content: bytes | TaskLost) -> None:
                if isinstance(content, bytes):
                    num_different[pair.step] = num_different.get(pair.step, 0) + int(content)

            found = self.examine(begin, steps, step, Extraction(_num_different, take), is_measured=is_measured)
            if found.verdict is LocateVerdict.INSUFFICIENT:
                why = next(iter((*found.incomplete, *found.notes)), "nothing was judged")
                raise CompareError(f"step {step}: cannot be judged: {why}")
            first = next(iter(found.suspects), None)
            return Judgement(
                is_fault=first is not None, num_different=num_different.get(step, 0), num_calls=found.num_nodes,
                entry="" if first is None else first.entry, module=None if first is None else first.module,
                ranks=() if first is None else tuple(first.ranks),
            )  # fmt: skip

        return self.journal.once(["judge", begin, list(steps), step, is_measured], ask, Judgement)

    def examine(
        self,
        begin: int,
        steps: Sequence[int],
        step: int,
        extraction: Extraction | None = None,
        *,
        is_measured: bool,
    ) -> LocateResult:
        """Return what `locate` says of a window, after the first one of its replay."""
        golden = self.place(begin, steps, GOLDEN)
        noise = load_noise(golden) if is_measured else NoiseModel()
        options = LocateOptions(compare=CompareOptions(noise=noise), chosen=Chosen(steps={begin, step}))
        return locate(self.place(begin, steps, TARGET), golden, options, extraction=extraction)

    def place(self, begin: int, steps: Sequence[int], side: str) -> Path:
        """Return the directory of the windows of one side of a replay."""
        return self.directory / _WINDOWS / f"from{begin}_at{'-'.join(map(str, steps))}" / side

    # --- running ----------------------------------------------------------------------------------------------

    def _run(self, side: str, begin: int, steps: Sequence[int], place: Path, repetition: int | None = None) -> int:
        """Run a training until it has recorded its windows; return how many steps it made.

        It records beside ``place``, which gets the directory when it is complete: a training that a killed search has
        left may still be recording.
        """
        refuse_links(place, below=self.directory)
        for left in place.parent.glob(f".{place.name}.*.part"):
            shutil.rmtree(left, ignore_errors=True)
        part = unfinished_path(place)
        make_directory(part.parent)
        request = WindowRequest(directory=str(part.absolute()), steps=tuple(steps), begin=begin)
        environment = {**os.environ, REQUEST_VARIABLE: request.encoded()}
        recorded = part
        if repetition is not None:
            recorded = repetition_directory(part, repetition)
            again = RepetitionRequest(number=repetition, golden=str(part.absolute()))
            environment[REPETITION_VARIABLE] = again.encoded()
        log = place.parent / f"{place.name}.log"
        command = self._command(side, begin, max(steps) + 1)
        try:
            with log.open("wb") as output:
                status = subprocess.run(  # noqa: S603  # it is what the user asks for
                    command, env=environment, check=False, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                ).returncode
        except OSError as error:
            raise CompareError(f"{command[0]}: cannot be run ({error.strerror})") from error
        lacking = sorted({*steps} - (find_steps(recorded).keys() if recorded.is_dir() else set()))
        if lacking:
            last = last_line(log)
            said = f"; it said last: {last}" if last else ""
            raise CompareError(
                f"the {side} training ended with status {status} and has not recorded step {lacking[0]}{said}; it has "
                f"to go on from step {begin} and to call start(), stop() and step() of a PrecisionDebugger in each "
                f"step; see {log}"
            )
        shutil.rmtree(place, ignore_errors=True)  # of a search that was killed before it had written its answer
        recorded.replace(place)
        shutil.rmtree(part, ignore_errors=True)
        return max(steps) + 1 - begin

    def _command(self, side: str, begin: int, end: int) -> list[str]:
        values = {
            "{checkpoint}": self.trainings.golden_checkpoints.get(begin, ""),
            "{step}": str(begin),
            "{end}": str(end),
        }
        parts = shlex.split(self.trainings.target if side == TARGET else self.trainings.golden)
        for name, value in values.items():
            parts = [part.replace(name, value) for part in parts]
        return parts


def _num_different(unit: UnitResult) -> bytes:
    """Return how many values of a unit differ at all, as text."""
    return str(unit.rows.filter(differs()).height).encode()


def last_line(log: Path) -> str:
    """Return the last line of a log that names an error, else the last one with a word in it.

    Launchers of several processes write a summary of their own after what the process said that failed. What a
    terminal would obey is left out.

    Returns: Empty text if there is none.
    """
    try:
        with open_plain(log) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").split("\n")
    except OSError:
        return ""
    found = ["".join(letter for letter in line if letter.isprintable()).strip() for line in lines]
    errors = [line for line in found if line.partition("Error: ")[2]]
    return next((line for line in reversed(errors or found) if any(map(str.isalnum, line))), "")
