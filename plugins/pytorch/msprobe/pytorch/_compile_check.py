"""Modules compiled alone, from the inputs that a step gave them; see `msprobe_core.plugin.ModuleCompiler`.

Each module is run five times on copies of what its first call took: eagerly, compiled, in float64, and twice in float64
with every result scaled by what rounding may change it by in the eager run. All five begin with the same buffers and
random states, and leave the module as it was. Gradients are those of random directions of the outputs, the same in all
five.
"""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe.pytorch._compiled import original_of
from msprobe.pytorch._modules import modules_to_watch
from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._raise import RaisedModules
from msprobe.pytorch._replay import recorded_tensor
from msprobe.pytorch._shadow import is_autocast_on
from msprobe.pytorch._slots import compiled_call_of, is_observed, observe
from msprobe_core.interception import FunctionPatch, Handle, map_values, value_leaves
from msprobe_core.plugin import (
    OUTSIDE,
    CompiledResults,
    CompilerPart,
    ConfigError,
    NamedModel,
    RaisedModule,
    ReferenceFormat,
    ReplayError,
    ReplayTensor,
    SessionError,
)

_BACKENDS = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
"""Those of the compiler, each of which does what the one before it does and one thing more."""

_BISECTED = "TORCH_COMPILE_BACKEND"
"""Set by PyTorch's bisector for the programs that it runs."""

_UNITS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_DEVICES = ("cpu", "cuda", "npu", "xpu")
_NUM_DISTURBED = 2
_SLOT = "_compiled_call_impl"


@dataclass(frozen=True)
class _Named:
    """See `msprobe_core.plugin.NamedModel`."""

    name: str
    model: Any


@dataclass(frozen=True)
class _Call:
    """The first call of a module in the step."""

    args: Any
    kwargs: Any
    has_grad: bool
    autocast: Mapping[str, torch.dtype]


@dataclass
class _Found:
    module: nn.Module
    type_name: str
    call: _Call | None = None
    why_not: str = ""


class CompiledModules:
    """See `msprobe_core.plugin.ModuleCompiler`."""

    def __init__(self, models: Sequence[NamedModel], *, only_roots: bool = False) -> None:
        """Prepare; nothing is attached.

        Args:
            models: Models, compiled or not: what is compiled here are the modules that they were made of.
            only_roots: Leave out the modules inside of them.
        """
        originals = [_Named(each.name, original_of(each.model) or each.model) for each in models]
        self._models: list[nn.Module] = [each.model for each in originals]
        with self._eagerly():
            self._found = {
                path: _Found(module, name)
                for path, name, module in modules_to_watch(originals)
                if not only_roots or any(module is root for root in self._models)
            }
        self._order: list[str] = []

    @property
    def modules(self) -> list[RaisedModule]:
        """The modules that the step has called, in the order of their first call."""
        return [RaisedModule(path, self._found[path].type_name) for path in self._order]

    @property
    def default_backend(self) -> str:
        """Return the backend that PyTorch's bisector asks for; else that of ``torch.compile``."""
        return os.environ.get(_BISECTED) or "inductor"

    @contextmanager
    def recorded(self) -> Generator[None, None, None]:
        """Keep what the step in the block gives to each module, eagerly."""
        handles: list[Handle] = []
        with self._eagerly():
            try:
                for path, found in self._found.items():
                    handles.append(observe(found.module, partial(self._before, path), None))
                yield
            finally:
                while handles:
                    handles.pop().remove()

    def _before(self, path: str, _module: nn.Module, args: Any, kwargs: Any) -> None:
        found = self._found[path]
        if path in self._order:
            return
        self._order.append(path)
        has_grad = torch.is_grad_enabled()
        with RecordingGuard():
            autocast = {name: torch.get_autocast_dtype(name) for name in _DEVICES if is_autocast_on(name)}
            try:
                copies = _copied((args, kwargs))
            except Exception as error:  # noqa: BLE001  # whatever objects of the user raise
                found.why_not = f"its arguments cannot be copied ({type(error).__name__}: {error})"
                return
            found.call = _Call(copies[0], copies[1], has_grad, autocast)

    def results(self, path: str, backend: str) -> CompiledResults:
        """Run one module in all ways.

        Raises:
            ConfigError: there is no such backend.
            ReplayError: it cannot be run, cannot be compiled, or draws random numbers.
        """
        found = self._found[path]
        if found.call is None:
            raise ReplayError(found.why_not or "the step does not call it")
        if backend not in torch.compiler.list_backends(exclude_tags=()) and backend not in _BACKENDS:
            raise ConfigError(f"{backend!r} is no backend of torch.compile here; known: {', '.join(_BACKENDS)}")
        with self._eagerly():
            return _Trial(found.module, found.call, found.type_name, path).results(backend)

    def part(self, works: Callable[[], bool]) -> CompilerPart | None:
        """Let PyTorch's bisector find what in its compiler makes a check fail."""
        try:
            from torch._inductor.compiler_bisector import CompilerBisector
        except ImportError as error:
            raise SessionError(
                f"PyTorch {torch.__version__} has no bisector of its compiler; take 2.6 or later"
            ) from error
        found = CompilerBisector.do_bisect(works)
        if found is None:
            return None
        return CompilerPart(
            backend=found.backend, subsystem=found.subsystem or "", number=found.bisect_number,
            detail=found.debug_info or "",
        )  # fmt: skip

    def commands(self, check: str) -> list[str]:
        """Return what goes on with a module: the bisector by itself, and scripts that repeat it."""
        return [
            f"python -m torch._inductor.compiler_bisector run {check}",
            f"TORCHDYNAMO_REPRO_AFTER=aot TORCHDYNAMO_REPRO_LEVEL=4 {check}",
        ]

    @contextmanager
    def _eagerly(self) -> Generator[None, None, None]:
        """Have modules that ``compile()`` was called on run what they were made of."""
        compiled = [
            (module, module.__dict__[_SLOT])
            for model in self._models
            for module in model.modules()
            if compiled_call_of(module) is not None and not is_observed(module)
        ]
        for module, _ in compiled:
            del module.__dict__[_SLOT]
        try:
            yield
        finally:
            for module, call in compiled:
                module.__dict__[_SLOT] = call


@dataclass
class _Trial:
    """One call of one module, again and again."""

    module: nn.Module
    call: _Call
    type_name: str
    path: str
    _draws: bool = field(default=False, init=False)

    def results(self, backend: str) -> CompiledResults:
        trace = _Trace()
        raised = RaisedModules([_Named("", self.module)])
        everything = frozenset({*(path for path, _, _ in modules_to_watch([_Named("", self.module)])), OUTSIDE})
        try:
            with raised.watched(), trace:
                eager = self._run(self.module)
            self._refuse_random()
            with raised.raised(everything, ReferenceFormat.FP64):
                oracle = self._run(self.module)
            disturbed: list[dict[str, ReplayTensor]] = []
            for seed in range(_NUM_DISTURBED):
                with raised.raised(everything, ReferenceFormat.FP64), _Disturbed(trace, seed):
                    disturbed.append(self._run(self.module))
            compiled, graphs, breaks = self._compiled(backend)
        except ReplayError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            raise ReplayError(f"it cannot be run again ({type(error).__name__}: {text})") from error
        return CompiledResults(
            path=self.path, type_name=self.type_name, oracle=oracle, eager=eager, compiled=compiled,
            disturbed=disturbed, roundoff=trace.coarsest, num_graphs=graphs, graph_breaks=breaks,
        )  # fmt: skip

    def _refuse_random(self) -> None:
        if self._draws:
            raise ReplayError("it draws random numbers; call model.eval(), or set its dropout to 0")

    def _compiled(self, backend: str) -> tuple[dict[str, ReplayTensor], int, tuple[str, ...]]:
        from torch._dynamo.utils import counters

        torch._dynamo.reset()  # else code that several modules share is compiled a few times only
        graphs = counters["stats"]["unique_graphs"]
        breaks = dict(counters["graph_break"])
        known = [(vars(module), set(vars(module))) for module in self.module.modules()]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the compiler says of its own imports, and of inputs
                found = self._run(cast("nn.Module", torch.compile(self.module, backend=backend)))
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            raise ReplayError(f"it cannot be compiled ({type(error).__name__}: {text})") from error
        finally:
            torch._dynamo.reset()
            for content, names in known:  # the compiler marks what it compiles
                for name in content.keys() - names:
                    del content[name]
        num_graphs = counters["stats"]["unique_graphs"] - graphs
        if not num_graphs:
            raise ReplayError("the compiler finds nothing in it to compile")
        reasons = [reason for reason, count in counters["graph_break"].items() if count > breaks.get(reason, 0)]
        return found, num_graphs, tuple(reasons)

    def _run(self, module: nn.Module) -> dict[str, ReplayTensor]:
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.module.buffers()]
        random = torch.get_rng_state()
        try:
            with ExitStack() as stack:
                for name, dtype in self.call.autocast.items():
                    stack.enter_context(torch.autocast(name, dtype))
                stack.enter_context(torch.set_grad_enabled(self.call.has_grad))
                taken: list[Tensor] = []
                args, kwargs = map_values(
                    _copied((self.call.args, self.call.kwargs)), _is_tensor, partial(_taken, taken)
                )
                given = module(*args, **kwargs)
            outputs = {f"output.{place}": each for place, each in enumerate(_tensors_in(given))}
            return self._told(outputs, taken)
        finally:
            self._draws |= not torch.equal(random, torch.get_rng_state())
            torch.set_rng_state(random)
            with torch.no_grad():
                for buffer, content in buffers:
                    buffer.copy_(content)

    def _told(self, outputs: Mapping[str, Tensor], taken: Sequence[Tensor]) -> dict[str, ReplayTensor]:
        found = {path: recorded_tensor(tensor) for path, tensor in outputs.items()}
        sources = [each for each in outputs.values() if each.requires_grad and each.is_floating_point()]
        wanted = {f"input.{place}.grad": each for place, each in enumerate(taken) if each.requires_grad}
        wanted |= {f"{name}.grad": each for name, each in self.module.named_parameters() if each.requires_grad}
        if sources and wanted:
            directions = [_direction(each, place) for place, each in enumerate(sources)]
            grads = torch.autograd.grad(sources, list(wanted.values()), directions, allow_unused=True)
            found |= {path: recorded_tensor(grad) for path, grad in zip(wanted, grads, strict=True) if grad is not None}
        return found


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _copied(value: Any) -> Any:
    """Return a deep copy, with tensors that are no longer part of a graph."""
    patch = FunctionPatch(Tensor, "__deepcopy__", _copied_tensor)
    patch.install()
    try:
        return copy.deepcopy(value)
    finally:
        patch.remove()


def _copied_tensor(_original: Callable[..., Any], args: tuple[Any, ...], _kwargs: Mapping[str, Any]) -> Any:
    tensor: Tensor = args[0]
    if isinstance(tensor, nn.Parameter):
        return tensor
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _taken(taken: list[Tensor], tensor: Tensor) -> Tensor:
    """Note a tensor that a module takes; what it gets is no leaf, which its code may write to."""
    taken.append(tensor)
    return tensor.view_as(tensor) if tensor.requires_grad else tensor


def _tensors_in(value: Any) -> list[Tensor]:
    return [each for each in value_leaves(value) if isinstance(each, Tensor)]


def _direction(output: Tensor, place: int) -> Tensor:
    """Return a random direction of an output, as exact numbers of every format; of a number, 1."""
    if not output.ndim:
        return torch.ones_like(output)
    generator = torch.Generator().manual_seed(place)
    eighths = torch.randint(-16, 17, output.shape, generator=generator)
    return (eighths / 8).to(output.device, output.dtype)


# --- what rounding may change ---------------------------------------------------------------------------------------

_EXACT = frozenset(
    {"_to_copy", "clone", "copy_", "detach", "detach_", "zeros_like", "ones_like", "fill_", "zero_"}
    | {"histc", "floor", "ceil", "round", "trunc", "sign"}  # whole numbers, which may end up as positions
)
"""Operators whose results have no error of their own."""
_OF_MATRICES = frozenset({"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "linear"})


class _Trace(TorchDispatchMode):
    """Notes of each operator of the eager run the format of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.units: list[float] = []

    @property
    def coarsest(self) -> float:
        """Unit round-off of the coarsest format; 0 without floating-point numbers."""
        return max(self.units, default=0.0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (name := _name_of(func)) not in _EXACT:
            self.names.append(name)
            self.units.append(max((_UNITS.get(each.dtype, 0.0) for each in _tensors_in(result)), default=0.0))
        return result


class _Disturbed(TorchDispatchMode):
    """Scales each new result by 1 plus what rounding changes: Monte Carlo arithmetic.

    Source: D. S. Parker, UCLA CSD-970002, 1997. A sum of n terms is scaled by sqrt(n) round-offs of what it is added up
    in (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, Theorem 2.4).
    """

    def __init__(self, trace: _Trace, seed: int) -> None:
        super().__init__()
        self._trace = trace
        self._place = 0
        self._is_alike = True
        self._generators: dict[torch.device, torch.Generator] = {}
        self._seed = seed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = _name_of(func)
        if name in _EXACT:
            return result
        unit = self._unit_of(name)
        if unit and not func.is_view:
            terms = _num_terms(name, args, result)
            # Sums are added up in float32 if the format is coarser.
            size = max(unit, math.sqrt(terms) * min(unit, _UNITS[torch.float32]))
            for each in _tensors_in(result):
                self._disturb(each, size)
        return result

    def _unit_of(self, name: str) -> float:
        place, names = self._place, self._trace.names
        self._place += 1
        if not self._is_alike or place >= len(names) or names[place] != name:
            self._is_alike = False  # other formats take other operators; from here on all have the coarsest
            return self._trace.coarsest
        return self._trace.units[place]

    def _disturb(self, tensor: Tensor, size: float) -> None:
        if not tensor.is_floating_point() or not tensor.numel() or _is_expanded(tensor):
            return
        generator = self._generators.get(tensor.device)
        if generator is None:
            generator = self._generators[tensor.device] = torch.Generator(tensor.device).manual_seed(self._seed)
        signs = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device) * 2 - 1
        tensor.mul_(1 + size * signs.to(tensor.dtype))


def _name_of(func: Any) -> str:
    return func._schema.name.partition("::")[2]


def _is_expanded(tensor: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _num_terms(name: str, args: Sequence[Any], result: Any) -> float:
    """Return about how many numbers each number of a result is a sum of."""
    taken = [each for each in _tensors_in(args) if each.ndim]
    given = [each for each in _tensors_in(result) if each.numel()]
    if not taken or not given:
        return 1.0
    if name in _OF_MATRICES:
        return float(taken[-1].shape[-2] if taken[-1].ndim > 1 else taken[-1].shape[-1])
    if name.startswith("convolution"):
        return max(each.numel() / max(each.shape[0], 1) for each in taken)
    if "softmax" in name or "norm" in name or "attention" in name:
        return float(max(each.shape[-1] for each in taken))
    return max(1.0, max(each.numel() for each in taken) / max(each.numel() for each in given))
