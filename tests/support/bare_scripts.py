"""Run scripts where only packages are importable that are not installed in place: PyTorch, and not msprobe."""

import subprocess
import sys
from pathlib import Path

import torch

_CODE = """
import importlib.util, runpy, sys
sys.path += {packages!r}
assert importlib.util.find_spec("msprobe_core") is None
sys.argv = [{script!r}, *{arguments!r}]
runpy.run_path({script!r}, run_name="__main__")
"""


def run_bare(path, *arguments, packages=()):
    """Run a script in a new interpreter, with further directories of packages, and return the ended process."""
    found = [str(Path(torch.__file__).parents[1]), *map(str, packages)]
    code = _CODE.format(packages=found, script=str(path), arguments=arguments)
    command = [sys.executable, "-I", "-S", "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False)
