"""Small JSON files with one struct: written atomically, read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from msprobe_core.errors import DamagedDumpError, DumpError, LargeDumpError
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory
from msprobe_core.untrusted.files import TooLargeError, read_plain

_Content = TypeVar("_Content")

MAX_BYTES = 1 << 30
"""Largest file that is read; a larger one cannot be valid."""


def save_struct(path: Path, content: msgspec.Struct) -> None:
    """Write ``content`` to ``path``, for the owner only; concurrent readers see the old file or the new one.

    Missing directories are created. NaN and infinities become null.

    Raises:
        StoreError: it cannot be written.
    """
    make_directory(path.parent)
    with whole_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(content), indent=1))


def load_struct(path: Path, kind: type[_Content], *, otherwise: str | None = None) -> _Content:
    """Return the struct in ``path``.

    Args:
        path: The file.
        kind: Of its content.
        otherwise: What is wrong with a file that holds something else, for files that are not of a dump.

    Raises:
        DumpError: the file is missing, truncated or not such a file; the message names the invalid field.
    """
    try:
        return msgspec.json.decode(read_plain(path, MAX_BYTES), type=kind)
    except TooLargeError as error:
        raise LargeDumpError(
            f"{path}: larger than {MAX_BYTES >> 30} GiB; this is no file of {kind.__name__}"
        ) from error
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if otherwise is not None:
            raise DumpError(f"{path}: {otherwise} ({error})") from error
        if not isinstance(error, msgspec.ValidationError):
            raise DamagedDumpError(f"{path}: is cut off or no JSON ({error}); record again") from error
        raise DumpError(
            f"{path}: holds something else than {kind.__name__} ({error}); is it of another version of msprobe?"
        ) from error
