"""How a training is laid out over ranks: what this rank has of each tensor, and which ranks have the rest."""

from __future__ import annotations

from pathlib import Path

from msprobe_core.monitor.readings import Step
from msprobe_core.monitor.sinks import Sink
from msprobe_core.monitor.training import Source, Take, Training
from msprobe_core.monitoring.layout_file import FILE, OF_UPDATES, OF_VALUES, Group, Layouts, Parts
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.store.atomic_file import write_json


class Layout(Source, Sink):
    """Notes the parts, and writes what is new of them after each step.

    Nothing is communicated: readers put the files of all ranks together.
    """

    def __init__(self, training: Training) -> None:
        """Begin with nothing noted."""
        self._training = training
        self._parts: dict[str, Parts] = {}
        self._path: Path | None = None
        self._has_news = False

    def open(self, directory: Path) -> None:
        """Say where the file is to be."""
        self._path = directory / FILE

    def before_update(self, take: Take) -> None:
        """Note the parameters that are new."""
        del take
        trainer = self._training.trainer
        if trainer is None:
            return
        for (stage, name), parameter in self._training.parameters.items():
            place = f"{stage}:{name}"
            if place not in self._parts:
                self._parts[place] = Parts(
                    value=trainer.part_of(parameter, is_updated=False),
                    update=trainer.part_of(parameter, is_updated=True),
                    is_tensor_parallel=trainer.is_tensor_parallel(parameter),
                    ranks=trainer.reducing_ranks(parameter),
                )
                self._has_news = True

    def names_of(self, quantity: Quantity) -> frozenset[str]:
        """Return the parameters of which this rank should have a quantity, as ``stage:name``."""
        return frozenset(
            place
            for place in (f"{stage}:{name}" for stage, name in self._training.parameters.ever)
            if not self._is_elsewhere(place, quantity)
        )

    def _is_elsewhere(self, place: str, quantity: Quantity) -> bool:
        parts = self._parts.get(place, Parts())
        part = parts.update if quantity in OF_UPDATES else parts.value if quantity in OF_VALUES else None
        return part is not None and part.is_empty

    def add(self, step: Step) -> None:
        """Write what is new.

        Raises:
            StoreError: it cannot be written.
        """
        del step
        if not self._has_news or self._path is None:
            return
        self._has_news = False
        write_json(self._path, self.content())

    def content(self) -> Layouts:
        """Return what ``layout.json`` holds."""
        training, trainer = self._training, self._training.trainer
        groups = {name: group for name, group in training.groups.items() if group is not None}
        ranks = {} if trainer is None else {name: trainer.ranks_of(group) for name, group in groups.items()}
        return Layouts(
            rank=training.rank,
            trainers=() if trainer is None else tuple(trainer.trainers),
            groups={
                name: Group(ranks=own, index=own.index(training.rank))
                for name, own in ranks.items()
                if training.rank in own
            },
            parts={place: parts for place, parts in self._parts.items() if parts != Parts()},
        )
