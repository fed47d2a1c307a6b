"""The parameters that are monitored, as the models have them now: trainers wrap, add and unfreeze them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msprobe_core.monitor.targets import Targets
from msprobe_core.protocols.capabilities import MonitoringFramework


class LiveParameters(Mapping[tuple[int, str], Any]):
    """The selected parameters, by position of the model and name."""

    def __init__(self, framework: MonitoringFramework, models: Sequence[tuple[int, Any]], targets: Targets) -> None:
        """Look for them.

        Args:
            framework: Of the models.
            models: With their position in the list that was given.
            targets: Say which parameters.
        """
        self._framework = framework
        self._models = models
        self._targets = targets
        self.ever: set[tuple[int, str]] = set()
        """Places of all that have been there at any time."""
        self._all: dict[tuple[int, str], Any] = {}
        self._shown: Mapping[tuple[int, str], Any] = self._all
        self.refresh()

    def refresh(self) -> bool:
        """Look for them again, and return whether any has come, gone or been replaced."""
        found: dict[tuple[int, str], Any] = {}
        for stage, model in self._models:
            for name, parameter in self._framework.parameters_of(model).items():
                shown = self._targets.name_of(name)
                if self._targets.selects_parameter(stage, shown):
                    found[stage, shown] = parameter
        # Not ==, which compares the elements.
        if len(found) == len(self._all) and all(self._all.get(place) is each for place, each in found.items()):
            return False
        self._all = self._shown = found
        self.ever.update(found)
        return True

    @contextmanager
    def narrowed(self, keeps: Callable[[Any], bool] | None) -> Generator[None]:
        """Show only some of them inside of the block.

        Args:
            keeps: Which; ``None`` for all.
        """
        if keeps is not None:
            self._shown = {place: each for place, each in self._all.items() if keeps(each)}
        try:
            yield
        finally:
            self._shown = self._all

    def __getitem__(self, place: tuple[int, str]) -> Any:
        return self._shown[place]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(self._shown)

    def __len__(self) -> int:
        return len(self._shown)
