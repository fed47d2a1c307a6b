"""Which modules a compiler computes wrongly: compiles those of a step one by one, and judges each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property

from msprobe_core.capture.framework_choice import find_framework
from msprobe_core.capture.window import Model
from msprobe_core.compile_check.compile_codes import CompileCode
from msprobe_core.compile_check.verdict import CompileVerdict, ResultVerdict, judge_module, worst_of
from msprobe_core.errors import ConfigError, NoModelError, PluginError, ReplayError, SessionError
from msprobe_core.findings import Finding, Level, noted
from msprobe_core.free_benchmark.raised_steps import TrainingStep
from msprobe_core.guard import described
from msprobe_core.model import CompilerPart, RaisedModule
from msprobe_core.protocols.capabilities import CompileCheckingFramework, ModuleCompiler

ROOT = "model"
"""What a model is called whose path is empty."""


@dataclass(frozen=True, kw_only=True)
class ModuleCheck:
    """One module.

    Attributes:
        path: Its path; `ROOT` for a model.
        type_name: Its class.
        verdict: The worst of its results.
        results: Its outputs and gradients.
        num_graphs: Number of graphs that the compiler made of it.
        graph_breaks: Why there are several.
        problem: Why it could not be judged; ``None`` if it was.
        is_explained: Whether a module inside of it is bad too, alone.
    """

    path: str
    type_name: str
    verdict: CompileVerdict
    results: tuple[ResultVerdict, ...] = ()
    num_graphs: int = 0
    graph_breaks: tuple[str, ...] = ()
    problem: Finding | None = None
    is_explained: bool = False

    @property
    def label(self) -> str:
        """Path and class."""
        return f"{self.path} ({self.type_name})"

    @property
    def worst(self) -> ResultVerdict | None:
        """The result with the largest error among those with the worst verdict."""
        decisive = [each for each in self.results if each.verdict is self.verdict]
        return max(decisive, key=lambda each: max(each.eager, each.compiled), default=None)


@dataclass(frozen=True, kw_only=True)
class CompileCheck:
    """What a check has found.

    Attributes:
        backend: The compiler.
        modules: All modules that were checked, in the order of their first call.
        seconds: That it took.
    """

    backend: str
    modules: tuple[ModuleCheck, ...]
    seconds: float

    @cached_property
    def culprits(self) -> list[ModuleCheck]:
        """Bad modules inside of which nothing is bad alone, in the order of their first call; worse ones first."""
        bad = [each for each in self.modules if each.verdict.is_bad and not each.is_explained]
        return sorted(bad, key=lambda each: each.verdict is not CompileVerdict.WORSE)

    @property
    def num_judged(self) -> int:
        """Number of modules that could be judged."""
        return sum(each.verdict is not CompileVerdict.CANNOT_TELL for each in self.modules)

    @property
    def counts(self) -> dict[CompileVerdict, int]:
        """Number of modules by verdict."""
        return {kind: sum(each.verdict is kind for each in self.modules) for kind in CompileVerdict}

    @property
    def headline(self) -> Finding:
        """The answer."""
        fields = {"backend": self.backend, "count": self.num_judged}
        if not self.num_judged:
            return Finding(CompileCode.NOTHING, Level.ERROR, {**fields, "count": len(self.modules)})
        if not self.culprits:
            better = self.counts[CompileVerdict.COMPILED_BETTER]
            return Finding(CompileCode.RIGHT, fields={**fields, "better": better})
        first = self.culprits[0]
        worst = first.worst
        assert worst is not None
        assert worst.reason is not None
        told = {**fields, "module": first.label, "name": worst.name, "why": worst.reason}
        code = CompileCode.FOUND if first.verdict is CompileVerdict.WORSE else CompileCode.EAGER_WRONG
        return Finding(code, Level.ERROR, told)

    @property
    def notes(self) -> list[Finding]:
        """What else is to be known."""
        return list(self._notes())

    def _notes(self) -> Iterator[Finding]:
        for each in self.culprits:
            if any(_is_inside(other.path, each.path) for other in self.modules if other is not each):
                yield Finding(CompileCode.FUSED, Level.WARNING, {"module": each.label})
        for each in self.modules:
            same = next((one for one in each.results if one.verdict is CompileVerdict.EQUAL and one.reason), None)
            if same is not None:
                fields = {"module": each.label, "name": same.name}
                yield Finding(CompileCode.SAME_ERROR, Level.WARNING, fields)
        for each in self.modules:
            if each.problem is not None:
                fields = {"module": each.label, "why": each.problem}
                yield Finding(CompileCode.NOT_JUDGED, Level.WARNING, fields)
            elif each.graph_breaks:
                fields = {"module": each.label, "graphs": each.num_graphs, "reasons": list(each.graph_breaks)}
                yield Finding(CompileCode.GRAPH_BREAKS, Level.NOTE, fields)


def module_compiler(step: TrainingStep) -> ModuleCompiler:
    """Return what compiles the modules of a step, after it has run once.

    Raises:
        PluginError: the framework's plugin cannot do this.
        SessionError: there is no model, the step fails, or calls none of its modules.
    """
    if not step.models:
        raise NoModelError("a check of compiled modules needs the model of the step")
    framework = find_framework(None, next(iter(step.models.values())))
    if not isinstance(framework, CompileCheckingFramework):
        raise PluginError(f"compile is not available for {framework.name}: its plugin does not offer it")
    compiler = framework.module_compiler([Model(name, model) for name, model in step.models.items()])
    try:
        with compiler.recorded():
            step.run()
    except Exception as error:
        raise SessionError(f"the step fails ({described(error)})") from error
    if not compiler.modules:
        raise SessionError("the step calls none of the models that were found")
    return compiler


def check_modules(
    compiler: ModuleCompiler, *, backend: str | None = None, patterns: Sequence[str] = (),
    progress: Callable[[int, int], object] = lambda _done, _all: None,
) -> CompileCheck:  # fmt: skip
    """Compile modules one by one, and judge each.

    Args:
        compiler: Has what the step gave them.
        backend: The compiler; by default the framework's usual one.
        patterns: Paths of the modules, with ``*`` and ``?``; all by default.
        progress: Called with how many modules are done, and of how many.

    Raises:
        ConfigError: there is no such backend, or no such module.
    """
    begin = time.perf_counter()
    backend = backend or compiler.default_backend
    wanted = [each for each in compiler.modules if _is_wanted(each, patterns)]
    if not wanted:
        known = ", ".join(each.path or ROOT for each in compiler.modules[:5])
        raise ConfigError(f"no module that the step calls is called {', '.join(patterns)}; the first are {known}")
    checks: list[ModuleCheck] = []
    for number, module in enumerate(wanted):
        progress(number, len(wanted))
        checks.append(_checked(compiler, module, backend))
    bad = [each.path for each in checks if each.verdict.is_bad]
    explained = {
        each.path
        for each in checks
        if each.verdict.is_bad and any(path != each.path and _is_inside(path, each.path) for path in bad)
    }
    modules = tuple(replace(each, is_explained=True) if each.path in explained else each for each in checks)
    return CompileCheck(backend=backend, modules=modules, seconds=time.perf_counter() - begin)


def guilty_part(
    compiler: ModuleCompiler, found: ModuleCheck, backend: str | None = None
) -> tuple[CompilerPart | None, Finding]:
    """Find the part of the compiler that makes a module wrong.

    Args:
        compiler: Has what the step gave to it.
        found: The module, which is worse when it is compiled.
        backend: The compiler.

    Raises:
        SessionError: the framework has no bisector.
    """
    path = next(each.path for each in compiler.modules if (each.path or ROOT) == found.path)

    def works() -> bool:
        try:
            results = compiler.results(path, backend or compiler.default_backend)
        except ReplayError:  # a part without which it cannot be compiled is not the guilty one
            return False
        return not worst_of(judge_module(results)).is_bad

    part = compiler.part(works)
    if part is None:
        return None, Finding(CompileCode.NO_PART, Level.WARNING, {"module": found.label})
    fields = {
        "module": found.label, "backend": part.backend, "subsystem": part.subsystem or "-",
        "number": part.number, "detail": part.detail,
    }  # fmt: skip
    return part, Finding(CompileCode.PART, Level.ERROR, fields)


def _checked(compiler: ModuleCompiler, module: RaisedModule, backend: str) -> ModuleCheck:
    path = module.path or ROOT
    try:
        results = compiler.results(module.path, backend)
    except ReplayError as error:
        return ModuleCheck(
            path=path, type_name=module.type_name, verdict=CompileVerdict.CANNOT_TELL, problem=noted(str(error))
        )
    judged = judge_module(results)
    return ModuleCheck(
        path=path, type_name=module.type_name, verdict=worst_of(judged), results=tuple(judged),
        num_graphs=results.num_graphs, graph_breaks=results.graph_breaks,
    )  # fmt: skip


def _is_wanted(module: RaisedModule, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(module.path or ROOT, pattern) for pattern in patterns)


def _is_inside(path: str, parent: str) -> bool:
    return path != parent and (parent == ROOT or path.startswith(f"{parent}."))
