"""The training step that a function of the user runs, with the models and optimizers that it uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from msprobe_core.capture.framework_choice import find_framework
from msprobe_core.capture.step_repetition import listed
from msprobe_core.errors import MsprobeError, NoModelError, PluginError, SessionError
from msprobe_core.free_benchmark.raised_steps import TrainingStep
from msprobe_core.guard import described
from msprobe_core.protocols.capabilities import MeasuringFramework, RaisingFramework, UpdatingFramework
from msprobe_core.protocols.framework import Framework


def training_step(function: Callable[[], Any], name: str) -> TrainingStep:
    """Return the step of a training.

    The function is called once. It either runs a step itself, or returns the function that does, or returns a model,
    its optimizer and that function. Otherwise models and whatever else has a state are found among the variables that
    the function can see: those of its file, of functions around it, and of its object.

    Args:
        function: The user's.
        name: What it is called in errors.

    Raises:
        SessionError: there is no model, or the function failed.
    """
    try:
        given = _without_exit(function, name)()
    except MsprobeError:
        raise
    except Exception as error:
        raise SessionError(f"{name} failed ({described(error)})") from error
    parts = listed(given)
    if len(parts) == 3 and callable(parts[2]):
        model, optimizer, run = parts
        return step_of(_without_exit(run, name), model, optimizer)
    if len(parts) == 1 and (inspect.isfunction(parts[0]) or inspect.ismethod(parts[0])):
        function = parts[0]
    return _with_variables(function, name)


def _without_exit(function: Callable[[], Any], name: str) -> Callable[[], Any]:
    """Return a function that does the same, but fails instead of ending the program, whose status is a verdict."""

    def run() -> Any:
        try:
            return function()
        except SystemExit as error:
            raise SessionError(f"{name} failed ({described(error)})") from error

    return run


def step_of(run: Callable[[], Any], model: Any, optimizer: Any) -> TrainingStep:
    """Return a step whose model, or several, and optimizer, or a list of what else has a state, are given."""
    models = listed(model)
    named = {str(place) if len(models) > 1 else "": each for place, each in enumerate(models)}
    return TrainingStep(run, named, listed(optimizer))


def _with_variables(function: Callable[[], Any], name: str) -> TrainingStep:
    variables = dict(_flat(_variables_of(function).items()))
    framework = _framework_of(variables.values(), name)
    found = {place: value for place, value in variables.items() if _is_trained(framework, value)}
    inner = {id(each) for model in found.values() for each in _modules_inside(framework, model)}
    models: dict[str, Any] = {}
    for place, value in found.items():
        if id(value) not in inner and not any(value is known for known in models.values()):
            models[place] = value
    others = {id(each): each for each in variables.values() if _has_state(framework, each)}
    named = models if len(models) > 1 else dict.fromkeys([""], next(iter(models.values())))
    return TrainingStep(_without_exit(function, name), named, list(others.values()))


def _framework_of(values: Iterable[Any], name: str) -> Framework:
    for value in values:
        with suppress(SessionError, PluginError):
            return find_framework(None, value)
    raise NoModelError(
        f"{name} can see no model: make model, optimizer and batch variables of its file, or return a model, its "
        "optimizer and a function that runs one step"
    )


def _variables_of(function: Any) -> dict[str, Any]:
    """Return the variables that a function can see, by name; those that it uses first."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    found: dict[str, Any] = {}
    code, cells = getattr(inner, "__code__", None), getattr(inner, "__closure__", None) or ()
    if code is not None:
        for name, cell in zip(code.co_freevars, cells, strict=True):
            with suppress(ValueError):  # not assigned yet
                found[name] = cell.cell_contents
        every: Mapping[str, Any] = inner.__globals__
        found |= {name: every[name] for name in code.co_names if name in every and name not in found}
        found |= {name: value for name, value in every.items() if name not in found}
    owner = getattr(function, "__self__", None)
    return found | (dict(vars(owner)) if hasattr(owner, "__dict__") else {})


def _flat(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield variables, and what lists, tuples and dictionaries among them hold."""
    for name, value in items:
        yield name, value
        if isinstance(value, list | tuple):
            yield from ((f"{name}.{i}", item) for i, item in enumerate(cast("Sequence[Any]", value)))
        elif type(value) is dict and not name.startswith("__"):
            yield from ((f"{name}.{key}", item) for key, item in cast("dict[Any, Any]", value).items())


def _modules_inside(framework: Framework, model: Any) -> Iterator[Any]:
    if isinstance(framework, MeasuringFramework):
        yield from (each for each in framework.modules_of(model).values() if each is not model)


def _is_trained(framework: Framework, value: Any) -> bool:
    """Whether a value is a model; optimizers may be modules, too."""
    if not framework.is_model(value):
        return False
    return not isinstance(framework, UpdatingFramework) or framework.updated_by(value) is None


def _has_state(framework: Framework, value: Any) -> bool:
    has_state = isinstance(framework, RaisingFramework) and framework.has_state(value)
    return has_state and not _is_trained(framework, value)
