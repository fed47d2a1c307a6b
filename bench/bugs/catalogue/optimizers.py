"""Bugs of optimizers and schedules in a library of them; both sides run the code that was released."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.bugs.bug import Bug, Catalogue, Kind, Side
from bench.bugs.catalogue.trainings import llama
from bench.bugs.program import Program, language_model, scheduled
from bench.faults.truth import Truth

_NAME = "pytorch_optimizer"


def release(version: str) -> Sequence[str]:
    """Return the requirements of a release."""
    return (f"{_NAME}=={version}",)


def _trained_by(kind: str, *, num_steps: int = 2, **options: Any) -> Program:
    import pytorch_optimizer  # pyright: ignore[reportMissingImports]

    model = llama()
    return language_model(
        model, optimizer=getattr(pytorch_optimizer, kind)(model.parameters(), **options), num_steps=num_steps
    )


def _cautious(_: Side) -> Program:
    return _trained_by("AdEMAMix", lr=1e-2, cautious=True, num_steps=3)


def _adopt(_: Side) -> Program:
    return _trained_by("ADOPT", lr=1e-2)


def _parameter_free(_: Side) -> Program:
    return _trained_by("AdamG", lr=1e-2, p=0.5, q=0.24)


def _scheduled(_: Side) -> Program:
    from pytorch_optimizer.lr_scheduler.chebyshev import (  # pyright: ignore[reportMissingImports]
        get_chebyshev_schedule,
    )

    factors = get_chebyshev_schedule(6)
    return scheduled(language_model(llama()), lambda step: float(factors[step]))


def add_to(catalogue: Catalogue) -> None:
    """Add the bugs."""
    for name, kind, report, fix, symptom, place, make, defective, fixed in (
        (
            "cautious updates mask the momentum",
            Kind.OPTIMIZER,
            "kozistr/pytorch_optimizer#316",
            "kozistr/pytorch_optimizer#316",
            "training with cautious=True forgets momentum wherever it and the gradient disagree once",
            "AdEMAMix.step",
            _cautious,
            "3.3.1",
            "3.3.2",
        ),
        (
            "ADOPT updates its second moment first",
            Kind.OPTIMIZER,
            "kozistr/pytorch_optimizer#346",
            "kozistr/pytorch_optimizer#347",
            "results differ from the authors' implementation",
            "ADOPT.step",
            _adopt,
            "3.4.0",
            "3.4.1",
        ),
        (
            "AdamG inverts its bias correction",
            Kind.OPTIMIZER,
            "kozistr/pytorch_optimizer#305",
            "kozistr/pytorch_optimizer#308",
            "training diverges or does not begin",
            "AdamG.step",
            _parameter_free,
            "3.3.0",
            "3.3.1",
        ),
        (
            "Chebyshev schedule with the wrong number of steps",
            Kind.SCHEDULER,
            "kozistr/pytorch_optimizer#168",
            "kozistr/pytorch_optimizer#181",
            "learning rates are not those of the formula",
            "get_chebyshev_schedule",
            _scheduled,
            "2.10.0",
            "2.10.1",
        ),
    ):
        catalogue.add(
            Bug(
                name, kind, report=report, fix=fix, symptom=symptom, place=place, truth=Truth(groups=("optimizer",)),
                make=make, defective=release(defective), fixed=release(fixed),
            )
        )  # fmt: skip
