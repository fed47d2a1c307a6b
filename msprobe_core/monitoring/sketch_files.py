"""Files of sketches: what a monitor keeps of gradients before and after ranks exchange them, for a check afterwards.

``grad_sketches_{first}-{last}.msgpack`` holds the steps of a range, on one rank, as MessagePack. A gradient takes the
256 bytes of its sketch and some fifteen more; what is the same in all steps is there once.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from msprobe_core.errors import DamagedDumpError, DumpError, NewerDumpError
from msprobe_core.fingerprint.distance import SIZE_BYTES
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.untrusted.files import read_plain

_FILE = re.compile(r"grad_sketches_(?P<first>\d{1,18})-(?P<last>\d{1,18})\.msgpack$")
_VERSION = 1


class SketchedTensor(msgspec.Struct, frozen=True, array_like=True):
    """What is sketched, the same in all steps.

    Attributes:
        quantity: Of the step; a gradient before or after it is reduced.
        stage: Position of its model in a list of models.
        name: Of the parameter.
        dtype: Of its elements, as the framework writes it.
        num_elements: Of the part that this rank has.
        begin: Coordinates of that part in a tensor that is distributed over ranks; ``None`` of a whole tensor.
    """

    quantity: Quantity
    stage: int
    name: str
    dtype: str
    num_elements: int
    begin: tuple[int, ...] | None


class SketchFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file.

    Attributes:
        version: Of the format.
        rank: Of the process.
        tensors: What is sketched.
        steps: Of each sketch.
        places: Of each sketch, the index of its tensor.
        norms: Euclidean norm of each; NaN if it has none. Few large elements make the sketch a poor estimate of it.
        sketches: One after the other, 64 little-endian float32 each; see `msprobe_core.fingerprint.sketch`.
    """

    version: int = _VERSION
    rank: int
    tensors: list[SketchedTensor]
    steps: list[int]
    places: list[int]
    norms: list[float]
    sketches: bytes


def sketch_file_name(first: int, last: int) -> str:
    """Return the name of the file of a range of steps."""
    return f"grad_sketches_{first}-{last}.msgpack"


def sketch_file_range(name: str) -> tuple[int, int] | None:
    """Return the first and last step in the file of a name; ``None`` if it is no file of sketches."""
    match = _FILE.match(name)
    return None if match is None else (int(match["first"]), int(match["last"]))


def read_sketch_file(path: Path) -> SketchFile:
    """Read a file of sketches.

    Raises:
        DumpError: it cannot be read, or is damaged.
    """
    try:
        content = msgspec.msgpack.decode(read_plain(path), type=SketchFile)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DamagedDumpError(f"{path}: is no file of sketches, or is damaged ({error})") from error
    if content.version != _VERSION:
        raise NewerDumpError(
            f"{path}: has the format {content.version}, which this release cannot read; update msprobe"
        )
    count = len(content.steps)
    is_sound = count == len(content.places) == len(content.norms) and len(content.sketches) == count * SIZE_BYTES
    if not is_sound or any(not 0 <= place < len(content.tensors) for place in content.places):
        raise DamagedDumpError(
            f"{path}: is damaged: its sketches and what they are of do not match; copy the file again"
        )
    return content
