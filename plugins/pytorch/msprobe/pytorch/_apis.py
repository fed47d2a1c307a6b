"""Names in dumps of the functions that PyTorch dispatches, and the selection of those that are recorded."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard, cast

import torch

from msprobe.pytorch._collectives import is_communication
from msprobe_core.interception import FunctionPatch, original_of
from msprobe_core.plugin import RiskLevel

Function = Callable[..., Any]


class Api(NamedTuple):
    """An API as dumps name it.

    Attributes:
        prefix: ``Functional``, ``Tensor``, ``Torch``, ``VF``, ``Aten``, or the module a third party defines it in.
        name: ``linear``; ``linalg_norm`` for functions of the submodules of torch.
        operator: Name where the call is written as an operator, ``__add__`` for ``x + y``; empty if it never is.
        mutates: Whether it writes to arguments, most often the first, and may return nothing.
    """

    prefix: str
    name: str
    operator: str = ""
    mutates: bool = False


class ApiTable:
    """Maps each dispatched function to its name, or to ``None`` if it is not recorded."""

    def __init__(self, risk_level: RiskLevel, namespaces: Iterable[str] = ()) -> None:
        """Build the table.

        Args:
            risk_level: How many APIs are recorded; see ``docs/pytorch.md``.
            namespaces: Those of ``torch.ops`` whose operators are recorded whatever the risk level.
        """
        self._risk_level = risk_level
        self._namespaces = frozenset(namespaces)
        self._known: dict[Function, Api | None] = {}
        # The first name found for a function is used: F.conv2d and torch.conv2d are one object.
        for prefix, members in _namespaces():
            for name, function in members:
                self._known.setdefault(function, self._select(_make_api(prefix, name)))

    def find(self, function: Function) -> Api | None:
        """Return the name of ``function``, or ``None`` if it is not recorded."""
        try:
            return self._known[function]
        except KeyError:
            pass
        except TypeError:  # not hashable: nothing that torch defines
            return None
        if isinstance(function, types.MethodWrapperType):
            # Reading an attribute, such as ``x.shape``: a new object at each access, but equal to the others.
            if isinstance(function.__self__, types.GetSetDescriptorType):
                self._known[function] = None
            return None
        if isinstance(function, FunctionPatch):  # PyTorch looks up methods when it dispatches them
            return self.find(function.original)
        named = None if is_communication(function) else _guess(function)
        api = self._known[function] = self._select(named)
        return api

    def name_of(self, operator: Function, *, keeps_all: bool) -> Api | None:
        """Return the name of an operator that runs below the APIs; ``None`` if it is not recorded.

        The risk level selects APIs. Among the operators inside them, those that move or create values without
        arithmetic are recorded only with ``keeps_all``.
        """
        return self._select(_guess(operator), RiskLevel.ALL if keeps_all else RiskLevel.FOCUS)

    def _select(self, api: Api | None, risk_level: RiskLevel | None = None) -> Api | None:
        if api is None or api.name in NOT_RECORDED:
            return None
        if api.prefix in self._namespaces:
            return api
        risk_level = risk_level or self._risk_level
        name = api.name.strip("_") if api.name.startswith("__") else api.name.rstrip("_")
        if risk_level is RiskLevel.FOCUS and name in LOW_RISK:
            return None
        if risk_level is RiskLevel.CORE and name not in CORE and api.prefix not in CORE_PREFIXES:
            return None
        return api


def is_foreign_operator(function: Function) -> bool:
    """Whether an operator of ``torch.ops`` is not PyTorch's own; many take the output tensor as an argument."""
    return isinstance(function, _OPERATORS_OF_TORCH) and str(function).partition(".")[0] not in _OWN_NAMESPACES


def written_by_schema(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that a third-party operator's schema marks as written to."""
    if is_foreign_operator(function):
        for place, name in _written_places(function):
            yield from _tensors_in([args[place] if place < len(args) else kwargs.get(name)])


@lru_cache(1 << 10)
def _written_places(operator: Function) -> tuple[tuple[int, str], ...]:
    """Return position and name of the arguments that an operator's schemas mark as written to."""
    packet: Any = getattr(operator, "overloadpacket", operator)
    overloads = [operator] if packet is not operator else [getattr(packet, name) for name in packet.overloads()]
    places = {
        (i, argument.name)
        for overload in cast("list[Any]", overloads)
        for i, argument in enumerate(overload._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    return tuple(sorted(places))


_OPERATORS_OF_TORCH = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_OWN_NAMESPACES = frozenset({"aten", "prim", "prims", "quantized", "_quantized", "mkldnn"})


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        yield from filter(_is_tensor, value if isinstance(value, tuple | list) else [value])


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)


def is_operator_call(frame: types.FrameType) -> bool:
    """Whether ``frame`` is evaluating an operator, as in ``x + y``, rather than a call, as in ``x.add(y)``."""
    code = frame.f_code.co_code
    return code[frame.f_lasti] in _OPERATOR_CODES


_OPERATOR_CODES = frozenset(
    code for name, code in dis.opmap.items() if name.startswith(("BINARY_", "INPLACE_", "UNARY_", "COMPARE_"))
)


def _make_api(prefix: str, name: str) -> Api:
    mutates = (name.endswith("_") and not name.endswith("__")) or name in _MUTATING_OPERATORS
    operator = _OPERATORS.get(name, "") if prefix == "Tensor" else ""
    return Api(prefix, name, operator, mutates)


_MUTATING_OPERATORS = frozenset({"__setitem__", "__delitem__"})

_OPERATORS = {
    "add": "__add__", "add_": "__iadd__", "sub": "__sub__", "sub_": "__isub__", "mul": "__mul__", "mul_": "__imul__",
    "div": "__truediv__", "div_": "__itruediv__", "matmul": "__matmul__", "remainder": "__mod__",
    "remainder_": "__imod__", "neg": "__neg__", "bitwise_not": "__invert__", "lt": "__lt__", "le": "__le__",
    "gt": "__gt__", "ge": "__ge__", "eq": "__eq__", "ne": "__ne__", "bitwise_and": "__and__", "bitwise_or": "__or__",
    "bitwise_xor": "__xor__", "floor_divide": "__floordiv__", "floor_divide_": "__ifloordiv__",
}  # fmt: skip
"""PyTorch dispatches ``x + y`` under the name of the method; dumps distinguish the two."""


def _namespaces() -> Iterable[tuple[str, Iterable[tuple[str, Function]]]]:
    yield "Functional", _members(torch.nn.functional, ("torch", "torch._C._nn", "torch.nn.functional"))
    yield "Tensor", _members(torch.Tensor, None)
    members = _members(torch, ("torch", "torch.functional"))
    yield "Torch", [(name, function) for name, function in members if name not in _OTHER_NAMES]
    for module in (torch.linalg, torch.fft, torch.special, torch.sparse, torch.nested):
        stem = module.__name__.rpartition(".")[2]
        members = _members(module, (f"torch._C._{stem}", f"torch.{stem}"))
        yield "Torch", [(f"{stem}_{name}", function) for name, function in members]


_OTHER_NAMES = frozenset({"dsmm", "hsmm", "spmm"})
"""Older names of ``torch.mm``, and the like, which come first in the alphabet."""


def _members(namespace: Any, modules: tuple[str, ...] | None) -> list[tuple[str, Function]]:
    """Return the functions of a namespace, restricted to the given modules, if any."""
    members: list[tuple[str, Function]] = []
    for name in dir(namespace):
        member = original_of(getattr(namespace, name, None))
        if not callable(member) or isinstance(member, type):
            continue
        if modules is None or getattr(member, "__module__", None) in modules:
            members.append((_public_name(namespace, name), member))
    # Public names first: several private helpers share an object with the function that users call.
    return sorted(members, key=lambda item: (item[0].startswith("_"), item[0]))


def _public_name(namespace: Any, name: str) -> str:
    """Return the name that users write: F.max_pool2d dispatches under F._max_pool2d or max_pool2d_with_indices."""
    if namespace is torch.nn.functional:
        public = name.removeprefix("_").removesuffix("_with_indices")
        return public if hasattr(namespace, public) else name
    return name


def _guess(function: Function) -> Api | None:
    """Return a name for a function that is in none of the namespaces, from its module."""
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or ""
    if isinstance(function, _OPERATORS_OF_TORCH):
        namespace, _, operator = str(function).partition(".")
        api = _make_api(_OPERATOR_PREFIXES.get(namespace, namespace), operator.partition(".")[0])
        return api._replace(mutates=True) if is_foreign_operator(function) and _written_places(function) else api
    if not name or name == "__get__" or module.startswith(("torch._C", "torch.autograd", "torch.overrides")):
        known = _C_MODULES.get(module)
        return _make_api(known, name) if known and name else None
    if module.startswith("torch.nn.init"):
        return _make_api("Init", name)
    last = module.rpartition(".")[2]
    return _make_api(last[:1].upper() + last[1:], name) if last else None


_OPERATOR_PREFIXES = {"aten": "Aten", "npu": "NPU"}

_C_MODULES = {
    "torch._C._nn": "Functional", "torch._C._VariableFunctions": "Torch", "torch._C._linalg": "Torch",
    "torch._C._fft": "Torch", "torch._C._special": "Torch", "torch._C._VF": "VF",
}  # fmt: skip

NOT_RECORDED = frozenset(
    {
        # Query a tensor, without computing.
        "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size", "data_ptr",
        "const_data_ptr", "get_device", "has_names", "dense_dim", "sparse_dim", "dim_order", "itemsize", "nbytes",
        "is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_inference", "is_conj", "is_neg",
        "is_nonzero", "is_pinned", "is_shared", "is_set_to", "is_same_size", "is_coalesced", "is_distributed",
        "is_tensor", "is_storage", "result_type", "promote_types", "can_cast", "equal", "allclose", "broadcast_shapes",
        "qscheme", "q_scale", "q_zero_point",
        # Pass values to Python.
        "item", "tolist", "numpy", "__len__", "__repr__", "__str__", "__format__", "__hash__", "__bool__", "__int__",
        "__float__", "__index__", "__long__", "__complex__", "__nonzero__", "__contains__", "__iter__",
        "__array__", "__array_wrap__", "__dlpack__", "__dlpack_device__", "__dir__", "__deepcopy__", "__reduce_ex__",
        "__reduce__", "__setstate__", "__getattribute__", "__setattr__", "__delattr__", "_reduce_ex_internal",
        # Concern storage or the graph, not values.
        "storage", "untyped_storage", "_typed_storage", "storage_type", "share_memory_", "as_subclass", "register_hook",
        "register_post_accumulate_grad_hook", "retain_grad", "requires_grad_", "backward", "module_load",
        "__init__", "__new__", "__init_subclass__", "__subclasshook__", "__torch_dispatch__", "__torch_function__",
        "_make_subclass", "_make_wrapper_subclass", "_dtensor__new__", "_is_view", "_sync", "_set_grad_enabled",
    }
)  # fmt: skip
"""Functions that compute nothing themselves."""

LOW_RISK = frozenset(
    {
        # Views and changes of shape.
        "view", "view_as", "view_as_real", "view_as_complex", "reshape", "reshape_as", "transpose", "permute", "t",
        "squeeze", "unsqueeze", "expand", "expand_as", "flatten", "unflatten", "ravel", "narrow", "narrow_copy",
        "select", "slice", "chunk", "split", "split_with_sizes", "tensor_split", "hsplit", "vsplit", "dsplit", "unbind",
        "movedim", "moveaxis", "swapaxes", "swapdims", "adjoint", "contiguous", "as_strided", "diagonal", "unfold",
        "unsafe_chunk", "unsafe_split", "real", "imag", "detach", "alias", "getitem", "atleast_1d", "atleast_2d",
        "atleast_3d", "broadcast_to", "broadcast_tensors", "rename", "align_to", "align_as",
        # Copies and casts.
        "clone", "to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte",
        "bool", "cfloat", "cdouble", "chalf", "cpu", "cuda", "npu", "pin_memory", "cat", "concat", "concatenate",
        "stack", "hstack", "vstack", "dstack", "column_stack", "row_stack", "repeat", "tile", "repeat_interleave",
        "roll", "flip", "fliplr", "flipud", "rot90", "reversed", "meshgrid", "triu", "tril", "clamp", "clip",
        "clamp_min", "clamp_max",
        "resolve_conj", "resolve_neg",
        # Creation.
        "tensor", "as_tensor", "asarray", "from_numpy", "frombuffer", "scalar_tensor", "zeros", "ones", "full", "empty",
        "empty_strided", "empty_permuted", "eye", "arange", "range", "linspace", "logspace", "zeros_like", "ones_like",
        "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided", "new_tensor",
        "tril_indices", "triu_indices", "zero", "fill",
    }
)  # fmt: skip
"""Functions that move or create values without arithmetic, which FOCUS excludes. Without trailing underscores."""

CORE = frozenset(
    {
        "linear", "matmul", "mm", "bmm", "addmm", "addmv", "addbmm", "baddbmm", "mv", "dot", "einsum", "chain_matmul",
        "bilinear", "grouped_mm", "scaled_mm", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
        "conv_transpose3d", "conv_tbc", "layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm",
        "local_response_norm", "normalize", "embedding", "embedding_bag", "scaled_dot_product_attention",
        "multi_head_attention_forward", "softmax", "log_softmax", "cross_entropy", "nll_loss", "linear_cross_entropy",
        "lstm", "gru", "rnn_tanh", "rnn_relu", "_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad",
    }
)  # fmt: skip
"""Functions that show most numerical faults of large models; CORE keeps these and the prefixes below."""

CORE_PREFIXES = frozenset({"NPU", "MindSpeed", "Distributed"})
