"""Names of MindSpore's functions in dumps, the selection of those that are recorded, and where they are found."""

from __future__ import annotations

import importlib
import inspect
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mindspore import Tensor

from msprobe_core.interception import original_of
from msprobe_core.plugin import RiskLevel

Function = Callable[..., Any]


class Namespace(NamedTuple):
    """A module whose public functions are APIs.

    Attributes:
        module: Its name.
        prefix: First part of their names in dumps.
        stem: Prefix of the second part: ``linalg_`` for ``mint.linalg.norm``, which is ``Mint.linalg_norm``.
    """

    module: str
    prefix: str
    stem: str = ""


_INNER = "mindspore.ops.auto_generate"
"""Functions for each operator of MindSpore. Functions that public modules take from there have public names."""

NAMESPACES = (
    Namespace("mindspore.ops", "Functional"),
    Namespace("mindspore.ops.functional", "Functional"),
    Namespace("mindspore.mint", "Mint"),
    Namespace("mindspore.mint.nn.functional", "MintFunctional"),
    Namespace("mindspore.mint.linalg", "Mint", "linalg_"),
    Namespace("mindspore.mint.special", "Mint", "special_"),
    Namespace("mindspore.mint.fft", "Mint", "fft_"),
    Namespace(_INNER, "Functional"),
)
"""Modules to search for functions. A function in several modules has the name of the module where it was looked up."""

TENSOR = "Tensor"

_DEFINING = (
    "mindspore.ops.function.array_func", "mindspore.ops.function.clip_func", "mindspore.ops.function.image_func",
    "mindspore.ops.function.linalg_func", "mindspore.ops.function.math_func", "mindspore.ops.function.nn_func",
    "mindspore.ops.function.other_func", "mindspore.ops.function.parameter_func",
    "mindspore.ops.function.random_func", "mindspore.ops.function.reshard_func",
    "mindspore.ops.function.sparse_func", "mindspore.ops.function.sparse_unary_func",
    "mindspore.ops.function.spectral_func", "mindspore.ops.composite.math_ops", "mindspore.ops.functional_overload",
    "mindspore.ops.auto_generate.gen_ops_def", "mindspore.ops.operations.manually_defined.ops_def",
)  # fmt: skip
"""Modules of MindSpore that define functions of tensors. Other modules in the same namespaces define higher-order
functions (``grad``, ``vmap``), decorators and registries."""

_DECORATING = ("mindspore.graph._check_supported", "mindspore.common._check_supported")
"""Modules of decorators whose wrappers, such as ``mint.flatten``, carry the decorator's own module name."""

_NO_FUNCTIONS = ("_", "infer_value_for_", "jit_")
"""Prefixes of names that users do not call."""


class Place(NamedTuple):
    """Where an API is looked up when it is called.

    Attributes:
        owner: The module or class.
        attribute: Its name there.
        prefix: First part of its name in dumps.
        name: The second part.
        mutates: Whether it writes to its first argument and may return nothing.
    """

    owner: Any
    attribute: str
    prefix: str
    name: str
    mutates: bool


def find_places(risk_level: RiskLevel) -> list[Place]:
    """Return the places of all APIs that are recorded at a risk level, public ones first."""
    return [place for place in _all_places() if is_selected(place.attribute, risk_level)]


def _all_places() -> Iterator[Place]:
    functions = list(_places_of_functions())
    public = {(function, place.attribute) for is_public, function, place in functions if is_public}
    known = {function for function, _ in public}
    for is_public, function, place in functions:
        # A function with a public name is recorded only under that: `mint.transpose` is `transpose_ext_view` inside.
        is_inner = place.owner.__name__ == _INNER or (function, place.attribute) not in public
        if is_public or function not in known or not is_inner:
            yield place
    for name in _methods():
        yield Place(Tensor, name, TENSOR, name, _mutates(name))


def _places_of_functions() -> Iterator[tuple[bool, Function, Place]]:
    """Yield whether the name is public, the function, and its place."""
    seen: set[tuple[str, str, Function]] = set()
    for namespace in NAMESPACES:
        try:
            module = importlib.import_module(namespace.module)
        except ImportError:  # not in this release
            continue
        exported = () if namespace.module == _INNER else getattr(module, "__all__", ())
        for name, function in _functions(module):
            place = Place(module, name, namespace.prefix, f"{namespace.stem}{name}", _mutates(name))
            # A name already found in an earlier namespace is patched with it, like every other name of a function.
            key = place.prefix, place.name, function
            if key not in seen:
                seen.add(key)
                yield name in exported, function, place


def _functions(module: types.ModuleType) -> Iterator[tuple[str, Function]]:
    for name, member in sorted(vars(module).items()):
        function = original_of(member)
        if name.startswith(_NO_FUNCTIONS) or not isinstance(function, types.FunctionType):
            continue
        defined_in = function.__module__ or ""
        if defined_in in _DEFINING or defined_in.startswith(("mindspore.mint", *_DECORATING)):
            yield name, function


def _methods() -> Iterator[str]:
    for name in dir(Tensor):
        owner = next(base for base in Tensor.__mro__ if name in vars(base))
        is_public = name in OPERATORS if name.startswith("_") else not name.startswith("_")
        if owner is object or not is_public:
            continue
        raw = inspect.getattr_static(Tensor, name)
        if isinstance(original_of(raw), types.FunctionType | types.MethodDescriptorType):
            yield name


def _mutates(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name in _MUTATING_OPERATORS


def is_selected(name: str, risk_level: RiskLevel) -> bool:
    """Whether a function, or a primitive of a class, of this name is recorded; see ``docs/mindspore.md``."""
    if name in NOT_RECORDED:
        return False
    if risk_level is RiskLevel.FOCUS:
        return _key(name) not in _LOW_RISK
    return risk_level is not RiskLevel.CORE or _key(name) in _CORE


def _key(name: str) -> str:
    """Return the common part of ``strided_slice``, ``StridedSlice``, ``strided_slice_`` and ``strided_slice_ext``."""
    return name.removesuffix("_view").removesuffix("_ext").replace("_", "").lower()


_MUTATING_OPERATORS = frozenset({"__setitem__"})

_NAMES_OF_OPERATORS = {name for name in dir(operator) if name.startswith("__")}

OPERATORS = frozenset(
    {f"__{start}{name.strip('_')}__" for name in _NAMES_OF_OPERATORS for start in ("", "r", "i")}
    | {"__getitem__", "__setitem__", "__round__"}
) - {"__index__", "__contains__", "__call__", "__delitem__", "__not__", "__doc__", "__name__"}
"""Methods that Python calls for operators such as ``x + y``."""

NOT_RECORDED = frozenset(
    {
        # Query a tensor, without computing.
        "dim", "ndimension", "numel", "nelement", "element_size", "stride", "storage_offset", "data_ptr", "rank",
        "shape", "size", "is_complex", "is_contiguous", "is_floating_point", "is_init", "is_nonzero", "is_pinned",
        "is_shared", "is_signed", "is_tensor", "equal_all", "hooks", "offload_file_path",
        # Pass values to Python.
        "item", "tolist", "asnumpy", "numpy", "get_bytes", "to_dlpack", "print_", "tensordump",
        # Concern memory or the graph, not values.
        "assign_value", "assign_value_cpp", "data_sync", "flush_from_cache", "init_data", "offload", "register_hook",
        "remove_hook",
        "requires_grad_", "set_", "set_cast_dtype", "set_const_arg", "set_device_address", "set_dtype",
        "set_init_flag", "storage", "untyped_storage", "value", "wait_pipeline", "generator", "pin_memory",
        # Return one argument.
        "stop_gradient_", "depend",
    }
)  # fmt: skip
"""Functions that compute nothing themselves."""

LOW_RISK = frozenset(
    {
        # Views and changes of shape.
        "view", "view_as", "reshape", "reshape_as", "transpose", "permute", "t", "squeeze", "unsqueeze", "expand",
        "expand_as", "expand_dims", "flatten", "unflatten", "ravel", "narrow", "select", "select_ext", "slice", "chunk",
        "split", "tensor_split", "hsplit", "vsplit", "dsplit", "unbind", "unstack", "movedim", "moveaxis", "swapaxes",
        "swapdims", "adjoint", "contiguous", "as_strided", "diagonal", "unfold", "real", "imag", "stop_gradient",
        "detach", "getitem", "strided_slice", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_to",
        "broadcast_tensors", "move_to",
        # Copies and casts.
        "clone", "copy", "to", "cast", "astype", "type", "type_as", "float", "double", "half", "bfloat16", "int",
        "long", "short", "byte", "bool", "cat", "concat", "stack", "hstack", "vstack", "dstack", "column_stack",
        "repeat", "tile", "repeat_elements", "repeat_interleave", "roll", "flip", "fliplr", "flipud", "rot90",
        "reverse", "meshgrid", "triu", "tril", "clamp", "clip", "clip_by_value", "clamp_min", "clamp_max",
        # Creation.
        "tensor", "zeros", "ones", "full", "fill", "fills", "empty", "eye", "arange", "range", "linspace", "logspace",
        "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
        "tril_indices", "triu_indices", "zero", "scalar_to_tensor", "tuple_to_array", "one_hot",
    }
)  # fmt: skip
"""Functions that move or create values without arithmetic; FOCUS excludes them, and primitives with such names."""

CORE = frozenset(
    {
        "dense", "linear", "matmul", "mm", "bmm", "batch_dot", "addmm", "addmv", "addbmm", "baddbmm", "mv", "dot",
        "tensor_dot", "einsum", "bidense", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "layer_norm", "rms_norm",
        "add_rms_norm", "group_norm", "batch_norm", "instance_norm", "lrn", "normalize", "embedding", "gather",
        "scaled_dot_product_attention", "flash_attention_score", "softmax", "log_softmax", "cross_entropy", "nll_loss",
        "grouped_matmul", "batch_mat_mul", "embedding_lookup", "softmax_cross_entropy_with_logits",
        "sparse_softmax_cross_entropy_with_logits",
    }
)  # fmt: skip
"""Functions that show most numerical faults of large models; CORE keeps these, and communication."""

_LOW_RISK = frozenset(map(_key, LOW_RISK))
_CORE = frozenset(map(_key, CORE))
