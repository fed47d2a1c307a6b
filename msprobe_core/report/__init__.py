"""Results for people and for programs: tables, a summary, a few lines on the terminal."""

import importlib


def __getattr__(name: str) -> object:
    # Scripts import these functions from here. Importing them eagerly would import polars with every table format.
    if name in {"Comparison", "compare", "compare_distributed"}:
        return getattr(importlib.import_module("msprobe_core.compat.functions"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
