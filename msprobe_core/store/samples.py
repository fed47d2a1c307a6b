"""Map every row and position of a recorded stage to a sample: ``samples.json`` next to a dump.

Two stages split and order their batches as they like: padded or packed, balanced over ranks, in micro-batches of any
size, in a serving engine one token at a time. A sample is therefore identified by the hash of its token ids alone.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from msprobe_core.errors import StoreError
from msprobe_core.store.struct_files import load_struct, save_struct

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

SAMPLES_FILE = "samples.json"
VERSION = 1


class BatchLayout(str, Enum):
    """Arrangement of samples in a call: one row each, concatenated in one dimension, or a single request."""

    PADDED = "padded"
    PACKED = "packed"
    REQUEST = "request"


class CallPhase(str, Enum):
    """Purpose of a call: training and scoring, a prompt of a serving engine, or one decoded token."""

    TRAIN = "train"
    PREFILL = "prefill"
    DECODE = "decode"


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Position of one sample in one call.

    Attributes:
        id: `sample_id` of all its tokens, prompt and response, without padding.
        prompt_id: `sample_id` of its prompt.
        uid: The trainer's own identifier.
        row: Index in dimension 0; 0 in a packed call.
        offset: First position in dimension 1, or in the packed dimension.
        length: Number of positions of the sample in this call.
        start: Position in the sample of the first of them.
        prompt_length: Number of tokens of the prompt.
        total_length: Number of tokens of prompt and response.
    """

    id: str
    prompt_id: str
    uid: str | None = None
    row: int = 0
    offset: int = 0
    length: int = 0
    start: int = 0
    prompt_length: int = 0
    total_length: int = 0


class MicroBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The samples of one micro-batch: of the calls of each module with the index ``call``.

    Attributes:
        call: Index of the call, counted across all mini-batches of the stage.
        mini: Number of its mini-batch.
        micro: Its number in the mini-batch.
        layout: Arrangement of its samples.
        phase: Its purpose.
        rows: Its samples.
    """

    call: int
    mini: int
    micro: int
    layout: BatchLayout
    phase: CallPhase
    rows: tuple[Row, ...] = ()


class StageSamples(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``samples.json``.

    Attributes:
        version: Version of the format.
        stage: Name of the stage.
        step: Step of the trainer.
        rank: Rank of the process, or number of the serving engine's replica.
        policy_version: How often the current weights have been updated, if the trainer provides it.
        micro_batches: In the order of their calls.
    """

    version: int
    stage: str
    step: int
    rank: int
    policy_version: int | None = None
    micro_batches: tuple[MicroBatch, ...] = ()


def readable(micro: MicroBatch) -> MicroBatch:
    """Return a micro-batch as it is read back from the file.

    Raises:
        StoreError: it cannot be written, or what is written could not be read; the message names the field.
    """
    try:
        return msgspec.json.decode(msgspec.json.encode(micro), type=MicroBatch)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise StoreError(
            f"a micro-batch has rows that {SAMPLES_FILE} cannot hold ({error}); give `Row` objects"
        ) from error


def sample_id(token_ids: ArrayLike) -> str:
    """Return the SHA-1 of token ids as little-endian int64, 40 hex digits. It identifies a sample, not for security.

    Args:
        token_ids: Integers, without padding. Any shape; read in C order.
    """
    content: Any = np.ascontiguousarray(token_ids, dtype="<i8")
    return hashlib.sha1(content.tobytes(), usedforsecurity=False).hexdigest()


def save_samples(directory: Path, samples: StageSamples) -> None:
    """Write ``samples.json`` into the directory of a rank.

    Raises:
        StoreError: it cannot be written.
    """
    save_struct(directory / SAMPLES_FILE, samples)


def load_samples(directory: Path) -> StageSamples:
    """Return the content of ``samples.json`` in the directory of a rank.

    Raises:
        DumpError: it is missing or invalid.
    """
    return load_struct(directory / SAMPLES_FILE, StageSamples)
