"""Disable or log dropout, wherever it is called from.

Every form of dropout ends in one of a few operators, which PyTorch implements for all devices by one kernel composed of
other operators. While dropout is disabled or logged, a kernel of ours overrides it. So every caller reaches it, by any
name, on any thread, from Python, C++ or TorchScript, in forward or recomputed in backward. Our kernel calls PyTorch's
own, with a probability of 0 if dropout is disabled. `torch.compile` is exempt: its result is cached, also on disk, and
must not depend on us.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch._C import DispatchKey

from msprobe.pytorch._torch_releases import destroy, is_compiling, run_under
from msprobe_core.interception import Function, FunctionPatch, Patches, RandomCall, RandomState, RandomWatch

_logger = logging.getLogger(__name__)

_OPERATORS = (
    "dropout", "dropout_", "feature_dropout", "feature_dropout_", "alpha_dropout", "alpha_dropout_",
    "feature_alpha_dropout", "feature_alpha_dropout_", "scaled_dot_product_attention", "lstm.input", "lstm.data",
    "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data", "rnn_relu.input", "rnn_relu.data",
)  # fmt: skip

_BACKENDS = ("CPU", "CUDA", "XPU", "MPS", "HPU", "PrivateUse1", "NestedTensorCPU", "NestedTensorCUDA")
_KEYS = (
    *_BACKENDS,
    *(f"Autograd{backend}" for backend in _BACKENDS if not backend.startswith("NestedTensor")),
    "AutogradNestedTensor",
)
_TRANSFORMS = "FuncTorchDynamicLayerFrontMode"
"""Dispatch key of `torch.func`'s own dropout kernels."""

_UNTOUCHED = DispatchKey.AutogradLazy
"""A key under which PyTorch's own kernel, the same for all devices, is not overridden, so that ours can call it."""

_PROBABILITIES = frozenset({"p", "dropout", "dropout_p"})

_ARGUMENTS = {
    **dict.fromkeys(
        (
            "dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "alpha_dropout_",
            "feature_dropout", "feature_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_",
        ),
        (1, "p"),
    ),
    "scaled_dot_product_attention": (4, "dropout_p"),
    "multi_head_attention_forward": (10, "dropout_p"),
}  # fmt: skip
"""Position and name of the probability in the functions of PyTorch."""

_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Their probability is two positions after the first boolean, in both of their forms."""

_OWN_KERNELS = (
    (torch.nn.functional, "scaled_dot_product_attention"), (torch._VF, "lstm"), (torch._VF, "gru"),
    (torch._VF, "rnn_tanh"), (torch._VF, "rnn_relu"),
)  # fmt: skip
"""Functions whose operator some devices override by their own kernel, which is then called without dropout."""

_NPU_ATTENTION = ("npu_fusion_attention", "npu_fusion_attention_v2")
_NPU_KEEP_PROBABILITY = (9, "keep_prob")


def without_dropout(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call of the function ``name`` with a probability of 0, if it has one."""
    if name in _RECURRENT:
        for i, value in enumerate(args[:-2]):
            if isinstance(value, bool):
                return _with(args, kwargs, (i + 2, ""), 0.0)
    place = _ARGUMENTS.get(name)
    return (args, dict(kwargs)) if place is None else _with(args, kwargs, place, 0.0)


def _with(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], place: tuple[int, str], value: float
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with one of them replaced, if it is given, or if it must be because its default is not 0."""
    position, keyword = place
    if len(args) > position:
        # An invalid probability is left for PyTorch to reject.
        return (*args[:position], _replaced(args[position], value), *args[position + 1 :]), dict(kwargs)
    if keyword == "p" or keyword in kwargs:
        return args, {**kwargs, keyword: _replaced(kwargs.get(keyword, value), value)}
    return args, dict(kwargs)


def _replaced(given: Any, value: float) -> Any:
    is_probability = isinstance(given, int | float) and 0 <= given <= 1
    return value if is_probability else given


class DropoutKernels:
    """The kernels that override PyTorch's; there is one set of them per process."""

    _lock: ClassVar[threading.RLock] = threading.RLock()
    _library: ClassVar[torch.library.Library | None] = None
    _functions: ClassVar[Patches] = Patches()
    _watches: ClassVar[list[tuple[RandomWatch, RandomState]]] = []
    _let_be: ClassVar[set[str]] = set()
    _has_said: ClassVar[bool] = False
    is_removed: ClassVar[bool] = False
    """Whether dropout is disabled."""

    @classmethod
    def take_out(cls) -> None:
        """Disable every dropout, until `put_back`."""
        with cls._lock:
            cls._open()
            if not cls.is_removed:
                cls.is_removed, cls._has_said = True, False
                cls._functions = Patches(cls._of_devices())
                cls._functions.install()

    @classmethod
    def put_back(cls) -> None:
        """Enable dropout again."""
        with cls._lock:
            if cls.is_removed:
                cls._functions.remove()
                cls.is_removed = False
                cls._close()

    @classmethod
    def watch(cls, watch: RandomWatch, state: RandomState) -> Callable[[], None]:
        """Pass each active dropout to ``watch``; return a function that ends it."""
        entry = (watch, state)
        with cls._lock:
            cls._open()
            cls._watches.append(entry)

        def end() -> None:
            with cls._lock:
                cls._watches.remove(entry)
                cls._close()

        return end

    @classmethod
    def _open(cls) -> None:
        if cls._library is not None:
            return
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns about an overridden kernel, which is intended
            for name in _OPERATORS:
                kernel = cls._kernel(name)
                for key in (*_KEYS, _TRANSFORMS):
                    if _may_replace(name, key):
                        library.impl(name, kernel, key)
                    elif key != _TRANSFORMS:
                        cls._let_be.add(name.partition(".")[0])
        cls._library = library
        cls._forget_dispatch()

    @staticmethod
    def _forget_dispatch() -> None:
        """Let the compiler look up the kernels again: it caches them."""
        for name in _OPERATORS:
            getattr(_operator(name), "_dispatch_cache", {}).clear()

    @classmethod
    def _close(cls) -> None:
        if not cls.is_removed and not cls._watches and cls._library is not None:
            library, cls._library = cls._library, None
            destroy(library)
            cls._forget_dispatch()

    @classmethod
    def _kernel(cls, name: str) -> Function:
        operator = _operator(name)
        names = [argument.name for argument in operator._schema.arguments]
        position = next(i for i, each in enumerate(names) if each in _PROBABILITIES)
        train = names.index("train") if "train" in names else None

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                return cls._compile(operator, args, kwargs)
            probability = args[position] if len(args) > position else 0.0
            if not probability or (train is not None and not args[train]):
                return run_under(_UNTOUCHED, operator, args, kwargs)
            if cls.is_removed:
                args, _ = _with(args, {}, (position, ""), 0.0)
                return run_under(_UNTOUCHED, operator, args, kwargs)
            return cls._draw(name, operator, args, kwargs)

        return kernel

    @classmethod
    def _draw(cls, name: str, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return run_under(_UNTOUCHED, operator, args, kwargs)

        for watch, state in cls._watches:
            call = _watched(watch, state, f"torch.{name.partition('.')[0]}", call)
        return call(*args, **kwargs)

    @classmethod
    def _compile(cls, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if cls.is_removed and not cls._has_said:
            cls._has_said = True
            _logger.warning(
                "seed_all(rm_dropout=True) does not reach into what torch.compile compiles: dropout stays there; set "
                "the model's probabilities to 0"
            )
        decomposition = operator.py_kernels.get(DispatchKey.CompositeImplicitAutograd)
        if decomposition is not None:
            return decomposition(*args, **kwargs)
        return run_under(_UNTOUCHED, operator, args, kwargs)

    @classmethod
    def _of_devices(cls) -> list[FunctionPatch]:
        """Return patches of the functions that end in a kernel of the device instead of PyTorch's own."""
        patches = [
            FunctionPatch(owner, name, _without(name), is_compiling)
            for owner, name in _OWN_KERNELS
            if name in cls._let_be
        ]
        npu = sys.modules.get("torch_npu")
        return patches + [
            FunctionPatch(npu, name, _keep_all, is_compiling) for name in _NPU_ATTENTION if hasattr(npu, name)
        ]


def _watched(watch: RandomWatch, state: RandomState, name: str, function: Function) -> Function:
    return lambda *args, **kwargs: watch.call(RandomCall(name, state, function, args, kwargs))


def _without(name: str) -> Callable[[Function, tuple[Any, ...], Mapping[str, Any]], Any]:
    def call(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        args, kwargs = without_dropout(name, args, kwargs)
        return function(*args, **kwargs)

    return call


def _keep_all(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    args, kwargs = _with(args, kwargs, _NPU_KEEP_PROBABILITY, 1.0)
    return function(*args, **kwargs)


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _may_replace(name: str, key: str) -> bool:
    """Whether the kernel under ``key`` is PyTorch's own, or equivalent when nothing is dropped."""
    is_taken = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
    if key == _TRANSFORMS:
        return is_taken
    return "dropout" in name or not is_taken


def _is_compiling() -> bool:
    return torch._C._dispatch_tls_is_dispatch_key_included(DispatchKey.PythonDispatcher) or bool(is_compiling())
