"""Write a recorded call as the source code of a script that needs MindSpore only."""

from __future__ import annotations

import mindspore as ms
import msgspec
from mindspore import Tensor

from msprobe.mindspore import _script_parts as parts
from msprobe.mindspore._apis import find_places
from msprobe.mindspore._replay import casts, dtype_of, why_not_replayed
from msprobe_core.interception import call_text, literal, may_write, script_leaves, script_tensors, source_of
from msprobe_core.plugin import Argument, CallScript, Phase, ReplayCall, ReplayError, RiskLevel, Site, SiteKind

_DRAWN = """
    dropout dropout1d dropout2d dropout3d dropout_ext alpha_dropout feature_alpha_dropout rand randn rand_like
    randn_like uniform_ normal_ exponential_ bernoulli_
"""
"""Random functions that scripts call; their results are as large as their arguments say."""


def script_of(call: ReplayCall) -> CallScript:
    """See `msprobe_core.plugin.ScriptingFramework`."""
    site = call.site
    if site.kind is not SiteKind.API:
        raise ReplayError("it is a Cell; the APIs inside it have scripts")
    is_drawn = site.path in _DRAWN.split() and site.prefix != "Primitive"
    if not is_drawn and (reason := why_not_replayed(site)) is not None:
        raise ReplayError(f"{site.prefix}.{site.path} is not replayed: {reason}")
    function = _name_of(site)
    if casts(site.prefix, site.path) and call.args:
        # The dtype that it casts to must be an argument, to be widened.
        dtype = Argument("mindspore.dtype", {"float": "Float32", "half": "Float16", "bfloat16": "BFloat16"}[site.path])
        text = call_text(msgspec.structs.replace(call, args=[call.args[0], dtype], kwargs={}), "ms.ops.cast", _text)
        body = f"return {text}"
    elif site.path == "__setitem__":  # its result is what it wrote to
        body = f'x["0"] = x["0"] * 1\n{call_text(call, function, _text)}\nreturn x["0"]'
    else:
        body = f"return {call_text(call, function, _text, ' * 1' if may_write(call) else '')}"
    if is_drawn:
        body = f"ms.set_seed(0)\n{body}"
    is_backward = site.phase is Phase.BACKWARD
    leaves = ", ".join(f"{literal(path)}: {literal(name)}" for path, name in script_leaves(call).items())
    functions = [source_of(parts.widest), source_of(parts.backward, "run")] if is_backward else [
        source_of(parts.widest), source_of(parts.array), source_of(parts.forward, "run"),
    ]  # fmt: skip
    return CallScript(
        version=f"MindSpore {ms.__version__}",
        imports="import mindspore as ms",
        function=function.replace("ms.", "mindspore.", 1),
        constants=f"LEAVES = {{{leaves}}}" if is_backward else "",
        call="\n    ".join(("def call(x, wide):", *body.splitlines())),
        parts=tuple(functions),
        dtypes={value.dtype: _dtype_text(value.dtype) for value in script_tensors(call).values()},
    )


def _name_of(site: Site) -> str:
    """Return the expression of a function, whose name is in the table of replays."""
    for place in find_places(RiskLevel.ALL):
        if (place.prefix, place.name) == (site.prefix, site.path):
            owner = "mindspore.Tensor" if place.owner is Tensor else place.owner.__name__
            return f"{owner}.{place.attribute}".replace("mindspore.", "ms.", 1)
    raise ReplayError(f"{site.prefix}.{site.path} has no public name")


def _text(value: Argument) -> str | None:
    return f"wide({_dtype_text(str(value.value))})" if value.type == "mindspore.dtype" else None


def _dtype_text(name: str) -> str:
    dtype = str(dtype_of(name)).lower()
    return "ms.bool_" if dtype == "bool" else f"ms.{dtype}"
