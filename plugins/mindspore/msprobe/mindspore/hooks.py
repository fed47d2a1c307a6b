"""MindSpore: dynamic graph and static-graph Cell dump, and its names for comparison with other frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe_core.plugin import ApiMap, Checkup, Condition, Framework, FrameworkOffer, hookimpl

if TYPE_CHECKING:
    import click

__version__ = "0.1.0"


@hookimpl
def msprobe_register_frameworks() -> Sequence[FrameworkOffer]:
    """Offer MindSpore."""
    return [FrameworkOffer("mindspore", "mindspore", _load, Path(__file__).with_name("_demo.py"))]


@hookimpl
def msprobe_register_commands() -> Sequence[click.Command]:
    """Offer ``kernel-dump``."""
    from msprobe.mindspore._commands import kernel_dump

    return [kernel_dump]


@hookimpl
def msprobe_register_api_maps() -> Sequence[ApiMap]:
    """Offer PyTorch's names for MindSpore's APIs, Cells, parameters and arguments; imports neither framework."""
    return [_api_map()]


@cache
def _api_map() -> ApiMap:
    from msprobe_core.plugin import load_api_map

    return load_api_map("mindspore", Path(__file__).parent / "maps")


@cache
def _load() -> Framework:
    from msprobe.mindspore._framework import MindSporeFramework

    return MindSporeFramework()


@hookimpl
def msprobe_register_checkups() -> Sequence[Checkup]:
    """Offer what is here of MindSpore."""
    return [Checkup("mindspore", _examine)]


def _examine() -> Sequence[Condition]:
    from msprobe.mindspore._checkup import examine

    return examine()
