"""Random functions of Python and NumPy: watched, logged, or made to return the same at each call.

A plugin adds the random functions of its framework; the handling of calls is shared.
"""

from __future__ import annotations

import csv
import io
import logging
import os
import random
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from msprobe_core.config.text import given_path
from msprobe_core.errors import ConfigError, PluginError
from msprobe_core.interception.patching import Function, FunctionPatch, Outermost, Patches, never
from msprobe_core.interception.stacks import StackCache
from msprobe_core.protocols.capabilities import RandomDraw, RandomFramework
from msprobe_core.store.layout import create_file, make_directory

if TYPE_CHECKING:
    from typing_extensions import Self

    from msprobe_core.protocols.framework import Framework

_logger = logging.getLogger(__name__)

PYTHON_FUNCTIONS = (
    "betavariate", "binomialvariate", "choice", "choices", "expovariate", "gammavariate", "gauss", "getrandbits",
    "lognormvariate", "normalvariate", "paretovariate", "randbytes", "randint", "random", "randrange", "sample",
    "shuffle", "triangular", "uniform", "vonmisesvariate", "weibullvariate",
)  # fmt: skip
"""Functions of the module ``random``; some do not exist in Python 3.10."""

_BOTH_OF_NUMPY = (
    "beta", "binomial", "bytes", "chisquare", "choice", "dirichlet", "exponential", "f", "gamma", "geometric", "gumbel",
    "hypergeometric", "laplace", "logistic", "lognormal", "logseries", "multinomial", "multivariate_normal",
    "negative_binomial", "noncentral_chisquare", "noncentral_f", "normal", "pareto", "permutation", "poisson", "power",
    "random", "rayleigh", "shuffle", "standard_cauchy", "standard_exponential", "standard_gamma", "standard_normal",
    "standard_t", "triangular", "uniform", "vonmises", "wald", "weibull", "zipf",
)  # fmt: skip

NUMPY_FUNCTIONS = (
    *_BOTH_OF_NUMPY, "rand", "randint", "randn", "random_integers", "random_sample", "ranf", "sample",
)  # fmt: skip
"""Functions of the module ``numpy.random``, which draw from its global state."""

GENERATOR_METHODS = (*_BOTH_OF_NUMPY, "integers", "multivariate_hypergeometric", "permuted")
"""Methods of ``numpy.random.Generator``, whose instances have separate states."""


class RandomFunction(NamedTuple):
    """One random function, and where it is defined.

    Attributes:
        owner: Module or class.
        attribute: Name of the attribute.
        family: Owner of the random state that it draws from: ``python``, ``numpy``, or a framework's name.
    """

    owner: Any
    attribute: str
    family: str

    @property
    def name(self) -> str:
        """Display name, for example ``numpy.random.rand``."""
        prefix = self.owner.__name__
        module = "" if not isinstance(self.owner, type) else f"{self.owner.__module__}."
        return f"{module}{prefix}.{self.attribute}"


class RandomState(Protocol):
    """The state from which a family of random functions draws."""

    def get(self) -> Any:
        """Return the state."""
        ...

    def set(self, state: Any) -> None:
        """Restore a state."""
        ...


class RandomCall(NamedTuple):
    """One call of a random function.

    Attributes:
        name: Display name of the function.
        state: State that it draws from.
        function: The original function.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """

    name: str
    state: RandomState
    function: Function
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def run(self) -> Any:
        """Call the original."""
        return self.function(*self.args, **self.kwargs)


Draws = Callable[[RandomCall], Any]
"""Handles a call of a random function: runs it and returns its result."""


class PythonState:
    """The state of the module ``random``."""

    def get(self) -> Any:
        """Return the state."""
        return random.getstate()

    def set(self, state: Any) -> None:
        """Restore a state."""
        random.setstate(state)


class NumpyState:
    """The global state of ``numpy.random``."""

    def get(self) -> Any:
        """Return the state."""
        return np.random.get_state()

    def set(self, state: Any) -> None:
        """Restore a state."""
        np.random.set_state(state)


class GeneratorState:
    """The state of one NumPy generator."""

    def __init__(self, generator: np.random.Generator) -> None:
        """Wrap a generator.

        Args:
            generator: The generator.
        """
        self._bits = generator.bit_generator

    def get(self) -> Any:
        """Return the state."""
        return self._bits.state

    def set(self, state: Any) -> None:
        """Restore a state."""
        self._bits.state = state


def common_functions() -> list[RandomFunction]:
    """Return the random functions of Python and NumPy that this installation has."""
    named = [(random, name, "python") for name in PYTHON_FUNCTIONS]
    named += [(np.random, name, "numpy") for name in NUMPY_FUNCTIONS]
    return [RandomFunction(*each) for each in named if hasattr(each[0], each[1])]


def common_states() -> dict[str, RandomState]:
    """Return the states of Python's and NumPy's random functions, by family."""
    return {"python": PythonState(), "numpy": NumpyState()}


class RandomStates:
    """States of the random generators of Python and NumPy at the time of construction; a `TrainingState`."""

    def __init__(self) -> None:
        self._states = [(state, state.get()) for state in common_states().values()]

    def restore(self) -> None:
        """Restore the states."""
        for state, value in self._states:
            state.set(value)


class RandomWatch:
    """Passes the calls of random functions to a `Draws` between ``install`` and ``remove``."""

    def __init__(
        self,
        draws: Draws,
        functions: Iterable[RandomFunction],
        states: Mapping[str, RandomState],
        *,
        seed: int | None = None,
        steps_aside: Callable[[], bool] = never,
    ) -> None:
        """Prepare the patches.

        Args:
            draws: Handles each call that is not inside another one.
            functions: Functions of the framework, besides Python's and NumPy's.
            states: States that functions draw from, by family.
            seed: Seed for calls of ``numpy.random.default_rng`` without one; ``None`` leaves them unseeded.
            steps_aside: Whether the framework is compiling the calling code, which then calls the originals.
        """
        self._draws: Draws | None = draws
        self._states = states
        self._outermost = Outermost()
        self._seed = seed
        self._steps_aside = steps_aside
        patches = [self._patch(function) for function in (*common_functions(), *functions)]
        patches.append(FunctionPatch(np.random, "default_rng", self._make_generator, steps_aside))
        self._patches = Patches(patches)

    def install(self) -> None:
        """Install the patches."""
        self._patches.install()

    def remove(self) -> None:
        """Restore the original functions."""
        self._patches.remove()
        self._draws = None

    def call(self, call: RandomCall) -> Any:
        """Run a call of a random function, through the `Draws` unless it is inside another call."""
        with self._outermost as is_outermost:
            draws = self._draws
            return draws(call) if draws is not None and is_outermost else call.run()

    def _patch(self, function: RandomFunction) -> FunctionPatch:
        name, state = function.name, self._states[function.family]

        def handle(original: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            return self.call(RandomCall(name, state, original, args, kwargs))

        return FunctionPatch(function.owner, function.attribute, handle, self._steps_aside)

    def _make_generator(self, original: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        given = [*args, *kwargs.values()]
        if self._seed is not None and (not given or given == [None]):
            made = original(self._seed)
        else:
            made = original(*args, **kwargs)
        if type(made) is not np.random.Generator or any(made is each for each in given):
            return made
        watched = _WatchedGenerator(made.bit_generator)
        watched.watch = self
        watched.state = GeneratorState(watched)
        return watched


class _WatchedGenerator(np.random.Generator):
    """A NumPy Generator whose draws are watched. Its name is Generator, and it copies and pickles as a plain one."""

    watch: RandomWatch
    state: GeneratorState


def _watched_method(name: str) -> Function:
    method = getattr(np.random.Generator, name)

    def draw(self: _WatchedGenerator, *args: Any, **kwargs: Any) -> Any:
        return self.watch.call(RandomCall(f"numpy.random.Generator.{name}", self.state, method, (self, *args), kwargs))

    draw.__name__, draw.__doc__ = name, method.__doc__
    return draw


for _name in GENERATOR_METHODS:
    if hasattr(np.random.Generator, _name):
        setattr(_WatchedGenerator, _name, _watched_method(_name))
_WatchedGenerator.__name__ = _WatchedGenerator.__qualname__ = "Generator"


class Repeat:
    """Starts each call from the first state of its family, so that the same call always returns the same."""

    def __init__(self, states: Iterable[RandomState]) -> None:
        """Begin.

        Args:
            states: States whose current value is their first one; for others it is the value at their first call.
        """
        self._firsts: weakref.WeakKeyDictionary[RandomState, Any] = weakref.WeakKeyDictionary()
        for state in states:
            self._firsts[state] = state.get()

    def __call__(self, call: RandomCall) -> Any:
        """Run the call from the first state, and restore that state."""
        state = call.state
        if state not in self._firsts:
            self._firsts[state] = state.get()
        first = self._firsts[state]
        state.set(first)
        try:
            return call.run()
        finally:
            state.set(first)


class RandomLog:
    """The CSV file of random calls, one row each; ``random_save`` returns it.

    It ends with ``stop``, or at the end of its ``with`` block.
    """

    def __init__(
        self,
        output_path: str | os.PathLike[str],
        framework: Framework,
    ) -> None:
        """Create the file and begin.

        Args:
            output_path: Directory; created if it does not exist.
            framework: A `RandomFramework`; has the rank for the file name, and the frames to omit from stacks.

        Raises:
            ConfigError: ``output_path`` is not a path.
            PluginError: the framework is no `RandomFramework`.
            StoreError: the file cannot be created.
        """
        directory = _checked_directory(output_path)
        if not isinstance(framework, RandomFramework):
            raise PluginError(f"the plugin for {framework.name} does not observe random functions (watch_random)")
        rank = framework.rank()
        unit = f"proc{os.getpid()}" if rank is None else f"rank{rank}"
        now = time.time_ns() // 1000
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(now // 1_000_000)) + f"{now % 1_000_000:06}"
        make_directory(directory)
        self.path = directory / f"random_{unit}_{stamp}.csv"
        """Path of the file."""
        self._process = os.getpid()
        self._stacks = StackCache(framework.hidden_frames)
        self._file = create_file(self.path)
        self._write("api_name", "stack")
        self._end: Callable[[], None] | None = framework.watch_random(self._note, has_dropout=True)

    def stop(self) -> None:
        """Stop writing, and restore every function. Idempotent."""
        end, self._end = self._end, None
        if end is not None:
            end()
        with suppress(OSError):
            self._file.close()

    def _note(self, call: RandomDraw) -> Any:
        # A forked child shares the file descriptor and must not write to it.
        if os.getpid() == self._process and not self._file.closed:
            # No cell begins with a character that a spreadsheet interprets as a formula: frames begin with "File".
            self._write(call.name, "\n".join(self._stacks.capture()))
        return call.run()

    def _write(self, *cells: str) -> None:
        row = io.StringIO(newline="")
        csv.writer(row).writerow(cells)
        try:
            self._file.write(row.getvalue().encode("utf-8", "backslashreplace"))
            self._file.flush()  # the process may be killed at any time
        except (OSError, ValueError) as error:  # ValueError: closed by another thread
            if not self._file.closed:
                _logger.error("%s: cannot be written (%s); random calls go unnoted", self.path, error)  # noqa: TRY400
            with suppress(OSError):
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _checked_directory(path: object) -> Path:
    """Return the directory given to ``random_save``.

    Raises:
        ConfigError: it is not a path of a directory.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):  # pyright: ignore[reportUnknownArgumentType]
        raise ConfigError(f"random_save: 'output_path' is {path!r}, but must be the path of a directory")
    return given_path(str(path), "random_save: 'output_path'")  # pyright: ignore[reportUnknownArgumentType]
