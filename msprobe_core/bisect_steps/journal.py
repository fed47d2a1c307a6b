"""What a search has done so far, a line for each answer: a search that was ended goes on where it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from msprobe_core.errors import StoreError
from msprobe_core.store.layout import make_directory
from msprobe_core.untrusted.files import read_plain, reading

JOURNAL_FILE = "bisect_steps.jsonl"
_MAX_BYTES = 1 << 28

T = TypeVar("T")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One answer.

    Attributes:
        question: What was asked, with its arguments.
        answer: The answer, in JSON's types.
        seconds: Wall time that it took.
    """

    question: list[Any]
    answer: Any
    seconds: float = 0.0


class Journal:
    """Answers that are kept in a file, and not asked for again."""

    def __init__(self, directory: Path, settings: object, *, overwrites: bool) -> None:
        """Go on with the journal of a directory, or begin one.

        Args:
            directory: The directory; made if it is missing.
            settings: On what all answers depend, in JSON's types: a journal of others is not gone on with.
            overwrites: Whether a journal of other settings is replaced.

        Raises:
            StoreError: there is a journal of other settings, or it cannot be read or written.
        """
        make_directory(directory)
        self.path = directory / JOURNAL_FILE
        self.lines: list[Line] = _read(self.path)
        first = Line(question=["settings"], answer=msgspec.json.decode(msgspec.json.encode(settings)))
        if self.lines and self.lines[0] != first:
            if not overwrites:
                raise StoreError(
                    f"{self.path}: is of a search with other commands, checkpoints or options; give another -o, or "
                    "--overwrite to begin again"
                )
            self.lines = []
        self._rewrite([first, *self.lines[1:]])  # without a half line at the end, at which the last search was killed

    def once(self, question: list[Any], ask: Callable[[], T], kind: type[T]) -> T:
        """Return the answer to a question: the one in the file, or that of ``ask``, which is then kept."""
        import time

        for line in self.lines[1:]:
            if line.question == question:
                with suppress(msgspec.MsgspecError):  # a damaged answer is asked for again
                    return msgspec.convert(line.answer, kind)
        began = time.monotonic()
        answer = ask()
        line = Line(question=question, answer=msgspec.to_builtins(answer), seconds=time.monotonic() - began)
        self.lines.append(line)
        try:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be written ({error.strerror})") from error
        return answer

    def _rewrite(self, lines: list[Line]) -> None:
        from msprobe_core.store.atomic_file import whole_file

        self.lines = lines
        with whole_file(self.path) as file:
            file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _read(path: Path) -> list[Line]:
    lines: list[Line] = []
    if not path.exists():
        return lines
    with reading(path, StoreError, advice="; give another -o"):
        content = read_plain(path, _MAX_BYTES)
    for text in content.splitlines():
        with suppress(msgspec.MsgspecError, RecursionError):
            lines.append(msgspec.json.decode(text, type=Line))
            continue
        break
    if not lines and content:
        raise StoreError(f"{path}: is no journal of `msprobe bisect-steps`; give another -o, or remove it")
    return lines
