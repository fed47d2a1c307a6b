"""Planted faults, and the right answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from msprobe_core.locate import FaultKind as Kind


class Phase(str, Enum):
    """The part of a step that a fault is in."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    CONFIGURATION = "configuration"


@dataclass(frozen=True)
class Truth:
    """Location of a planted fault.

    A suspect is right if its direction, step and rank are right, and one of the following holds:

    * it is one of ``modules``, or a call directly inside one of them: its innermost recorded module is that module;
    * its name begins with one of ``calls`` and it is outside of every module;
    * it is inside one of ``groups``: the optimizer's step, the clipping of gradients.

    So modules around, inside or next to the location are wrong answers.

    Attributes:
        modules: Paths of modules, without the wrapper of a parallel layout; "" is the whole model.
        calls: Prefixes of names of calls outside of modules, such as ``Functional.cross_entropy``.
        groups: ``optimizer``, ``clip_grad``.
        directions: ``forward``, ``backward`` (which includes gradients of parameters); empty if any is right.
        steps: Steps with the fault; empty if any is right.
        ranks: Ranks with the fault, where suspects on additional ranks are wrong; empty if any is right.
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
        name: Name in tables.
        phase: Part of the step.
        kinds: Right answers for the kind.
        plant: Applies it to a training, and returns its location. The argument depends on the family of programs.
        needs: Parts of the anatomy that an architecture must have.
        only: Architectures to which it applies; if empty, all that have the needed parts.
        recipe: Recipe of the training.
    """

    name: str
    phase: Phase
    kinds: Sequence[Kind]
    plant: Any  # a callable with the training of the family as argument
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
