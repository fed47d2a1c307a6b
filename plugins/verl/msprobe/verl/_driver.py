"""Hooks in the driver: they send the step number to workers, and save a step's batch with all computed tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe.verl._config import inherited_environment
from msprobe.verl._process_recording import STEP_KEY, ProcessRecording
from msprobe.verl._settings import container
from msprobe.verl._wrapping import Method, wraps_method
from msprobe_core.plugin import DumpError
from msprobe_core.rl import (
    VERSION,
    BatchFile,
    BatchRow,
    PolicyVersions,
    RLStage,
    Sampling,
    load_batch,
    save_batch,
    trainer_directory,
)
from msprobe_core.store import sample_id

Array = NDArray[Any]

_LEFT = frozenset({"prompts"})
"""Tensors padded on the left in verl's own padded batches."""

_STAND_INS = frozenset({"dummy_tensor"})
"""Placeholders that verl puts into batches that need at least one tensor."""

_NOT_KEPT = frozenset({"position_ids", "input_ids", "attention_mask", "loss_mask"})
"""Entries of batches without padding that are not saved: they are recomputed here, or of no use."""


@wraps_method
def driver_method(original: Method, self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap a trainer's method that makes workers compute something for a batch: passes them the trainer's step."""
    return _with_step(original, self, batch, *args, **kwargs)


def _with_step(original: Method, self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    recording = ProcessRecording.current()
    if recording is not None:
        with recording.guard("the trainer's step"):
            _tell_step(recording, self, batch)
    return original(self, batch, *args, **kwargs)


@wraps_method
def update_method(original: Method, self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap the method that updates a model: after it, the batch is complete, and is saved."""
    result = _with_step(original, self, batch, *args, **kwargs)
    recording = ProcessRecording.current()
    if recording is not None and recording.config.batch and recording.is_open:
        with recording.guard(RLStage.TRAINER.value):
            _save_batch(recording, self, batch)
    return result


@wraps_method
def log_method(original: Method, self: Any, data: Any, step: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap the function that logs the metrics of a step: saves them with the step's batch."""
    recording = ProcessRecording.current()
    if recording is not None and recording.config.batch:
        with recording.guard("metrics of the trainer"):
            _add_metrics(recording, data, int(step))
    return original(self, data, step, *args, **kwargs)


@wraps_method
def environment_method(original: Method, *args: Any, **kwargs: Any) -> Any:
    """Wrap the function that makes the environment of all processes of the job: adds the switch to it."""
    result = original(*args, **kwargs)
    recording = ProcessRecording.current()
    if recording is not None and isinstance(result, dict):
        result.setdefault("env_vars", {}).update(inherited_environment())
    return result  # pyright: ignore[reportUnknownVariableType]


@wraps_method
def fit_method(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap the method that runs the whole training: describes the run before any process of it records a stage."""
    recording = ProcessRecording.current()
    if recording is not None:
        with recording.guard("the run"):
            _describe(recording, self)
    return original(self, *args, **kwargs)


def _describe(recording: ProcessRecording, trainer: Any) -> None:
    if recording.role == "process":
        recording.act_as("driver")
    recording.describe_run(container(trainer.config), sampling_of(trainer.config))


def _tell_step(recording: ProcessRecording, trainer: Any, batch: Any) -> None:
    step = int(trainer.global_steps)
    _describe(recording, trainer)
    for name in ("extra_info", "meta_info"):  # key metadata of TransferQueue, and DataProto
        info = getattr(batch, name, None)
        if isinstance(info, dict):
            info[STEP_KEY] = step


def sampling_of(config: Any) -> Sampling:
    """Return how responses are sampled in training."""
    rollout = config.actor_rollout_ref.rollout

    def number(name: str, kind: Callable[[Any], Any]) -> Any:
        value = rollout.get(name, None)
        return None if value is None else kind(value)

    return Sampling(
        temperature=number("temperature", float), top_p=number("top_p", float), top_k=number("top_k", int),
        do_sample=number("do_sample", bool), logprobs_mode=number("logprobs_mode", str),
    )  # fmt: skip


def _save_batch(recording: ProcessRecording, trainer: Any, batch: Any) -> None:
    step = int(trainer.global_steps)
    if not recording.config.stages.selects(RLStage.TRAINER.value, step, 0):
        return
    if hasattr(batch, "keys") and hasattr(batch, "partition_id"):
        tensors, others = _queued(batch)
    else:
        tensors, others = _padded(batch.batch.items()), dict(batch.non_tensor_batch)
    tensors = {name: array for name, array in tensors.items() if name not in _STAND_INS}
    samples, versions = _samples(tensors, others), _versions(others)
    file = BatchFile(
        version=VERSION, step=step, rows=len(samples), sampling=sampling_of(trainer.config),
        policy_version=versions, samples=tuple(samples),
    )  # fmt: skip
    save_batch(trainer_directory(recording.out, step), file, tensors)


def _queued(batch: Any) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return tensors and other values of a batch in TransferQueue, padded as in verl's older trainer."""
    import transfer_queue as tq  # pyright: ignore[reportMissingImports]  # part of verl's environment

    data: Any = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
    others: dict[str, Any] = {}
    nested: list[tuple[str, Any]] = []
    for key in data.keys():  # noqa: SIM118  # a TensorDict iterates over rows
        value = data.get(key)
        if hasattr(value, "is_nested"):  # a tensor
            nested.append((key, value))
        elif hasattr(value, "tolist"):
            others[key] = value.tolist()
    # TransferQueue keeps the policy's versions with each trajectory.
    tags = getattr(batch, "tags", None)
    for name in ("min_global_steps", "max_global_steps"):
        if tags:
            others.setdefault(name, [tag.get(name) for tag in tags])
    tensors = _padded((key, value) for key, value in nested if key not in _NOT_KEPT)
    lengths = {key: _lengths(value) for key, value in nested if key in {"prompts", "responses"}}
    if len(lengths) == 2:
        prompts, responses = tensors["prompts"], tensors["responses"]
        masks = _mask(lengths["prompts"], prompts.shape[1], left=True), _mask(lengths["responses"], responses.shape[1])
        tensors["input_ids"] = np.concatenate([prompts, responses], axis=1)
        tensors["attention_mask"] = np.concatenate(masks, axis=1)
    return tensors, others


def _padded(items: Iterable[tuple[str, Any]]) -> dict[str, Array]:
    """Return tensors as arrays ``[rows, …]``; nested tensors are zero-padded, unsupported ones are left out."""
    found: dict[str, Array] = {}
    for key, tensor in items:
        array = _rows(tensor.detach().cpu(), left=key in _LEFT)
        if array is not None:
            found[key] = array
    return found


def _rows(tensor: Any, *, left: bool) -> Array | None:
    if not tensor.is_nested:
        return _array(tensor)
    parts = [_array(part) for part in tensor.unbind()]
    if any(part is None or part.ndim != 1 for part in parts):  # for example positions with several axes
        return None
    rows = cast("list[Array]", parts)
    width = max((len(row) for row in rows), default=0)
    padded = np.zeros((len(rows), width), rows[0].dtype if rows else np.float32)
    for line, row in zip(padded, rows, strict=True):
        line[width - len(row) if left else 0 : width if left else len(row)] = row
    return padded


def _array(tensor: Any) -> Array | None:
    if str(tensor.dtype) in {"torch.bfloat16", "torch.float16"}:
        tensor = tensor.float()  # exact, and every reader supports it
    try:
        return np.array(tensor.numpy())  # a copy, because rows of a loaded batch may share their memory
    except (TypeError, RuntimeError):
        return None


def _lengths(tensor: Any) -> list[int]:
    if tensor.is_nested:
        return [int(part.shape[0]) for part in tensor.unbind()]
    return [int(tensor.shape[1])] * int(tensor.shape[0])


def _mask(lengths: list[int], width: int, *, left: bool = False) -> Array:
    mask = np.zeros((len(lengths), width), np.int64)
    for line, length in zip(mask, lengths, strict=True):
        line[width - length if left else 0 : width if left else length] = 1
    return mask


def _samples(tensors: Mapping[str, Array], others: Mapping[str, Any]) -> list[BatchRow]:
    if not {"prompts", "input_ids", "attention_mask"} <= tensors.keys():
        return []
    width = tensors["prompts"].shape[1]
    uids = others.get("uid")
    rows: list[BatchRow] = []
    for i, (ids, mask) in enumerate(zip(tensors["input_ids"], tensors["attention_mask"].astype(bool), strict=True)):
        prompt = ids[:width][mask[:width]]
        uid = None if uids is None else str(uids[i])
        rows.append(
            BatchRow(
                id=sample_id(ids[mask]), prompt_id=sample_id(prompt), uid=uid, prompt_length=len(prompt),
                total_length=int(mask.sum()),
            )
        )  # fmt: skip
    return rows


def _versions(others: Mapping[str, Any]) -> PolicyVersions | None:
    def numbers(name: str) -> list[int]:
        values = others.get(name)
        return [] if values is None else [int(value) for value in values if value is not None]

    oldest, newest = numbers("min_global_steps"), numbers("max_global_steps")
    if not oldest and not newest:
        return None
    return PolicyVersions(min=min(oldest, default=None), max=max(newest, default=None))


def _add_metrics(recording: ProcessRecording, data: Any, step: int) -> None:
    directory = trainer_directory(recording.out, step)
    if not recording.config.stages.selects(RLStage.TRAINER.value, step, 0) or not directory.is_dir():
        return
    try:
        batch, tensors = load_batch(directory)
    except DumpError:
        return  # metrics left over from another step
    metrics = dict(batch.metrics)
    for name, value in dict(data).items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            continue
        metrics[str(name)] = float(value) if math.isfinite(value) else None
    save_batch(directory, msgspec.structs.replace(batch, metrics=metrics), tensors)
