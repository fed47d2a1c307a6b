"""Names of modules and parameters, and which of them the plan asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
        self._targets: Sequence[str] = plan.targets
        self._modules = frozenset(plan.targets)
        self._takes_all_modules = not plan.targets or plan.all_xy
        self._own_of_modules = plan.selections.get(Quantity.ACTIVATION)
        self._is_squashed = plan.squash_name

    def name_of(self, name: str) -> str:
        """Return the name that results have."""
        return without_wrappers(name) if self._is_squashed else name

    def selects_parameter(self, stage: int, name: str) -> bool:
        """Whether a parameter is a target, by the beginning of its name as results have it."""
        whole = f"{stage}:{name}"
        return not self._targets or any(name.startswith(each) or whole.startswith(each) for each in self._targets)

    def module_selector(self, stage: int) -> Callable[[str], bool]:
        """Return a function that says whether a module is a target, by its path or by its name as results have it."""

        def selects(path: str) -> bool:
            name = self.name_of(path)
            return not self._modules.isdisjoint((path, name, f"{stage}:{path}", f"{stage}:{name}"))

        if (own := self._own_of_modules) is not None:
            return lambda path: own.selects(self.name_of(path))
        return (lambda _path: True) if self._takes_all_modules else selects
