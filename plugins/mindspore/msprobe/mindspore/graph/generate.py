"""Constructs with the signature of the user's construct, which the compiler needs in order to count parameters.

It counts them where a function in a graph takes the gradient of a Cell. Such a construct sees parameters only: not
whether an argument was passed by position or by name, nor whether it was passed at all.
"""

from __future__ import annotations

import atexit
import inspect
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

_HEAD = """\
from {taps} import closed, opened


def construct({signature}):
    call, args, kwargs = opened(self._msprobe_cell, self._msprobe_parameters, {args}, {kwargs})
    return closed(self._msprobe_cell, call, self._msprobe_construct(*args, **kwargs))
"""

_numbers = itertools.count()


def construct_like(function: Callable[..., Any], taps: ModuleType) -> Callable[..., Any]:
    """Return a construct with the signature of the bound method ``function``, using the points of module ``taps``."""
    parameters = inspect.signature(function).parameters.values()
    defaults = {f"default_{p.name}": p.default for p in parameters if p.default is not p.empty}
    name = f"msprobe_mindspore_construct_{next(_numbers)}"
    # The compiler reads the source file, and looks up names in the module.
    path = _directory() / f"{name}.py"
    path.write_text(_source(list(parameters), taps.__name__), encoding="utf-8")
    module = ModuleType(name)
    module.__file__ = str(path)
    vars(module).update(defaults)
    sys.modules[name] = module
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))  # noqa: S102  # written above
    return module.construct


def _source(parameters: list[inspect.Parameter], taps: str) -> str:
    signature = ["self"]
    args: list[str] = []
    kwargs: list[str] = []
    for parameter in parameters:
        name, kind = parameter.name, parameter.kind
        default = "" if parameter.default is parameter.empty else f"=default_{name}"
        if kind is parameter.VAR_POSITIONAL:
            signature.append(f"*{name}")
            args.append(f"*{name}")
        elif kind is parameter.VAR_KEYWORD:
            signature.append(f"**{name}")
            kwargs.append(f"**{name}")
        elif kind is parameter.KEYWORD_ONLY:
            if not any(item.startswith("*") for item in signature):
                signature.append("*")
            signature.append(name + default)
            kwargs.append(f'"{name}": {name}')
        else:
            signature.append(name + default)
            args.append(name)
    return _HEAD.format(
        taps=taps,
        signature=", ".join(signature),
        args=f"({', '.join(args)},)" if args else "()",
        kwargs=f"{{{', '.join(kwargs)}}}",
    )


@cache
def _directory() -> Path:
    directory = tempfile.mkdtemp(prefix="msprobe-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)
