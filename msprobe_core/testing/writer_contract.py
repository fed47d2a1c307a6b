"""The contract of a format that runs are stored in, as tests that each writer inherits."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import ClassVar

import pytest

from msprobe_core.guard import missing_members
from msprobe_core.model import Batch, Digest, Entry, Phase, RunHeader, Stats, TensorMeta, TensorValue
from msprobe_core.protocols.storage import Dump, Reader, Writer, WriterFactory

HEADER = RunHeader(task="statistics", level="mix", framework="numpy")
"""Of the dumps that the tests write."""

NAMES = ("Functional.linear.0.forward", "Module.fc.Linear.forward.0", "Module.fc.Linear.backward.0")
"""Of their entries, in execution order."""


def sample_batch(begin: int, end: int) -> Batch:
    """Return some of the entries, with a tensor each, one of which has NaN."""
    return Batch([_entry(place) for place in range(begin, end)], {NAMES[0]: NAMES[1], NAMES[1]: None})


def _entry(place: int) -> Entry:
    value = float("nan") if place == 1 else place + 0.5
    digest = Digest(Stats(max=value, min=value, mean=value, l2_norm=value, num_nan=int(place == 1), num_inf=0))
    meta = TensorMeta("numpy.ndarray", "float32", (2, 3), requires_grad=True)
    phase = Phase.BACKWARD if "backward" in NAMES[place] else Phase.FORWARD
    return Entry(name=NAMES[place], phase=phase, sequence=place, inputs=[], outputs=[TensorValue(meta, digest)])


class WriterContract:
    """Inherit this class and define the fixture ``factory``; also ``reader``, if the format can be read."""

    keeps_statistics: ClassVar[bool] = True
    """Whether dumps have statistics, not only the names of calls."""

    @pytest.fixture
    def factory(self) -> WriterFactory:
        """Return the offer under test."""
        raise NotImplementedError("a class that inherits WriterContract defines the fixture 'factory'")

    @pytest.fixture
    def reader(self) -> Reader | None:
        """Return the reader of the format; ``None`` if there is none."""
        return None

    def _written(self, factory: WriterFactory, directory: Path, *ends: int) -> Writer:
        writer = factory.open(directory, HEADER)
        for begin, end in zip((0, *ends), ends, strict=False):
            writer.write(sample_batch(begin, end))
        return writer

    def _read(self, reader: Reader | None, directory: Path) -> Dump:
        if reader is None:
            pytest.skip("this format has no reader")
        path = next((path for path in (directory, *sorted(directory.iterdir())) if reader.recognises(path)), None)
        assert path is not None, f"the reader recognises neither {directory} nor a file in it"
        return reader.read(path)

    def test_it_is_what_the_core_calls(self, factory: WriterFactory, tmp_path: Path) -> None:
        """The offer and the writer have all members of their protocols, and can be used here."""
        assert missing_members(factory, WriterFactory) == []
        factory.check()
        writer = factory.open(tmp_path, HEADER)
        assert missing_members(writer, Writer) == []
        writer.close()

    def test_files_are_for_their_owner_only(self, factory: WriterFactory, tmp_path: Path) -> None:
        """Dumps hold values of a training; `msprobe_core.store.create_file` makes such files."""
        self._written(factory, tmp_path, 3).close()
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert files, "nothing was written"
        assert {path.name: oct(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)) for path in files} == {
            path.name: "0o0" for path in files
        }

    def test_what_is_written_can_be_read(
        self, factory: WriterFactory, reader: Reader | None, tmp_path: Path
    ) -> None:  # fmt: skip
        """All calls are there, in execution order, with their values."""
        self._written(factory, tmp_path, 1, 3).close()
        dump = self._read(reader, tmp_path)
        assert (dump.header.task, dump.header.framework) == (HEADER.task, HEADER.framework)
        assert dump.frame["entry"].unique(maintain_order=True).to_list() == list(NAMES)
        if self.keeps_statistics:
            assert dump.frame["max"].drop_nulls().drop_nans().to_list() == [0.5, 2.5]

    def test_what_was_written_survives_a_killed_process(
        self, factory: WriterFactory, reader: Reader | None, tmp_path: Path
    ) -> None:  # fmt: skip
        """When ``write`` returns, the files are valid and have the entries: nothing closes them."""
        writer = self._written(factory, tmp_path, 2)
        assert self._read(reader, tmp_path).frame["entry"].unique(maintain_order=True).to_list() == list(NAMES[:2])
        writer.close()

    def test_a_dump_replaces_an_earlier_one(
        self, factory: WriterFactory, reader: Reader | None, tmp_path: Path
    ) -> None:  # fmt: skip
        """A run in the same directory leaves nothing of the one before."""
        self._written(factory, tmp_path, 3).close()
        self._written(factory, tmp_path, 1).close()
        assert self._read(reader, tmp_path).frame["entry"].unique().to_list() == [NAMES[0]]

    def test_no_other_path_is_recognised(self, reader: Reader | None, tmp_path: Path) -> None:
        """A reader says no to what is another format or does not exist, and does not raise."""
        if reader is None:
            pytest.skip("this format has no reader")
        (tmp_path / "notes.txt").write_text("no dump")
        for path in (tmp_path, tmp_path / "notes.txt", tmp_path / "missing"):
            assert not reader.recognises(path)
