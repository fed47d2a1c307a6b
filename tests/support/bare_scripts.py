"""Run scripts where only packages are importable that are not installed in place: PyTorch, and not msprobe."""

import atexit
import contextlib
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from forked_python import forked_python

PACKAGES = str(Path(torch.__file__).parents[1])
_CODE = """
import importlib.util, runpy, sys
sys.path += {packages!r}
assert importlib.util.find_spec("msprobe_core") is None
sys.argv = [{script!r}, *{arguments!r}]
runpy.run_path({script!r}, run_name="__main__")
"""
_OPEN = contextlib.ExitStack()


@cache
def _python():
    """Return a Python that is isolated, and has imported PyTorch; it ends with this process."""
    directory = _OPEN.enter_context(tempfile.TemporaryDirectory())
    options = ("-I", "-S", "-W", "error")
    return _OPEN.enter_context(forked_python(Path(directory), ["torch"], options, [PACKAGES]))


atexit.register(_OPEN.close)


def run_bare(path, *arguments, packages=()):
    """Run a script in a process of its own, with further directories of packages, and return the ended process."""
    code = _CODE.format(packages=[PACKAGES, *map(str, packages)], script=str(path), arguments=arguments)
    return subprocess.run([_python(), "-c", code], capture_output=True, text=True, check=False)
