"""What the commands of ``msprobe monitor`` share: their options, what they read, and how they name a value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from msprobe_core.errors import ConfigError

if TYPE_CHECKING:
    from msprobe_core.findings import Finding
    from msprobe_core.monitoring.history import Monitored, Place

_Command = TypeVar("_Command", bound=Callable[..., Any])


class FoundValue(Protocol):
    """A value of a monitored training, and what is found of it."""

    @property
    def rank(self) -> int:
        """Of the process."""
        ...

    @property
    def step(self) -> int:
        """In which it is."""
        ...

    @property
    def place(self) -> Place:
        """Which value."""
        ...

    @property
    def finding(self) -> Finding:
        """What it does."""
        ...


def output_option(name: str) -> Callable[[_Command], _Command]:
    """Return the option that writes a result.

    Args:
        name: Of the file.
    """
    return click.option("-o", "--output_path", type=click.Path(path_type=Path), help=f"Directory for {name}.")


def false_alarms_option(meaning: str) -> Callable[[_Command], _Command]:
    """Return the option that sets limits.

    Args:
        meaning: Of which healthy trainings it is the probability.
    """
    return click.option(
        "--false-alarms",
        default=1e-3,
        show_default=True,
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help=f"Probability that {meaning}.",
    )


def numbers_of(text: str, option: str, advice: str) -> list[int]:
    """Return the numbers that an option lists.

    Args:
        text: As JSON.
        option: Its name, for messages.
        advice: What to give, for messages.

    Raises:
        ConfigError: it is no list of numbers.
    """
    import msgspec

    try:
        return msgspec.json.decode(text, type=list[int])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{option} is {text!r}; {advice}") from error


def steps_of(text: str) -> list[int]:
    """Return the steps that ``--step`` lists.

    Raises:
        ConfigError: it is no list of numbers.
    """
    return numbers_of(text, "--step", "give a list of numbers such as [3,4]")


def monitored(directory: Path) -> Monitored:
    """Return what a monitor has written, and print what was left out.

    Raises:
        DumpError: there is nothing of a monitor, or a file cannot be read.
    """
    from msprobe_core.monitoring.files import monitored_directory, read_monitored

    run = read_monitored(monitored_directory(directory))
    for note in run.notes:
        click.echo(f"note: {directory}: {note.text}", err=True)
    return run


def shown_place(found: FoundValue) -> str:
    """Return the value in words."""
    place = found.place
    micro_step = "" if place.micro_step is None else f", micro-batch {place.micro_step}"
    return f"{place.quantity} of {place.shown} on rank {found.rank} at step {found.step}{micro_step}"


def next_step(found: FoundValue) -> Finding:
    """Return what to record to look closer."""
    from msprobe_core.locate.commands import zoom_in

    return zoom_in(found.place, found.step, found.rank)


def record_of(found: FoundValue) -> dict[str, object]:
    """Return what a result's file says of a value."""
    from msprobe_core.findings import content_of

    return {
        "rank": found.rank,
        "step": found.step,
        "quantity": found.place.quantity,
        "vpp_stage": found.place.stage or 0,
        "name": found.place.name,
        "micro_step": found.place.micro_step,
        "message": found.finding.text,
        "finding": content_of(found.finding),
        "next": content_of(next_step(found)),
    }
