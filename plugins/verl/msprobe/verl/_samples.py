"""Determine which samples a micro-batch of verl's workers holds, from its TensorDict on the host."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe.verl._process_recording import STEP_KEY
from msprobe_core.store import BatchLayout, Row, sample_id

Integers = NDArray[np.int64]


def plain(data: Any, key: str, default: Any = None) -> Any:
    """Return a non-tensor entry of a TensorDict or mapping as a plain Python value."""
    try:
        value = data.get(key, None)
    except KeyError:
        return default
    if value is None:
        return default
    if hasattr(value, "tolist") and type(value).__name__ == "NonTensorStack":
        return value.tolist()
    return getattr(value, "data", value) if type(value).__name__ == "NonTensorData" else value


def trainer_step_of(data: Any) -> int | None:
    """Return the trainer's step that the driver put into the data; ``None`` if there is none."""
    return _number(plain(data, STEP_KEY))


def policy_version_of(data: Any) -> int | None:
    """Return the version of the policy that generated the data, the newest of several; ``None`` if unknown.

    It is ``global_steps`` of the serving engine. The trainer with TransferQueue stores its own step under that name,
    and the policy's version with each trajectory.
    """
    trajectories = plain(data, "extra_fields")
    if isinstance(trajectories, list | tuple | np.ndarray):
        found = [_newest_of(fields) for fields in cast("Iterable[Any]", trajectories)]
        if (newest := _number([version for version in found if version is not None])) is not None:
            return newest
    return _number(plain(data, "max_global_steps", plain(data, "global_steps")))


def _newest_of(fields: Any) -> Any:
    return cast("dict[str, Any]", fields).get("max_global_steps") if isinstance(fields, dict) else None


def layout_of(data: Any) -> BatchLayout:
    """Return the layout in which a micro-batch is passed to the model."""
    return BatchLayout.PACKED if plain(data, "use_remove_padding", True) else BatchLayout.PADDED


def rows_of(data: Any) -> list[Row]:
    """Return the samples of a micro-batch in the order of its rows; empty if its tokens are not nested."""
    ids = data["input_ids"]
    if not getattr(ids, "is_nested", False):
        return []
    is_packed = layout_of(data) is BatchLayout.PACKED
    offsets = [int(offset) for offset in ids.offsets().cpu()]
    tokens: Integers = ids.values().cpu().numpy()
    prompts = _prompt_lengths(data, offsets)
    uids = _texts(plain(data, "uid"), len(prompts))
    rows: list[Row] = []
    for i, (begin, end) in enumerate(pairwise(offsets)):
        rows.append(
            Row(
                id=sample_id(tokens[begin:end]), prompt_id=sample_id(tokens[begin : begin + prompts[i]]), uid=uids[i],
                row=0 if is_packed else i, offset=begin if is_packed else 0, length=end - begin,
                prompt_length=prompts[i], total_length=end - begin,
            )
        )  # fmt: skip
    return rows


def slice_of(rows: list[Row], length: int, number: int) -> list[Row]:
    """Return the parts of packed samples in one of several equal slices of the packed dimension.

    Args:
        rows: Samples in the order in which they are packed.
        length: Number of positions in a slice.
        number: Index of the slice, from 0.
    """
    begin, end = number * length, (number + 1) * length
    found: list[Row] = []
    for row in rows:
        first, last = max(row.offset, begin), min(row.offset + row.length, end)
        if first < last:
            start = row.start + first - row.offset
            found.append(msgspec.structs.replace(row, offset=first - begin, length=last - first, start=start))
    return found


def _prompt_lengths(data: Any, offsets: list[int]) -> list[int]:
    """Return the prompt length of each sample, in tokens; 0 if unknown."""
    totals = [end - begin for begin, end in pairwise(offsets)]
    for key, is_prompt in (("prompts", True), ("responses", False), ("response_mask", False)):
        value = data.get(key, None)
        if value is not None and getattr(value, "is_nested", False):
            lengths = [int(length) for length in value.offsets().diff().cpu()]
            return lengths if is_prompt else [total - own for total, own in zip(totals, lengths, strict=True)]
    prompts, mask = data.get("prompts", None), data.get("attention_mask", None)
    if prompts is None or mask is None:
        return [0] * len(totals)
    return [int(length) for length in mask[:, : prompts.shape[1]].sum(-1).cpu()]


def _texts(value: Any, count: int) -> list[str | None]:
    if isinstance(value, np.ndarray | list | tuple) and len(cast("list[Any]", value)) == count:
        return [None if one is None else str(one) for one in cast("Iterable[Any]", value)]
    return [None] * count


def _number(value: Any) -> int | None:
    if isinstance(value, np.ndarray | list | tuple):
        numbers = [_number(one) for one in cast("Iterable[Any]", value)]
        return max((number for number in numbers if number is not None), default=None)
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None
