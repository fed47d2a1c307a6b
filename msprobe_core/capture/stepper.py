"""Train with a function for one step, and record each call: ``python -m msprobe_core.capture.stepper``.

``msprobe estimate module:function`` runs this in a process of its own; ``docs/performance.md`` describes the function.
"""

from __future__ import annotations

import importlib
import operator
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from msprobe_core.capture.debugger import PrecisionDebugger
from msprobe_core.capture.measure import Reading, end_process, requested_measurement
from msprobe_core.errors import MsprobeError, NoModelError, SessionError

_ENDED = object()


def main(target: str) -> None:
    """Train until enough steps are measured.

    Args:
        target: ``module:function``.
    """
    request = requested_measurement()
    assert request is not None
    try:
        _train(target, needs_model=request.level not in {None, "L1"})
    except MsprobeError as error:
        Reading(problem=str(error)).write(Path(request.directory))
        end_process()
    except Exception as error:  # noqa: BLE001  # raised by the user's function
        traceback.print_exception(error.with_traceback(_theirs(error.__traceback__)))
        sys.exit(1)


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the leading frames of this module."""
    ours, rest = {__file__, importlib.__file__}, trace
    while rest is not None:
        file = rest.tb_frame.f_code.co_filename
        if file not in ours and not file.startswith("<frozen"):
            return rest
        rest = rest.tb_next
    return trace


def _train(target: str, *, needs_model: bool) -> None:
    steps = _steps_of(target)
    model = next(steps, None)  # the model exists only after the first step
    if model is None and needs_model:
        raise NoModelError(
            f"{target} gave no model, and this level records modules; return the model, or yield it first"
        )
    debugger = PrecisionDebugger()
    while True:
        debugger.start(model)
        given = next(steps, _ENDED)
        debugger.stop()
        if given is _ENDED:
            return
        if not _is_same(given, model):
            raise SessionError(f"{target} gave another model than before; make the model once, outside of the step")
        debugger.step()


def _is_same(given: Any, model: Any) -> bool:
    """Whether a step returned no model, or the recorded one."""
    if isinstance(given, list | tuple) and isinstance(model, list | tuple):
        givens, models = cast("list[Any]", given), cast("list[Any]", model)
        return len(givens) == len(models) and all(map(operator.is_, givens, models))
    return given is None or given is model


def _steps_of(target: str) -> Iterator[Any]:
    """Yield the result of each step: of each call of the function, or of each iteration of its generator."""
    function = _find(target)
    first = function()
    if isinstance(first, Generator):
        yield from cast("Generator[Any, None, None]", first)
        return
    yield first
    while True:
        yield function()


def _find(target: str) -> Callable[[], Any]:
    name, _, path = target.partition(":")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise SessionError(
                f"{target}: there is no module '{error.name}' here; run this in the directory that holds it, or set "
                "PYTHONPATH"
            ) from error
        raise  # raised for an import inside the module
    try:
        function = operator.attrgetter(path)(module)
    except AttributeError as error:
        raise SessionError(f"{target}: the module '{name}' has no '{path}'") from error
    if not callable(function):
        raise SessionError(f"{target}: is {type(function).__name__}, not a function")
    return function


if __name__ == "__main__":
    main(sys.argv[1])
