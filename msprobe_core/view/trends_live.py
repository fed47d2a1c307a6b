"""A monitored training that is shown while it runs: new files are read as they appear, and parts sent when viewed.

Nothing is read while a request is answered: it starts the reading, and a later request gets what was read.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from msprobe_core.compare.pairs import Chosen
from msprobe_core.errors import CompareError, MsprobeError
from msprobe_core.monitoring.files import KnownFiles, find_monitored, rank_directories
from msprobe_core.untrusted.paths import encode_json
from msprobe_core.view.data import ViewData
from msprobe_core.view.trends import Analysis, MonitorFindings, analyzed, lacking, page_of, read_runs
from msprobe_core.view.trends_beside import companion_files
from msprobe_core.view.trends_maps import part_map

_logger = logging.getLogger(__name__)

_PART = re.compile(r"(row|rank|step)/([0-9]{1,16})/([^/]{1,200})/([^/]{1,200})")


@dataclass(frozen=True)
class _State:
    """What was read at one time."""

    version: str
    data: ViewData
    content: bytes
    analysis: Analysis


class LiveMonitor:
    """Holds a training's latest state for those who ask."""

    def __init__(self, target: Path, golden: Path | None, chosen: Chosen) -> None:
        """Read what there is.

        Args:
            target: A directory with one directory for each rank, or that of one rank.
            golden: The trusted training, of the same kind; ``None`` to view one training.
            chosen: Selected steps and ranks.

        Raises:
            CompareError: the golden run has no monitor files, or the two have nothing in common.
            DumpError: a file cannot be read.
        """
        self._sides = (target, golden)
        self._chosen = chosen
        self._files = KnownFiles()
        self._is_reading = threading.Lock()
        self._state = self._read(self._found())

    @property
    def data(self) -> ViewData:
        """The data of the page, without lines of single ranks: these are asked for, see `part`."""
        return self._state.data

    @property
    def latest(self) -> tuple[str, bytes]:
        """Version and document, as gzip of JSON; newer files are read in the background."""
        if self._is_reading.acquire(blocking=False):
            threading.Thread(target=self._refresh, daemon=True).start()
        state = self._state
        return state.version, state.content

    def part(self, path: str) -> bytes | None:
        """Return an exact map, as gzip of JSON; ``None`` if there is none.

        Args:
            path: ``row/ROW/STATISTIC/-``: ranks and steps of a row; ``rank/RANK/STATISTIC/QUANTITY``: rows of a
                quantity and steps of a rank; ``step/STEP/STATISTIC/QUANTITY``: rows and ranks of a step. Names are
                percent-encoded.
        """
        match = _PART.fullmatch(path)
        source = self._state.analysis.source
        if match is None:
            return None
        kind, at, statistic, quantity = match[1], int(match[2]), unquote(match[3]), unquote(match[4])
        if statistic not in source.statistics:
            return None
        if kind == "row":
            rows: Sequence[int] = [at] if at < len(source.places) else []
        else:
            rows = [i for i, place in enumerate(source.places) if place.quantity == quantity]
            if at not in (source.ranks if kind == "rank" else source.steps):
                return None
        if not rows:
            return None
        found = part_map(source, statistic, rows, at if kind == "rank" else None, at if kind == "step" else None)
        return gzip.compress(encode_json(found), 1, mtime=0)

    def _refresh(self) -> None:
        try:
            found = self._found()
            if found != self._state.version:
                self._state = self._read(found)
        except (MsprobeError, OSError) as error:  # a file that is being written; the next time it is complete
            _logger.debug("the monitor's files cannot be read now: %s", error)
        finally:
            self._is_reading.release()

    def _found(self) -> str:
        """Return a text that differs when any file does."""
        digest = hashlib.sha256()
        for side in self._sides:
            place = None if side is None else find_monitored(side)
            if place is not None:
                files = [file for each in rank_directories(place) for file in sorted(each.path.iterdir())]
                for file in (*files, *companion_files(place)):
                    if file.is_file():
                        state = file.stat()
                        text = f"{file}\n{state.st_mtime_ns} {state.st_size}\n"
                        digest.update(text.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:32]

    def _read(self, version: str) -> _State:
        target, golden = self._sides
        runs = read_runs(target, golden, self._chosen, self._files)
        if runs is None:
            raise CompareError(lacking(target, golden))
        analysis = analyzed(runs, target, self._chosen, {})
        found = MonitorFindings(analysis.verdict, [], analysis.dashboard, list(analysis.notes))
        data = page_of(target, golden, found)
        return _State(version, data, gzip.compress(encode_json(data), 4, mtime=0), analysis)
