"""What a planted fault is, and what is the right answer to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from msprobe_core.locate import FaultKind as Kind


class Phase(str, Enum):
    """Where in a step a fault is."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    CONFIGURATION = "configuration"


@dataclass(frozen=True)
class Truth:
    """Where a planted fault is.

    A suspect is right if it is in the right direction, step and rank, and one of

    * it is one of ``modules``, or a call directly inside one of them: its innermost recorded module is that module;
    * its name begins with one of ``calls`` and it is outside of every module;
    * it is inside one of ``groups``: the optimizer's step, the clipping of gradients.

    So neither a module around the place nor one inside it or beside it is right.

    Attributes:
        modules: Paths of modules, without the wrapper of a parallel layout; "" is the whole model.
        calls: Beginnings of names of calls outside of modules, as ``Functional.cross_entropy``.
        groups: ``optimizer``, ``clip_grad``.
        directions: ``forward``, ``backward`` (gradients of parameters count as that); empty if any is right.
        steps: In which it is; empty if any is right.
        ranks: On which it is, and no suspect on others besides is right; empty if any is right.
    """

    modules: Sequence[str] = ()
    calls: Sequence[str] = ()
    groups: Sequence[str] = ()
    directions: Sequence[str] = ()
    steps: Sequence[int] = ()
    ranks: Sequence[int] = ()


@dataclass(frozen=True)
class Fault:
    """A fault to plant.

    Attributes:
        name: What tables call it.
        phase: Where in a step it is.
        kinds: Right answers to what it is.
        plant: Does it to a training, and returns where. What it is given depends on the family of programs.
        needs: Parts of the anatomy that an architecture must have.
        only: The architectures it is for; all that have what it needs if empty.
        recipe: Of the training.
    """

    name: str
    phase: Phase
    kinds: Sequence[Kind]
    plant: Any  # Callable of each family's own training
    needs: Sequence[str] = ()
    only: Sequence[str] = ()
    recipe: str = "plain"


@dataclass
class Registry:
    """Faults by name, in the order in which they were added."""

    faults: dict[str, Fault] = field(default_factory=dict)

    def add(
        self,
        name: str,
        phase: Phase,
        *kinds: Kind,
        needs: Sequence[str] = (),
        only: Sequence[str] = (),
        recipe: str = "plain",
    ):
        """Return a decorator that adds a function as a fault."""

        def register(plant):
            if name in self.faults:
                raise ValueError(f"there are two faults with the name {name!r}")
            self.faults[name] = Fault(name, phase, kinds, plant, needs, only, recipe)
            return plant

        return register
