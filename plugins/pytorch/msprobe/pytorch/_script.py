"""Write a recorded call as the source code of a script that needs PyTorch only."""

from __future__ import annotations

import msgspec
import torch

from msprobe.pytorch import _script_parts as parts
from msprobe.pytorch._formula_specialised import formula_for
from msprobe.pytorch._optimizer_formulas import FORMULAS as OPTIMIZER_STEPS
from msprobe.pytorch._reference_formulas import find_reference
from msprobe.pytorch._replay import CASTS, dtype_of, special_of, why_not_replayed, with_epsilon
from msprobe.pytorch._replay_modules import Plan, plan_of
from msprobe.pytorch._replay_table import find_function
from msprobe.pytorch._script_formula import Formula
from msprobe_core.interception import (
    NOT_SPECIAL,
    call_text,
    literal,
    may_write,
    script_leaves,
    script_tensors,
    source_of,
)
from msprobe_core.plugin import Argument, CallScript, Phase, ReplayCall, ReplayError, Site, SiteKind

_NAMESPACES = {
    "Functional": "torch.nn.functional", "Tensor": "torch.Tensor", "Torch": "torch", "VF": "torch._VF",
    "Aten": "torch.ops.aten", "AtenBackward": "torch.ops.aten", "NPU": "torch_npu",
}  # fmt: skip
_DRAWN = frozenset(
    [("Torch", name) for name in ("rand", "randn", "rand_like", "randn_like", "native_dropout", "dropout",
                                  "alpha_dropout", "feature_dropout", "feature_alpha_dropout")]
    + [("Tensor", name) for name in ("uniform_", "normal_", "exponential_", "bernoulli_")]
    + [("Functional", name) for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
                                         "feature_alpha_dropout")]
)  # fmt: skip
"""Random functions that scripts call, by prefix and name; their results are as large as their arguments say."""

_SUBMODULES = ("linalg_", "fft_", "special_")


def script_of(call: ReplayCall) -> CallScript:
    """See `msprobe_core.plugin.ScriptingFramework`."""
    call = with_epsilon(call)
    site = call.site
    if site.kind is not SiteKind.API:
        plan = plan_of(call)
        return _script(call, f"torch.nn.{plan.name}", _module_body(call, plan))
    is_drawn = (site.prefix, site.path) in _DRAWN
    if not is_drawn and (reason := why_not_replayed(site)) is not None:
        raise ReplayError(f"{site.prefix}.{site.path} is not replayed: {reason}")
    function, formula = _name_of(site), _formula_of(call)
    if site.prefix == "Tensor" and site.path in CASTS and call.args:
        # The dtype that it casts to must be an argument, to be widened.
        dtype = Argument("torch.dtype", str(CASTS[site.path]))
        text = call_text(msgspec.structs.replace(call, args=[call.args[0], dtype], kwargs={}), "torch.Tensor.to", _text)
        body = f"return {text}"
    elif site.path == "__setitem__":  # it returns nothing; its result is what it wrote to
        body = f'x["0"] = x["0"].clone()\n{call_text(call, function, _text)}\nreturn x["0"]'
    else:
        called = call_text(call, function, _text, ".clone()" if may_write(call) else "")
        body = f"return {called}"
        if formula is not None:
            # An independent formula is exact; the formula of what the host does not have is also what it computes.
            wide = "wide" if _is_simple(call, formula, called) else "wide is widest"
            is_formula = wide if call.by_reference else 'device == "cpu"'
            computed = f"return {formula.called(called)}"
            # A step of an optimizer itself returns nothing.
            body = computed if site.path in OPTIMIZER_STEPS else f"if {is_formula}:\n    {computed}\n{body}"
    if is_drawn:  # the device of a result without arguments is the one that is asked for
        body = f"torch.manual_seed(0)\nwith torch.device(device):\n    {body}"
    return _script(call, function, body, formula)


def _module_body(call: ReplayCall, plan: Plan) -> str:
    copy = ".clone()" if plan.writes else ""
    given = 'name.removeprefix("parameter "): value for name, value in x.items() if name.startswith("parameter ")'
    loaded = f"module.load_state_dict({{{given}}}, assign=True)\n" if call.parameters else ""
    made = f'with torch.device("meta"):\n    module = {plan.text}\n' if loaded else f"module = {plan.text}\n"
    return f"{made}{loaded}return {call_text(call, 'module', _text, copy)}"


def _script(call: ReplayCall, function: str, body: str, formula: Formula | None = None) -> CallScript:
    """Return the script of a call.

    Args:
        call: The call.
        function: Expression of what is called.
        body: Lines of the function that calls it.
        formula: The formula by which it is replayed.
    """
    site = call.site
    is_backward = site.phase is Phase.BACKWARD
    leaves = {literal(path): literal(name) for path, name in script_leaves(call).items()}
    text_of_leaves = ", ".join(f"{path}: {name}" for path, name in leaves.items())
    constants = [f"LEAVES = {{{text_of_leaves}}}"] if is_backward else []
    constants += [_NPU] if site.prefix == "NPU" else []
    return CallScript(
        version=f"PyTorch {torch.__version__}",
        imports="\n    ".join(["import torch", *([] if formula is None else formula.imports)]),
        function=function,
        constants="\n".join(constants),
        call="\n    ".join(("def call(x, wide, device):", *body.splitlines())),
        parts=_parts(call, is_simple=_is_simple(call, formula, body)),
        dtypes={value.dtype: str(dtype_of(value)) for value in script_tensors(call).values()},
        formula="" if formula is None else formula.source,
        device='"npu" if torch_npu else "cpu"' if site.prefix == "NPU" else '"cpu"',
    )


def _is_simple(call: ReplayCall, formula: Formula | None, code: str) -> bool:
    """Whether a script needs to run and to judge floating-point results only; ``code`` is that of the call."""
    if formula is None or not formula.is_of_floats or "wide(" in code:
        return False
    return call.site.phase is not Phase.BACKWARD or call.gradients.keys() == {"0"}


def _parts(call: ReplayCall, *, is_simple: bool) -> tuple[str, ...]:
    is_backward = call.site.phase is Phase.BACKWARD
    if is_simple:
        return (source_of(parts.backward_of_floats if is_backward else parts.forward_of_floats, "run"),)
    run = source_of(parts.backward if is_backward else parts.forward, "run")
    return (*map(source_of, (parts.widest, parts.array)), run)


_NPU = """\
try:
    import torch_npu
except Exception as error:
    torch_npu = print(f"only --device cpu, which computes a formula: {error}")"""


def _name_of(site: Site) -> str:
    """Return the expression of a function, whose name is in the table of replays."""
    name = site.path
    for stem in _SUBMODULES:
        if site.prefix == "Torch" and name.startswith(stem):
            name = f"{stem[:-1]}.{name.removeprefix(stem)}"
    return f"{_NAMESPACES[site.prefix]}.{name}"


def _formula_of(call: ReplayCall) -> Formula | None:
    """Return the formula by which a function is replayed; ``None`` if PyTorch's own function is called."""
    if call.site.path.startswith("_foreach_"):
        return None
    find = find_reference if call.by_reference else find_function
    function = find(call.site.prefix, call.site.path)
    module = getattr(function, "__module__", None) or ""
    return formula_for(call, function) if function is not None and module.startswith("msprobe") else None


def _text(value: Argument) -> str | None:
    made = special_of(value, torch.device("cpu"))
    if made is NOT_SPECIAL:
        return None
    if isinstance(made, torch.device):
        return "device"
    if isinstance(made, torch.Size):
        return f"torch.Size({literal(tuple(made))})"
    return f"wide({made})" if isinstance(made, torch.dtype) else str(made)
