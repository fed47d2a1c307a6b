"""Gradients before trainers reduce them over data-parallel ranks, where they are not what a parameter accumulates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from msprobe.pytorch._compiled import modules_to_hook
from msprobe.pytorch._parameters import own_parameters
from msprobe.pytorch._quiet import RecordingGuard
from msprobe_core.interception import FunctionPatch

Report = Callable[[str, Any], None]


class ReductionWatch:
    """See `msprobe_core.plugin.Reductions`."""

    def __init__(self, model: nn.Module, report: Report, on_failure: Callable[[str, Exception], None]) -> None:
        """Look for trainers, and watch what they reduce.

        Args:
            model: The one that was given to the monitor.
            report: Called with name and gradient of a parameter, inside of a guard.
            on_failure: Called with what could not be read, and why.
        """
        self.model = model
        self.trainers: list[str] = []
        self._report = report
        self._on_failure = on_failure
        self._claimed: set[str] = set()
        self._patches: list[FunctionPatch] = []
        self._by_place: dict[tuple[int, str], str] = {}
        self._by_parameter: dict[int, str] = {}
        for path, module, _ in modules_to_hook(model, ""):
            for name, parameter in own_parameters(module).items():
                whole = f"{path}.{name}" if path else name
                self._by_place.setdefault((id(module), name), whole)
                self._by_parameter.setdefault(id(parameter), whole)
        for name, watch in WATCHES.items():
            with RecordingGuard(on_failure):
                if watch(self):
                    self.trainers.append(name)

    def claim(self, name: str | None) -> None:
        """Note that a parameter is reported here, or nowhere."""
        if name is not None:
            self._claimed.add(name)

    def claims(self, name: str) -> bool:
        """Whether a parameter is reported here."""
        return name in self._claimed

    def name_at(self, module: nn.Module, name: str) -> str | None:
        """Return the whole name of a module's parameter."""
        return self._by_place.get((id(module), name))

    def name_of(self, parameter: Any) -> str | None:
        """Return the whole name of a parameter."""
        return self._by_parameter.get(id(parameter))

    def before(
        self, owner: Any, function: str, find: Callable[[tuple[Any, ...]], Iterable[tuple[str | None, Any]]]
    ) -> None:
        """Report what ``find`` returns of the arguments of a function, before each of its calls.

        A release that lacks the function reports nothing, which the coverage says.
        """

        def handle(original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            with RecordingGuard(self._on_failure):
                for name, gradient in find(args):
                    if name is not None and gradient is not None:
                        self._report(name, gradient)
            return original(*args, **kwargs)

        if hasattr(owner, function):
            patch = FunctionPatch(owner, function, handle)
            patch.install()
            self._patches.append(patch)

    def detach(self) -> None:
        """Put the functions back."""
        while self._patches:
            self._patches.pop().remove()


def _watch_fsdp2(watch: ReductionWatch) -> bool:
    """``fully_shard``: the whole gradients of a group are given to the function that reduces and cuts them."""
    names: dict[int, str | None] = {}
    modules: set[str] = set()
    for group in fsdp2_groups(watch.model):
        modules.add(type(group).__module__)
        for each in group.fsdp_params:
            info = each._module_info
            names[id(each)] = watch.name_at(info.module, info.param_name)
            watch.claim(names[id(each)])

    def find(args: tuple[Any, ...]) -> Iterable[tuple[str | None, Any]]:
        return [(names.get(id(each)), _placed(each, gradient)) for each, gradient in zip(args[0], args[1], strict=True)]

    for module in modules:
        watch.before(sys.modules[module], "foreach_reduce", find)
    return bool(modules)


def _placed(parameter: Any, gradient: Any) -> Any:
    """Return the gradient of a parameter that tensor parallelism has cut, with its place in the whole."""
    spec = getattr(parameter, "_unsharded_dtensor_spec", getattr(parameter, "_tp_spec", None))  # earlier releases
    if gradient is None or spec is None or getattr(parameter.mesh_info, "is_spmd_mesh", False):
        return gradient
    from torch.distributed.tensor import DTensor

    return DTensor(gradient, spec, requires_grad=False)


def fsdp2_groups(model: nn.Module) -> list[Any]:
    """Return the groups of parameters that ``fully_shard`` reduces together."""
    found: list[Any] = []
    for module in model.modules():
        state_of = getattr(type(module), "_get_fsdp_state", None)
        if state_of is None:
            continue
        state = state_of(module)
        groups = getattr(state, "_fsdp_param_groups", None)
        found += [state._fsdp_param_group] if groups is None else groups
    return [group for group in found if group is not None]


def _watch_fsdp1(watch: ReductionWatch) -> bool:
    """``FullyShardedDataParallel``: one flat gradient, which the handle cuts into those of the parameters."""
    handles = fsdp1_handles(watch.model)
    if not handles:
        return False
    names: dict[int, list[str | None]] = {}
    for handle in handles:
        if handle._use_orig_params:  # else the flat parameter is the model's, and accumulates the gradient itself
            names[id(handle)] = [watch.name_at(module, name) for name, module, _ in handle.flat_param._param_infos]
            for name in names[id(handle)]:
                watch.claim(name)

    def find(args: tuple[Any, ...]) -> Iterable[tuple[str | None, Any]]:
        handle = args[1]
        own = names.get(id(handle), ())
        return zip(own, handle._get_unflat_views(handle.flat_param.grad), strict=True) if own else ()

    from torch.distributed.fsdp import _runtime_utils

    for function in ("_reduce_grad", "_reduce_grad_no_shard"):
        watch.before(_runtime_utils, function, find)
    return True


def fsdp1_handles(model: nn.Module) -> list[Any]:
    """Return the handles of flat parameters."""
    known = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    if known is None:
        return []
    found = [module._handle for module in model.modules() if isinstance(module, known.FullyShardedDataParallel)]
    return [handle for handle in found if handle is not None]


def _watch_megatron(watch: ReductionWatch) -> bool:
    """Megatron: groups of buckets of ``main_grad``, which begin to reduce all micro-batches of the step at once."""
    groups = [
        group
        for module in watch.model.modules()
        for attribute in ("bucket_groups", "expert_parallel_bucket_groups")
        for group in _listed(module, attribute)
        if hasattr(group, "start_grad_sync")
    ]
    for group in groups:
        parameters = [parameter for bucket in group.buckets for parameter in _parameters_of(bucket)]
        for parameter in parameters:
            watch.claim(watch.name_of(parameter))

        def find(_args: tuple[Any, ...], group: Any = group, parameters: Sequence[Any] = parameters) -> Any:
            if getattr(group, "grad_reduce_handle", None) is not None:
                return ()  # it is being reduced already
            return [(watch.name_of(parameter), parameter.main_grad) for parameter in parameters]

        watch.before(group, "start_grad_sync", find)
    return bool(groups)


def _listed(module: nn.Module, attribute: str) -> Sequence[Any]:
    found = getattr(module, attribute, ())
    return found if isinstance(found, list | tuple) else ()


def _parameters_of(bucket: Any) -> Sequence[Any]:
    return list(getattr(bucket, "params_list", None) or bucket.params)


WATCHES: dict[str, Callable[[ReductionWatch], bool]] = {
    "fsdp1": _watch_fsdp1,
    "fsdp2": _watch_fsdp2,
    "megatron": _watch_megatron,
}
"""By name of the trainer; each says whether the model is one of its."""
