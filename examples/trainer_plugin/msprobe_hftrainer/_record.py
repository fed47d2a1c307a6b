"""Wraps the Trainer's own methods: begins and ends stages, and reports the samples of each micro-batch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from msprobe_core.plugin import registry
from msprobe_core.recording import StageRecorder, check_stage_config, read_fields, trainer_stages
from msprobe_core.store import BatchLayout, Row, sample_id
from msprobe_hftrainer.hooks import EVALUATE, NAME, TRAIN


def record(trainer: Trainer, config_path: str) -> StageRecorder:
    """Record a trainer from now on.

    Args:
        trainer: A trainer that has not begun to train.
        config_path: Configuration file: ``out``, ``steps``, ``stages``, ``level`` and so on, see docs/plugins.md.

    Raises:
        ConfigError: the file cannot be read, or a field or a stage is unknown.
    """
    path = Path(config_path)
    config = check_stage_config(read_fields(path), str(path), list(trainer_stages(NAME).stages))
    recorder = StageRecorder(config, registry().frameworks()["pytorch"].load())
    watch = _Watch(trainer, recorder)
    trainer.add_callback(watch)
    trainer.training_step = watch.around_training_step(trainer.training_step)
    trainer.prediction_step = watch.around_prediction_step(trainer.prediction_step)
    trainer.evaluation_loop = watch.around_evaluation(trainer.evaluation_loop)
    return recorder


class _Watch(TrainerCallback):
    """Begins and ends stages."""

    def __init__(self, trainer: Trainer, recorder: StageRecorder) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._open = ExitStack()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begin a stage for an optimizer step, with all its micro-batches."""
        self._open.close()  # an error may have skipped the end of the previous step
        self._open.enter_context(self._recorder.stage(TRAIN))

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """End the stage of the step."""
        self._open.close()

    def around_training_step(self, original: Any) -> Any:
        """Wrap the method that trains one micro-batch: reports its samples and its loss."""

        @functools.wraps(original)
        def call(model: Any, inputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
            self._before(model, inputs)
            loss = original(model, inputs, *args, **kwargs)
            stage = self._recorder.current
            if stage is not None and stage.is_recording:
                stage.loss(float(loss))  # waits for the device; leave it out if that matters
            return loss

        return call

    def around_prediction_step(self, original: Any) -> Any:
        """Wrap the method that evaluates one batch: reports its samples."""

        @functools.wraps(original)
        def call(model: Any, inputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
            self._before(model, inputs)
            return original(model, inputs, *args, **kwargs)

        return call

    def around_evaluation(self, original: Any) -> Any:
        """Wrap the evaluation in a stage."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._recorder.stage(EVALUATE):
                return original(*args, **kwargs)

        return call

    def _before(self, model: Any, inputs: Mapping[str, Any]) -> None:
        stage = self._recorder.current
        if stage is None:
            return
        with self._recorder.guard(stage.name):
            done = self._trainer.state.global_step
            stage.begin([model], step=done + 1 if stage.name == TRAIN else done)
            stage.micro_batch(_rows(inputs), BatchLayout.PADDED)


def _rows(inputs: Mapping[str, Any]) -> list[Row]:
    ids = inputs["input_ids"].cpu().numpy()
    mask = inputs["attention_mask"].cpu().numpy().astype(bool) if "attention_mask" in inputs else ids == ids
    rows = []
    for i, (tokens, kept) in enumerate(zip(ids, mask, strict=True)):
        length = int(kept.sum())
        identity = sample_id(tokens[kept])
        rows.append(
            Row(
                id=identity, prompt_id=identity, row=i, offset=int(kept.argmax()), length=length, prompt_length=length,
                total_length=length,
            )
        )  # fmt: skip
    return rows
