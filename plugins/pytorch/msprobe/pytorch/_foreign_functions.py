"""Functions that PyTorch does not dispatch: those of `torch_npu` and MindSpeed, and launches of Triton kernels.

Packages that are imported when recording starts are patched until it stops.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from msprobe.pytorch._calls import ApiCalls
from msprobe.pytorch._torch_releases import is_compiling
from msprobe_core.interception import AliasSearch, FunctionPatch, Handler, Patches, original_of


class Package(NamedTuple):
    """Functions with one prefix in dumps.

    Attributes:
        module: The module that has them.
        prefix: First part of their names in dumps.
        starts: Prefixes of the public function names to record.
        others: Additional functions to record.
        without: Functions to exclude, because they compute nothing.
        has_submodules: Whether the submodules of ``module`` are meant, each with the functions that it defines.
    """

    module: str
    prefix: str
    starts: tuple[str, ...]
    others: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    has_submodules: bool = False


PACKAGES = (
    Package(
        "torch_npu",
        "NPU",
        starts=("npu_",),
        others=(
            "_npu_dropout", "copy_memory_", "dropout_with_byte_mask", "fast_gelu", "scatter_update", "scatter_update_",
        ),
        without=(
            "npu_alloc_float_status", "npu_clear_float_status", "npu_get_float_status", "npu_get_storage_size",
            "npu_prefetch", "npu_change_data_ptr",
        ),
    ),
    Package("mindspeed.ops", "MindSpeed", starts=("",), has_submodules=True),
)  # fmt: skip

_TRITON = "triton.runtime"
_TRITON_LAUNCHERS = ("JITFunction", "Autotuner", "Heuristics")
_OURS = "msprobe.pytorch._fused"
_NOT_ARGUMENTS = frozenset({"grid", "warmup"})
"""Keywords of a launch that are not passed to the kernel."""


def foreign_patches(calls: ApiCalls, search: AliasSearch) -> Patches:
    """Return patches of all such functions that are imported by now.

    Args:
        calls: Records them.
        search: Remembers the names under which modules have imported them.
    """
    return Patches([*_of_packages(calls), *_of_triton(calls)], search=search)


def _of_packages(calls: ApiCalls) -> Iterator[FunctionPatch]:
    for package in PACKAGES:
        for module in _modules(package):
            for name in _functions(package, module):
                yield FunctionPatch(module, name, _recorded(calls, package.prefix, name), is_compiling)


def _modules(package: Package) -> list[types.ModuleType]:
    if not package.has_submodules:
        module = sys.modules.get(package.module)
        return [module] if module is not None else []
    if package.module not in sys.modules:
        return []
    below = f"{package.module}."
    return [module for name, module in sorted(sys.modules.items()) if name.startswith(below) and module is not None]


def _functions(package: Package, module: types.ModuleType) -> Iterator[str]:
    for name, value in sorted(vars(module).items()):
        is_chosen = name in package.others or (name.startswith(package.starts) and not name.startswith("_"))
        if not is_chosen or name in package.without or not callable(value) or isinstance(value, type):
            continue
        # Skip functions that a module has imported; they are found where they are defined.
        if not package.has_submodules or getattr(original_of(value), "__module__", None) == module.__name__:
            yield name


def _recorded(calls: ApiCalls, prefix: str, name: str) -> Handler:
    def handle(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return calls.run_foreign(prefix, name, function, args, kwargs)

    return handle


def _of_triton(calls: ApiCalls) -> Iterator[FunctionPatch]:
    runtime = sys.modules.get(_TRITON)
    for name in _TRITON_LAUNCHERS:
        launcher = getattr(runtime, name, None)
        if isinstance(launcher, type) and "run" in vars(launcher):
            yield FunctionPatch(launcher, "run", _launched(calls), is_compiling)


def _launched(calls: ApiCalls) -> Handler:
    def handle(run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        # Launches with "warmup" only compile; our own kernels reduce recorded tensors.
        if kwargs.get("warmup") or not args or getattr(_kernel(args[0]), "__module__", None) == _OURS:
            return run(*args, **kwargs)
        shown = {name: value for name, value in kwargs.items() if name not in _NOT_ARGUMENTS}
        return calls.run_foreign("Triton", _kernel_name(args[0]), run, args, kwargs, shown=(args[1:], shown))

    return handle


def _kernel(launcher: Any) -> Any:
    """Return the kernel function of a launcher, which other launchers may wrap."""
    for _ in range(len(_TRITON_LAUNCHERS) + 1):
        inner = getattr(launcher, "fn", None)
        if inner is None:
            break
        launcher = inner
    return launcher


def _kernel_name(launcher: Any) -> str:
    kernel = _kernel(launcher)
    return getattr(kernel, "__name__", None) or type(kernel).__name__
