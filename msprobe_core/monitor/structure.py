"""What is written once, of the first step: the structure of the modules, and from where each is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msprobe_core.interception.containers import children_of
from msprobe_core.interception.stacks import StackCache
from msprobe_core.monitor.module_calls import CallObserver, ModuleCall
from msprobe_core.monitor.training import Training
from msprobe_core.protocols.framework import Framework
from msprobe_core.store.atomic_file import write_csv, write_json
from msprobe_core.store.layout import make_directory

STACKS = "stack_info.csv"
_NONE = str(type(None))


class FirstStep:
    """Collects both, as far as the plan asks for them; `write` ends that."""

    def __init__(self, framework: Framework, training: Training) -> None:
        """Begin with nothing.

        Args:
            framework: Describes tensors.
            training: Names the files.
        """
        self._framework = framework
        self._plan = training.plan
        self._struct_path = training.plan.output / "module_struct" / f"rank{training.rank}" / "module_struct.json"
        self._stack_path = training.directory / STACKS
        self._struct: dict[str, dict[str, dict[str, str]]] = {}
        self._stacks: dict[str, tuple[str, ...]] = {}

    def observers(self, stage: int) -> list[CallObserver]:
        """Return the observers of the calls of one model."""
        plan = self._plan
        structure = [_Structure(self._framework, self._struct, stage)] if plan.print_struct else []
        return [*structure, *([_Callers(self._framework, self._stacks, stage)] if plan.stack_info else [])]

    def write(self) -> None:
        """Write the files.

        Raises:
            StoreError: one cannot be written.
        """
        if self._plan.print_struct:
            write_json(self._struct_path, self._struct)
        if self._plan.stack_info:
            rows = ((name, "\n".join(frames)) for name, frames in self._stacks.items())
            make_directory(self._stack_path.parent)
            write_csv(self._stack_path, [("module_name", "stack_info"), *rows])


class _OfAllModules(CallObserver):
    """Looks at the first call of each module of one model."""

    def __init__(self, framework: Framework, stage: int) -> None:
        self._framework = framework
        self._stage = stage
        self._calls: dict[str, ModuleCall] = {}

    def wants(self, path: str) -> bool:
        """Whether it has not been called before."""
        return path not in self._calls

    def _begin(self, call: ModuleCall) -> str:
        self._calls[call.path] = call
        return f"{self._stage}:{call.path}"


class _Callers(_OfAllModules):
    """Call stacks."""

    def __init__(self, framework: Framework, found: dict[str, tuple[str, ...]], stage: int) -> None:
        super().__init__(framework, stage)
        self._found = found
        self._stacks = StackCache(framework.hidden_frames)

    def see_inputs(self, call: ModuleCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note the stack."""
        del args, kwargs
        self._found[self._begin(call)] = self._stacks.capture()


class _Structure(_OfAllModules):
    """Shapes and dtypes of what a module is given and makes, and of its gradients."""

    wants_gradients = True

    def __init__(self, framework: Framework, found: dict[str, dict[str, dict[str, str]]], stage: int) -> None:
        super().__init__(framework, stage)
        self._found = found

    def see_inputs(self, call: ModuleCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Describe them."""
        given = {"config": f"list[{len(args)}]"}
        given |= {name: self._shown(value) for name, value in [*_numbered(args), *kwargs.items()]}
        gradients = self._without_gradients([*args, *kwargs.values()])
        self._found[self._begin(call)] = {"input": given, "output": {}, "input_grad": gradients, "output_grad": {}}

    def see_output(self, call: ModuleCall, output: Any) -> None:
        """Describe it."""
        entry = self._found[f"{self._stage}:{call.path}"]
        children, kind = children_of(output), type(output).__name__
        if children is None:
            kind = "tensor" if self._framework.is_tensor(output) else kind
            entry["output"] = {"config": kind, kind: self._shown(output)}
            entry["output_grad"] = self._without_gradients([output])
            return
        named = [*children.items()] if isinstance(children, Mapping) else _numbered(children)
        kind = f"{kind}[{len(named)}]"
        entry["output"] = {"config": kind, **{str(name): self._shown(value) for name, value in named}}
        entry["output_grad"] = self._without_gradients([value for _, value in named])

    def see_gradient(self, call: ModuleCall, side: str, place: int, gradient: Any) -> None:
        """Describe it."""
        self._found[f"{self._stage}:{call.path}"][f"{side}_grad"][str(place)] = self._shown(gradient)

    def _without_gradients(self, values: Sequence[Any]) -> dict[str, str]:
        """Return the entry of gradients before any has arrived: one for each tensor."""
        number = sum(self._framework.is_tensor(value) for value in values)
        return {"config": f"tuple[{number}]", **{str(i): _NONE for i in range(number)}}

    def _shown(self, value: Any) -> str:
        if not self._framework.is_tensor(value):
            return str(type(cast("object", value)))
        meta = self._framework.describe(value)
        return f"size={tuple(meta.shape)}, dtype={meta.dtype}"


def _numbered(values: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(str(number), value) for number, value in enumerate(values)]
