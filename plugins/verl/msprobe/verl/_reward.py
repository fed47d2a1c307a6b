"""A hook in the workers that compute rewards: records the score of each sample and the function's other results."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping
from typing import Any, cast

from msprobe.verl._process_recording import ProcessRecording
from msprobe.verl._samples import policy_version_of
from msprobe.verl._wrapping import Method
from msprobe_core.recording import ProcessManifest
from msprobe_core.rl import Reward, RewardWriter, RLStage
from msprobe_core.store import sample_id


def score_method(original: Method) -> Method:
    """Wrap `RewardLoopWorker.compute_score(data)`: the last row of the data is the sample that is scored."""
    writers: dict[int, RewardWriter] = {}

    @functools.wraps(original)
    async def call(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, data, *args, **kwargs)
        recording = ProcessRecording.current()
        if recording is not None and recording.is_open:
            with recording.guard(RLStage.REWARD.value):
                _save(recording, writers, data, result)
        return result

    return call


def _save(recording: ProcessRecording, writers: dict[int, RewardWriter], data: Any, result: Mapping[str, Any]) -> None:
    others = data.non_tensor_batch
    step = _last(others.get("global_steps"))
    if step is None:
        version = policy_version_of({"extra_fields": others.get("tool_extra_fields")})
        step = 0 if version is None else version + 1
    if not recording.config.stages.selects(RLStage.REWARD.value, int(step), 0):
        return
    if recording.role == "process":
        recording.act_as("reward")
    writer = writers.get(int(step))
    if writer is None:
        name = f"{platform.node() or 'host'}-{os.getpid()}"
        is_first = not writers
        writer = writers[int(step)] = RewardWriter(recording.out, int(step), name)
        if is_first:  # of this process, which computes no model: there is no dump that it could be beside
            ProcessManifest(writer.path.with_suffix(""), recording.framework)
    writer.add(_reward(data, others, result))


def _reward(data: Any, others: Mapping[str, Any], result: Mapping[str, Any]) -> Reward:
    ids = data.batch["input_ids"][-1].cpu().numpy()
    mask = data.batch["attention_mask"][-1].cpu().numpy().astype(bool)
    width = int(data.batch["prompts"].shape[-1])
    prompt_length = _last(others.get("prompt_len"))
    # Data with lengths is not padded on the left; in other data the prompts are.
    prompt = ids[:width][mask[:width]] if prompt_length is None else ids[: int(prompt_length)]
    extra = result.get("reward_extra_info")
    uid = _last(others.get("uid"))
    return Reward(
        id=sample_id(ids[mask]), prompt_id=sample_id(prompt), uid=None if uid is None else str(uid),
        score=_number(result.get("reward_score")), extra=_plain(extra) if isinstance(extra, Mapping) else {},
    )  # fmt: skip


def _last(values: Any) -> Any:
    return None if values is None or not len(values) else values[-1]


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def _plain(extra: Mapping[Any, Any]) -> dict[str, float | str | None]:
    found: dict[str, float | str | None] = {}
    for name, value in extra.items():
        number = _number(value)
        found[str(name)] = number if number is not None or value is None else str(cast("object", value))
    return found
