"""`PrecisionChecker`: mindstudio-probe's interface to checks of compiled modules, in scripts that use it.

::

    checker = PrecisionChecker(backend="inductor")
    checker.wrap_all_children(model)
    checker.install()
    model(batch)
    checker.collect()
    checker.report("compile.csv")

What decides is `msprobe compile check`'s verdict, for which each wrapped module is run eagerly, compiled and in float64
from what its first call took. So there is no tolerance, and an error of 0.1 % does not pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from msprobe.pytorch._compile_check import CompiledModules
from msprobe.pytorch._compiled import how_it_runs, original_of
from msprobe_core.plugin import ConfigError, SessionError
from msprobe_core.recording import CompileCheck, check_modules, write_published

Policy: TypeAlias = "Callable[[str, nn.Module], bool] | type[nn.Module] | tuple[type[nn.Module], ...]"
"""Chooses modules: by a function of name and module, or by their classes."""


class PrecisionChecker:
    """Checks modules against themselves compiled; see `CompileCheck` for what ``result`` has."""

    def __init__(
        self,
        backend: str = "aot_eager",
        threshold: float = 1e-4,  # noqa: ARG002
        *,
        dump_graphs: bool = False,
        graph_dir: str | None = None,
        cast_dtype: torch.dtype | None = None,
        capture_input: bool = False,  # noqa: ARG002
        single_pass: bool = True,  # noqa: ARG002
    ) -> None:
        """Prepare; nothing is attached.

        Args:
            backend: The compiler.
            threshold: Ignored, as by mindstudio-probe: what rounding explains is measured.
            dump_graphs: Ignored, with a warning; ``TORCH_LOGS=output_code`` writes what the compiler makes.
            graph_dir: Ignored, with a warning.
            cast_dtype: Ignored, with a warning: modules are compared with float64.
            capture_input: Ignored: the first call's inputs are always kept.
            single_pass: Ignored: `install` and `collect`, and `compare`, check the same.
        """
        given = {"dump_graphs": dump_graphs, "graph_dir": graph_dir, "cast_dtype": cast_dtype}
        if ignored := ", ".join(repr(name) for name, value in given.items() if value):
            warnings.warn(f"PrecisionChecker: {ignored} is ignored; what rounding explains is measured", stacklevel=2)
        self._backend = backend
        self._wrapped: dict[str, nn.Module] = {}
        self._ignored: set[str] = set()
        self._compilers: dict[str, CompiledModules] = {}
        self._attached: ExitStack | None = None
        self.result: CompileCheck | None = None

    # --- which modules --------------------------------------------------------------------------------------------

    def wrap(self, module: nn.Module, name: str = "") -> nn.Module:
        """Check a module; it is returned as it is.

        Args:
            module: The module.
            name: What it is called; by default its class.
        """
        self._add(_normal(name or type(module).__name__), module)
        return module

    def wrap_by_policy(self, model: nn.Module, policy: Policy) -> nn.Module:
        """Check the modules of a model that a policy chooses."""
        for name, module in _named(model):
            if _chooses(policy, name, module):
                self._add(name, module)
        return model

    def wrap_all_children(self, model: nn.Module) -> nn.Module:
        """Check the direct children of a model."""
        for name, module in model.named_children():
            self._add(_normal(name), module)
        return model

    def ignore(self, *names: str) -> None:
        """Do not check modules of these names."""
        self._ignored.update(map(_normal, names))

    def ignore_by_policy(self, model: nn.Module, policy: Policy) -> None:
        """Do not check the modules of a model that a policy chooses."""
        self._ignored.update(name for name, module in _named(model) if _chooses(policy, name, module))

    def _add(self, name: str, module: nn.Module) -> None:
        self._wrapped[name] = module

    # --- one pass -------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Begin to keep what wrapped modules take; run the model then, uncompiled.

        Raises:
            ConfigError: nothing is wrapped.
            SessionError: it has begun already.
        """
        if self._attached is not None:
            raise SessionError("PrecisionChecker is installed already; call collect()")
        chosen = {name: module for name, module in self._wrapped.items() if name not in self._ignored}
        if not chosen:
            raise ConfigError("PrecisionChecker checks nothing; call wrap(module, name) or wrap_all_children(model)")
        self._compilers = {}
        with ExitStack() as stack:
            for name, module in chosen.items():
                self._compilers[name] = compiler = CompiledModules([_One(name, module)], only_roots=True)
                stack.enter_context(compiler.recorded())
            self._attached = stack.pop_all()

    def collect(self) -> CompileCheck:
        """Detach from the modules, compile and judge each.

        Raises:
            SessionError: `install` was not called, or none of the modules was called since.
        """
        if self._attached is None:
            raise SessionError("PrecisionChecker is not installed; call install(), and run the model")
        self._attached.close()
        self._attached = None
        called = [compiler for compiler in self._compilers.values() if compiler.modules]
        if not called:
            raise SessionError(
                "none of the wrapped modules was called; inside of a model that is compiled they are not seen "
                "(SKIP_inside_compiled): run the model uncompiled"
            )
        checks = [check_modules(compiler, backend=self._backend) for compiler in called]
        modules = tuple(module for check in checks for module in check.modules)
        seconds = sum(check.seconds for check in checks)
        self.result = CompileCheck(backend=self._backend, modules=modules, seconds=seconds)
        return self.result

    # --- two passes, and the table --------------------------------------------------------------------------------

    def compare(self, model: nn.Module, *args: Any, **kwargs: Any) -> CompileCheck:
        """Run a model on these arguments, and check it with what is wrapped; without anything wrapped, all of it."""
        model = original_of(model) or model
        if not self._wrapped:
            for name, module in _named(model):
                self._add(name or type(model).__name__, module)
        self.install()
        try:
            model(*args, **kwargs)
        except BaseException:
            assert self._attached is not None
            self._attached.close()
            self._attached = None
            raise
        return self.collect()

    def report(self, csv_path: str | Path = "compile_accuracy.csv") -> Path:
        """Write the table with mindstudio-probe's columns; return its path.

        Raises:
            SessionError: nothing was checked yet.
        """
        if self.result is None:
            raise SessionError("PrecisionChecker has no results; call collect() or compare() before report()")
        path = Path(csv_path)
        write_published(self.result, path)
        return path


class _One:
    def __init__(self, name: str, model: nn.Module) -> None:
        self.name, self.model = name, model


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if how_it_runs(module) is None or not name:
            yield _normal(name), module


def _normal(name: str) -> str:
    """Return a name without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in ("_orig_mod", "module"))


def _chooses(policy: Policy, name: str, module: nn.Module) -> bool:
    if isinstance(policy, type | tuple):
        return isinstance(module, policy)
    return policy(name, module)
