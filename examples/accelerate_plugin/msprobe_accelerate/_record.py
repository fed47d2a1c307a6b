"""Follows what an Accelerator prepares: batches begin micro-batches, and synchronised optimizer steps end updates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from msprobe_accelerate.hooks import EVALUATE, NAME, TRAIN
from msprobe_core.plugin import registry
from msprobe_core.recording import Stage, StageRecorder, check_stage_config, read_fields, trainer_stages
from msprobe_core.store import BatchLayout, Row, sample_id

RowsOf = Callable[[Any], Sequence[Row]]


def record(accelerator: Accelerator, config_path: str, rows_of: RowsOf | None = None) -> StageRecorder:
    """Record what an accelerator will prepare: call this before its ``prepare``.

    Args:
        accelerator: One that has prepared nothing yet.
        config_path: Configuration file: ``out``, ``steps``, ``stages``, ``level`` and so on, see docs/plugins.md. Steps
            are updates of the optimizer, from 0; an evaluation has the number of the updates before it.
        rows_of: Says which samples a batch has; by default those of ``input_ids``, and none of other data.

    Raises:
        ConfigError: the file cannot be read, or a field or a stage is unknown.
    """
    config = check_stage_config(read_fields(Path(config_path)), config_path, list(trainer_stages(NAME).stages))
    recorder = StageRecorder(config, registry().frameworks()["pytorch"].load())
    _Watch(accelerator, recorder, rows_of or _token_rows)
    return recorder


class _Watch:
    """Wraps methods of an accelerator and of what it prepares; none of it changes what they do or return."""

    def __init__(self, accelerator: Accelerator, recorder: StageRecorder, rows_of: RowsOf) -> None:
        self._accelerator = accelerator
        self._recorder = recorder
        self._rows_of = rows_of
        self._models: list[Any] = []
        self._num_optimizers = 0
        self._num_updates = 0
        self._stepped: set[int] = set()
        self._norm: float | None = None
        self._stage: Stage | None = None
        for name, note in (
            ("prepare_model", self._models.append),
            ("prepare_optimizer", self._note_optimizer),
            ("prepare_data_loader", self._note_loader),
        ):
            self._after(accelerator, name, note)
        self._after(accelerator, "clip_grad_norm_", self._note_norm)
        self._before(accelerator, "backward", self._note_loss)

    def _after(self, owner: Any, name: str, note: Callable[[Any], object]) -> None:
        """Have ``note`` called with what a method of one object returns."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            with self._recorder.guard(name):
                note(result)
            return result

        setattr(owner, name, call)

    def _before(self, owner: Any, name: str, note: Callable[[Any], object]) -> None:
        """Have ``note`` called with the first argument of a method of one object."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(first: Any, *args: Any, **kwargs: Any) -> Any:
            with self._recorder.guard(name):
                note(first)
            return original(first, *args, **kwargs)

        setattr(owner, name, call)

    def _note_optimizer(self, optimizer: Any) -> None:
        self._num_optimizers += 1
        self._after(optimizer, "step", lambda _: self._end_update(id(optimizer)))

    def _note_loader(self, loader: Any) -> None:
        """Have each batch of a loader told before its user gets it; other loaders of its class are not concerned."""
        watch, kind, original = self, type(loader), type(loader).__iter__

        @functools.wraps(original)
        def iterate(this: Any) -> Iterator[Any]:
            return watch._noted(original(this)) if this is loader else original(this)

        kind.__iter__ = iterate  # loaders of accelerate do not let their own class be replaced

    def _noted(self, batches: Iterable[Any]) -> Iterator[Any]:
        name = None
        try:
            for batch in batches:
                with self._recorder.guard("a batch"):
                    name = self._begin_batch(batch)
                yield batch
        finally:
            if self._stage is not None and self._stage.name == name:
                self._end_stage()

    def _begin_batch(self, batch: Any) -> str:
        name = TRAIN if any(model.training for model in self._models) else EVALUATE
        if self._stage is not None and self._stage.name != name:
            self._end_stage()  # an evaluation between two micro-batches; the update goes on after it
        if self._stage is None:
            self._stage = self._recorder.open(name)
            self._stage.begin(self._models, step=self._num_updates)
        self._stage.micro_batch(self._rows_of(batch) if self._stage.is_recording else (), BatchLayout.PADDED)
        return name

    def _note_loss(self, loss: Any) -> None:
        if self._stage is not None and self._stage.is_recording:
            self._stage.loss(float(loss.detach()))  # waits for the device; leave it out if that matters

    def _note_norm(self, norm: Any) -> None:
        if norm is not None and self._stage is not None and self._stage.is_recording:
            self._norm = float(norm)

    def _end_update(self, optimizer: int) -> None:
        """End the stage when the last optimizer has stepped; steps within an accumulation update nothing."""
        if not self._accelerator.sync_gradients:
            return
        self._stepped.add(optimizer)
        if len(self._stepped) < self._num_optimizers:
            return
        if self._stage is not None:
            self._stage.update(self._norm)
        self._norm = None
        self._stepped.clear()
        self._end_stage()
        self._num_updates += 1

    def _end_stage(self) -> None:
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.end()


def _token_rows(batch: Any) -> Sequence[Row]:
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        return ()
    ids = batch["input_ids"].cpu().numpy()
    mask = batch["attention_mask"].cpu().numpy().astype(bool) if "attention_mask" in batch else ids == ids
    rows = []
    for i, (tokens, kept) in enumerate(zip(ids, mask, strict=True)):
        length, identity = int(kept.sum()), sample_id(tokens[kept])
        rows.append(
            Row(
                id=identity, prompt_id=identity, row=i, offset=int(kept.argmax()), length=length, prompt_length=length,
                total_length=length,
            )
        )  # fmt: skip
    return rows
