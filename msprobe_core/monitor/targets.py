"""Names of modules and parameters, and which of them the plan asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msprobe_core.config.name_patterns import NamePattern
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.names import without_wrappers


class Targets:
    """Applies ``targets``, ``all_xy`` and ``squash_name``."""

    def __init__(self, plan: MonitorPlan) -> None:
        """Read the plan.

        Args:
            plan: Has the names.
        """
        self._own_of_modules = plan.selections.get(Quantity.ACTIVATION)
        self._is_squashed = plan.squash_name
        # A parameter is named by the beginning of its name.
        self._parameters = _Names([f"{name}*" for name in plan.targets])
        self._modules = None if plan.all_xy or not plan.targets else _Names(plan.targets)
        self._has_targets = bool(plan.targets)

    def name_of(self, name: str) -> str:
        """Return the name that results have."""
        return without_wrappers(name) if self._is_squashed else name

    def selects_parameter(self, stage: int, name: str) -> bool:
        """Whether a parameter is a target, by the beginning of its name as results have it."""
        return not self._has_targets or self._parameters.match(stage, name)

    def module_selector(self, stage: int, names: Sequence[str] | None = None) -> Callable[[str], bool]:
        """Return a function that says whether a module is a target, by its path or by its name as results have it.

        Args:
            stage: Position of its model.
            names: Of modules, instead of the targets.
        """
        if names is None and (own := self._own_of_modules) is not None:
            return lambda path: own.selects(self.name_of(path))
        chosen = self._modules if names is None else _Names(names)
        if chosen is None:
            return lambda _path: True
        return lambda path: chosen.match(stage, path) or chosen.match(stage, self.name_of(path))


class _Names:
    """Names with or without ``stage:`` in front; stars in them stand for any text."""

    def __init__(self, names: Sequence[str]) -> None:
        self._whole = frozenset(name for name in names if "*" not in name)
        self._patterns = [NamePattern(name) for name in names if "*" in name]

    def match(self, stage: int, name: str) -> bool:
        """Whether one of them is, or fits, a name."""
        both = (name, f"{stage}:{name}")
        return not self._whole.isdisjoint(both) or any(
            pattern.matches(each) for pattern in self._patterns for each in both
        )
