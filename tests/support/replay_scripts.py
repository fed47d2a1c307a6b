"""Run scripts of calls in this process."""

import runpy
import sys

import pytest

COMMAND = "msprobe acc_check -api_info dump.json --script NAME"


def run_here(path, monkeypatch):
    """Run a script in this process and return its exit status."""
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    return ended.value.code
