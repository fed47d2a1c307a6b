"""Hooks in the workers: the stage, its mini-batches and micro-batches, the optimizer's gradients, and sent weights.

Stage names come from the methods that the driver calls. Data is read one level below, in the engine, because under
TransferQueue the driver passes only keys.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msprobe.verl._process_recording import ProcessRecording
from msprobe.verl._samples import layout_of, plain, policy_version_of, rows_of, slice_of, trainer_step_of
from msprobe.verl._wrapping import Method, wraps_method
from msprobe_core.recording import Stage as OpenStage
from msprobe_core.rl import (
    VERSION,
    Hop,
    RLStage,
    WeightDigests,
    WeightLog,
    WeightsFile,
    announce_policy_version,
    log_checkpoint,
    placements_of,
    rank_directory,
    save_weights,
    sizes_of,
    tee,
)
from msprobe_core.store import Row


def stage_method(name: str) -> Callable[[Method], Method]:
    """Return a wrapper for a method that is a complete stage."""

    @wraps_method
    def wrap(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = ProcessRecording.current()
        if recording is None:
            return original(self, *args, **kwargs)
        recording.note_worker(self)
        with recording.stage(name):
            return original(self, *args, **kwargs)

    return wrap


_OLDER_MODELS = {
    RLStage.ACTOR_LOG_PROB.value: ("actor_module_fsdp", "actor_module"),
    RLStage.ACTOR_UPDATE.value: ("actor_module_fsdp", "actor_module"),
    RLStage.REF_LOG_PROB.value: ("ref_module_fsdp", "ref_module"),
    RLStage.VALUES.value: ("critic_module",),
    RLStage.CRITIC_UPDATE.value: ("critic_module",),
}
"""Attributes in which workers before 0.8 keep the model of a stage."""


def older_stage_method(name: str) -> Callable[[Method], Method]:
    """Return a wrapper for a complete stage of workers before 0.8, which hold their models themselves."""

    @wraps_method
    def wrap(original: Method, self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        recording = ProcessRecording.current()
        if recording is None:
            return original(self, data, *args, **kwargs)
        recording.note_worker(self)
        with recording.stage(name) as stage:
            if stage is not None:
                with recording.guard(name):
                    found = [getattr(self, attribute, None) for attribute in _OLDER_MODELS[name]]
                    model = next(model for model in found if model is not None)
                    models = list(model) if isinstance(model, list | tuple) else [model]  # pyright: ignore[reportUnknownArgumentType]
                    begin(recording, stage, models, getattr(data, "meta_info", {}))
            return original(self, data, *args, **kwargs)

    return wrap


def critic_method(name: str) -> Callable[[Method], Method]:
    """Return a wrapper for a method of a worker that is a critic of its own, or part of a worker with its own stage."""

    @wraps_method
    def wrap(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = ProcessRecording.current()
        if recording is None:
            return original(self, *args, **kwargs)
        running = recording.open_stage
        if running is not None:
            _correct(running, args, kwargs)
        # Within a stage this method is a part of it. Outside, only a critic begins one here.
        is_critic = getattr(getattr(self, "config", None), "model_type", None) == "value_model"
        if running is not None or not is_critic:
            return original(self, *args, **kwargs)
        recording.note_worker(self)
        with recording.stage(name):
            return original(self, *args, **kwargs)

    return wrap


def _correct(stage: OpenStage, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Rename the stage if a flag in the data asks for the reference policy, which may be the actor without adapter."""
    data = args[0] if args else kwargs.get("data")
    if stage.name == RLStage.ACTOR_LOG_PROB.value and hasattr(data, "get") and plain(data, "no_lora_adapter"):
        stage.name = RLStage.REF_LOG_PROB.value


@wraps_method
def batch_method(original: Method, self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `train_batch` or `infer_batch` of an engine: one mini-batch of the current stage."""
    recording = ProcessRecording.current()
    stage = None if recording is None else recording.open_stage
    if recording is not None and stage is not None:
        with recording.guard(stage.name):
            begin(recording, stage, models_of(self), data)
            stage.mini_batch()
    return original(self, data, *args, **kwargs)


def begin(recording: ProcessRecording, stage: OpenStage, models: list[Any], data: Any) -> None:
    """Begin to record a stage, unless it has begun, at the step that the data belongs to."""
    if stage.has_begun:
        return
    version, step = policy_version_of(data), trainer_step_of(data)
    if step is None:
        step = recording.trainer_step
    if step is None:
        # A script that calls workers directly has no trainer: use the data's policy version, or count the calls.
        step = version + 1 if version is not None else recording.next_step(stage.name)
    if recording.role == "process":
        recording.act_as("worker", recording.framework.rank())
    stage.begin(models, step=step, policy_version=version)


def models_of(engine: Any) -> list[Any]:
    """Return the models of an engine: one, or the chunks of a pipeline stage."""
    module = engine.module
    return list(module) if isinstance(module, list | tuple) else [module]


@wraps_method
def step_method(original: Method, self: Any, micro_batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `forward_step` of an engine, which gets one micro-batch, computes, and returns its loss."""
    recording = ProcessRecording.current()
    stage = None if recording is None else recording.open_stage
    if recording is None or stage is None or not stage.is_recording:
        return original(self, micro_batch, *args, **kwargs)
    with recording.guard(stage.name):
        stage.micro_batch(_own_rows(self, micro_batch), layout_of(micro_batch))
    result = original(self, micro_batch, *args, **kwargs)
    with recording.guard(stage.name):
        _take_loss(stage, result)
    return result


def _own_rows(engine: Any, micro_batch: Any) -> list[Row]:
    """Return the rows of a micro-batch that this process computes: with Ulysses, its slice of the padded sequence."""
    rows = rows_of(micro_batch)
    size = getattr(engine, "ulysses_sequence_parallel_size", 1)
    if size < 2:
        return rows
    total = sum(row.length for row in rows)
    padding = getattr(engine, "_get_packed_pad_size", None)
    total += 0 if padding is None else padding(total)
    return slice_of(rows, math.ceil(total / size), engine.ulysses_device_mesh["sp"].get_local_rank())


def _take_loss(stage: OpenStage, result: Any) -> None:
    output = result[1] if isinstance(result, tuple) and len(result) == 2 else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    is_training = stage.name in {RLStage.ACTOR_UPDATE.value, RLStage.CRITIC_UPDATE.value}
    if is_training and isinstance(output, dict) and isinstance(output.get("loss"), float):  # pyright: ignore[reportUnknownMemberType]
        stage.loss(output["loss"])  # pyright: ignore[reportUnknownArgumentType]


@wraps_method
def pipeline_step_method(original: Method, self: Any, batch_iter: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `forward_step` of Megatron's engines, which gets an iterator over micro-batches and a model chunk."""
    recording = ProcessRecording.current()
    stage = None if recording is None else recording.open_stage
    if recording is None or stage is None or not stage.is_recording:
        return original(self, batch_iter, *args, **kwargs)
    model = args[0] if args else kwargs.get("model")
    # Each chunk of a virtual pipeline has its own iterator over the same micro-batches, so only one is counted.
    chunks = models_of(self)
    counts = len(chunks) < 2 or model is chunks[0]
    return original(self, _seen(batch_iter, recording, stage) if counts else batch_iter, *args, **kwargs)


def _seen(batches: Iterator[Any], recording: ProcessRecording, stage: OpenStage) -> Iterator[Any]:
    for batch in batches:
        with recording.guard(stage.name):
            stage.micro_batch(rows_of(batch), layout_of(batch))
        yield batch


@wraps_method
def optimizer_method(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `optimizer_step` of an engine, which returns the gradient norm before clipping."""
    norm = original(self, *args, **kwargs)
    recording = ProcessRecording.current()
    stage = None if recording is None else recording.open_stage
    if recording is not None and stage is not None:
        with recording.guard(stage.name):
            stage.update(norm if isinstance(norm, int | float) else None)
    return norm


class _Transfer:
    """A transfer of weights in progress in this process."""

    step: int | None = None
    is_running = False
    has_exported = False


def send_method(original: Method) -> Method:
    """Wrap the method that sends weights: digests are taken of everything exported while it runs."""

    @functools.wraps(original)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = ProcessRecording.current()
        if recording is None or not recording.config.weights or not recording.is_open:
            return await original(self, *args, **kwargs)
        _Transfer.step = args[0] if args else kwargs.get("global_steps")
        _Transfer.is_running = True
        with recording.guard("the policy's version"):
            # One rank is enough: engines read the version from the run's directory.
            if _Transfer.step is not None and not recording.framework.rank():
                announce_policy_version(recording.out, _Transfer.step)
        try:
            return await original(self, *args, **kwargs)
        finally:
            _Transfer.is_running = False

    return call


@wraps_method
def export_method(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `get_per_tensor_param` of an engine, which returns names, whole tensors, and an adapter's description."""
    result = original(self, *args, **kwargs)
    recording = ProcessRecording.current()
    if recording is None or not _Transfer.is_running or not isinstance(result, tuple):
        return result
    parameters, *others = result  # pyright: ignore[reportUnknownVariableType]
    return (_sent(self, recording, parameters), *others)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _log_shards(engine: Any, recording: ProcessRecording, step: int, rank: int) -> None:
    """Log the parameters that this process holds, if they know which parts of whole ones they are."""
    models = models_of(engine)
    named = [(name, each) for model in models for name, each in model.named_parameters()]
    if not named or not all(hasattr(each, "placements") for _, each in named):
        return
    log = WeightLog(recording.out, Hop.SHARD, rank=rank, model=models[0])
    log.sync(step)
    for name, parameter in named:
        log.add(name, parameter)
    log.close()


def _first_export(engine: Any, recording: ProcessRecording, step: int, rank: int) -> WeightLog | None:
    """Return the log of what is exported first; the checkpoint that the model was loaded from is logged here."""
    if Hop.EXPORTED not in recording.config.hops or _Transfer.has_exported or rank:
        return None
    _Transfer.has_exported = True
    model = models_of(engine)[0]
    path = getattr(getattr(model, "config", None), "name_or_path", "")
    if Hop.DISK in recording.config.hops and path and Path(path).is_dir():
        log_checkpoint(recording.out, Path(path), step)
    log = WeightLog(recording.out, Hop.EXPORTED, rank=rank, model=model)
    log.sync(step)
    return log


def _sent(engine: Any, recording: ProcessRecording, parameters: Any) -> Any:
    step = _Transfer.step if _Transfer.step is not None else recording.next_step(RLStage.WEIGHTS_SENT.value)
    digests: WeightDigests | None = None
    first: WeightLog | None = None
    rank = 0
    with recording.guard(RLStage.WEIGHTS_SENT.value):
        rank = recording.framework.rank() or 0
        if recording.config.selects_hop(Hop.SHARD, step, rank):
            _log_shards(engine, recording, step, rank)
        first = _first_export(engine, recording, step, rank)
        if recording.config.selects_weights(RLStage.WEIGHTS_SENT.value, step, rank):
            models = models_of(engine)
            digests = WeightDigests(recording.framework, sizes_of(models), placements_of(models), is_sender=True)
    if digests is None:
        yield from parameters
        return
    taken = digests

    def take(name: str, tensor: Any) -> None:
        with recording.guard(f"{RLStage.WEIGHTS_SENT.value}, {name}"):
            taken.take(name, tensor)
            if first is not None:
                first.add(name, tensor)

    yield from tee(parameters, take)
    with recording.guard(RLStage.WEIGHTS_SENT.value):
        if first is not None:
            first.close()
        save_weights(
            rank_directory(recording.out, RLStage.WEIGHTS_SENT.value, step, rank),
            WeightsFile(version=VERSION, step=step, rank=rank, policy_version=step, parameters=digests.finish()),
        )
