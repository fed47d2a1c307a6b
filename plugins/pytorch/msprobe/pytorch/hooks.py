"""PyTorch: modules, APIs and their gradients, on the CPU, CUDA and other devices of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from msprobe_core.plugin import ApiMap, Checkup, Condition, Framework, FrameworkOffer, hookimpl

__version__ = "0.1.0"


@hookimpl
def msprobe_register_frameworks() -> Sequence[FrameworkOffer]:
    """Offer PyTorch."""
    return [FrameworkOffer("pytorch", "torch", _load, Path(__file__).with_name("_demo.py"))]


@cache
def _load() -> Framework:
    from msprobe.pytorch._framework import PyTorchFramework

    return PyTorchFramework()


@hookimpl
def msprobe_register_api_maps() -> Sequence[ApiMap]:
    """Offer PyTorch's names, which are the canonical ones, with the positions of its keywords; imports no torch."""
    return [_api_map()]


@cache
def _api_map() -> ApiMap:
    from msprobe_core.plugin import load_api_map

    return load_api_map("pytorch", Path(__file__).parent / "maps")


@hookimpl
def msprobe_register_checkups() -> Sequence[Checkup]:
    """Offer what is here of PyTorch."""
    return [Checkup("pytorch", _examine)]


def _examine() -> Sequence[Condition]:
    from msprobe.pytorch._checkup import examine

    return examine()
