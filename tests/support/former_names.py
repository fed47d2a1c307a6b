"""Import what scripts for other releases import from a framework's package."""

import importlib

from msprobe_core.former_names.table import MOVED


def former_names(package):
    """Return the former names of a package, such as ``msprobe.pytorch``."""
    return [name for name in MOVED if name.startswith(f"{package}.")]


def import_former(name):
    """Return what a script gets of ``from … import …``, and what it has become."""
    parent, _, last = name.rpartition(".")
    found = {}
    exec(f"from {parent} import {last} as found", found)
    module, _, attribute = MOVED[name].partition(":")
    return found["found"], getattr(importlib.import_module(module), attribute)
