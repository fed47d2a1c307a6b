"""The grammar of entry names: the only module that builds or takes apart such strings.

::

    api     := PREFIX "." NAME "." N "." ("forward" | "backward")
    module  := ("Module" | "Cell") "." [DOTTED_PATH "."] CLASS "." ("forward" | "backward") "." N
    pgrad   := ("Module" | "Cell") "." [DOTTED_PATH "."] CLASS ".parameters_grad." N
    saved   := NAME "." N ".debug"
    row     := entry "." ("input" | "output" | "parameters") "." PATH    |   pgrad "." PARAMETER   |   saved ["." PATH]

The root module has an empty path. A model given as one of a list has its position as the first part of the path.
``N`` counts the calls of one site within a step, from 0.

A backward pass that comes to a call again, through a graph that was retained, has ``-pass1``, ``-pass2``, … behind NAME
or CLASS of its backward entries: ``Functional.linear-pass1.0.backward``, ``Module.head.Linear-pass1.backward.0``. The
first pass has no such ending. It stands there, and not at the end or at ``N``, because every parser of such names, also
of other tools, finds phase and number by their places; because ``N`` stays that of the forward, and whoever counts the
calls of ``linear`` does not count these; and because no name in a program has a hyphen, while names of files may.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from msprobe_core.errors import EntryNameError
from msprobe_core.model import Phase, Role, Site, SiteKind

MODULE_PREFIXES = frozenset({"Module", "Cell"})

API_PREFIXES = frozenset(
    {
        "Aten", "AtenBackward", "DTensor", "DTensorBackward", "Distributed", "Functional", "Jit", "MindSpeed", "Mint",
        "MintDistributed", "MintFunctional", "NPU", "Primitive", "Tensor", "Torch", "Triton", "VF",
    }
)  # fmt: skip
"""Prefixes that frameworks use. Other prefixes are valid too: users register APIs of their own."""

OPTIMIZER = "optimizer"
CLIP_GRAD = "clip_grad"
"""What calls outside of every module may belong to: stands in the place of the enclosing call."""

CONTRIBUTION = "contribution"
"""After a parameter's name and a dot, which no name has: what was added to its gradient just now."""

_CALL_PHASES = {Phase.FORWARD.value: Phase.FORWARD, Phase.BACKWARD.value: Phase.BACKWARD}
_MODULE_PHASES = {*_CALL_PHASES, Phase.PARAMETERS_GRAD.value}


def format_entry(site: Site) -> str:
    """Return the entry name of ``site``."""
    stem = call_stem(site)
    if site.backward_pass:
        stem = stem_in_pass(stem, site.backward_pass)
    if site.kind is SiteKind.API:
        return f"{stem}.{site.index}.{site.phase.value}"
    return f"{stem}.{site.phase.value}.{site.index}"


def call_stem(site: Site) -> str:
    """Return the part of a site's entry names that all its calls share, for example ``Functional.linear``."""
    if site.kind is SiteKind.API:
        return f"{site.prefix}.{site.path}"
    return module_stem(site.prefix, site.path, site.type_name)


def operator_prefix(prefix: str, *, is_in_backward: bool) -> str:
    """Return the prefix of an operator that runs below the APIs: those of backward passes are counted apart.

    So ``Aten.mm.0.forward`` is the first of the forwards, and ``AtenBackward.mm.0.forward`` the first that gradients
    are computed with: one operator more in the forward does not change the numbers of all that follow in the backward.
    Neither is the backward of the other; each is a call with arguments and results.
    """
    return f"{prefix}{_BACKWARD_OPERATOR}" if is_in_backward else prefix


_BACKWARD_OPERATOR = "Backward"


def stem_in_pass(stem: str, backward_pass: int) -> str:
    """Return what stands in the place of a stem in backward entries of a later pass.

    Args:
        stem: Of an API or a module.
        backward_pass: From 1.
    """
    return f"{stem}{_MARK}{backward_pass}"


_MARK = "-pass"

IN_LATER_PASS = rf"{_MARK}[1-9][0-9]*"
"""What a later pass has behind its stem, for text that is taken apart by the column."""


def _without_pass(name: str, phase: Phase) -> tuple[str, int]:
    """Return name of an API or class of a module, and the backward pass that it says."""
    stem, mark, number = name.rpartition(_MARK)
    if phase is not Phase.BACKWARD or not stem or not mark or not is_index(number) or number == "0":
        return name, 0
    return stem, int(number)


def is_index(text: str) -> bool:
    """Whether a text is a number as entry names have them."""
    # "007" and "٣" are digits to Python, but no entry is ever written so, and they would not format back.
    return text.isascii() and text.isdigit() and (len(text) == 1 or text[0] != "0")


def module_stem(prefix: str, path: str, type_name: str) -> str:
    """Return the part of a module's entry names that all its calls share, for example ``Module.head.Linear``."""
    return f"{prefix}.{path}.{type_name}" if path else f"{prefix}.{type_name}"


_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Names under which a wrapper holds what it wraps; ``module`` is one too where it is the first part of a path."""


def without_wrappers(path: str) -> str:
    """Return a module's or a parameter's path as it is without FSDP, DDP, checkpointing, compiling and PEFT around it.

    ``_fsdp_wrapped_module.model.layers.0._checkpoint_wrapped_module.mlp`` is ``model.layers.0.mlp``, and so is
    ``base_model.model.model.layers.0.mlp``.
    """
    parts = [part for part in path.split(".") if part not in _WRAPPERS]
    while parts[:1] == ["module"]:
        del parts[0]
    if parts[:2] == ["base_model", "model"]:
        del parts[:2]
    return ".".join(parts)


def class_without_wrapper(type_name: str) -> str:
    """Return the class of a module before FSDP2 gave it one of its own: ``FSDPQwen2MLP`` is ``Qwen2MLP``."""
    return type_name.removeprefix("FSDP") or type_name


def parse_entry(name: str) -> Site:
    """Return the site that ``name`` denotes; ``format_entry`` gives ``name`` back.

    Raises:
        EntryNameError: ``name`` does not follow the grammar.
    """
    parts = name.split(".")
    if parts[0] in MODULE_PREFIXES:
        return _parse_module(name, parts)
    return _parse_api(name, parts)


def _parse_module(name: str, parts: list[str]) -> Site:
    if len(parts) < 4:
        raise _not_an_entry(name)
    prefix, *path, type_name, phase, index = parts
    if phase not in _MODULE_PHASES or not type_name:
        raise _not_an_entry(name)
    type_name, backward_pass = _without_pass(type_name, Phase(phase))
    return Site(
        kind=SiteKind.MODULE,
        prefix=prefix,
        path=".".join(path),
        type_name=type_name,
        phase=Phase(phase),
        index=_index(name, index),
        backward_pass=backward_pass,
    )


def _parse_api(name: str, parts: list[str]) -> Site:
    if len(parts) < 4 or parts[-1] not in _CALL_PHASES or not parts[0] or not all(parts[1:-2]):
        raise _not_an_entry(name)
    prefix, *path, index, phase = parts
    api, backward_pass = _without_pass(".".join(path), _CALL_PHASES[phase])
    return Site(
        kind=SiteKind.API,
        prefix=prefix,
        path=api,
        type_name="",
        phase=_CALL_PHASES[phase],
        index=_index(name, index),
        backward_pass=backward_pass,
    )


def _index(name: str, text: str) -> int:
    if not is_index(text):
        raise _not_an_entry(name)
    return int(text)


def _not_an_entry(name: str) -> EntryNameError:
    return EntryNameError(
        f"{name!r} is not an entry name; expected for example 'Functional.linear.0.forward' or "
        "'Module.layers.0.mlp.MLP.forward.0'"
    )


_ROLE_TEXT = {role: role.value for role in Role}


def row_name(entry: str, role: Role, path: str) -> str:
    """Return the name of one value of an entry, for example ``Torch.cat.0.forward.input.0.1``.

    Args:
        entry: Entry name.
        role: Parameter gradients have no word of their own: their entry name says it already.
        path: Position in the call: ``0``, ``1.2``, ``mask``; for parameters their name.
    """
    if role is Role.PARAMETERS_GRAD:
        return f"{entry}.{path}"
    return f"{entry}.{_ROLE_TEXT[role]}.{path}"


def tensor_file_stem(entry: str, category: str, path: str) -> str:
    """Return the file name, without suffix, under which a tensor is kept.

    Args:
        entry: Entry name.
        category: ``input``, ``kwargs``, ``output`` or ``parameters``; empty for parameter gradients and saved values.
        path: Position in the call, as in `row_name`; empty for a saved value that is one tensor.
    """
    return ".".join(part for part in (entry, category, path) if part)


SAVED_GRADIENT = "_grad"
"""What the gradient of a saved value is called behind the name of the value."""


def saved_entry(name: str, index: int) -> str:
    """Return the entry name of the value number ``index``, from 0, that the program has saved under ``name``."""
    return f"{name}.{index}.{Phase.DEBUG.value}"


def is_saved(entry: str) -> bool:
    """Whether an entry is a value that the program has saved itself."""
    return entry.endswith(f".{Phase.DEBUG.value}")


def is_saved_gradient(entry: str) -> bool:
    """Whether an entry is that of a saved value's gradient: ``{name}_grad.{n}.debug``."""
    return is_saved(entry) and entry.rsplit(".", 2)[0].endswith(SAVED_GRADIENT)


def path_within(path: str) -> str:
    """Return the position inside a single argument, given its position among the arguments: ``0.k.1`` is ``k.1``."""
    return path.partition(".")[2]


def row_of_file(file_name: str) -> str:
    """Return the row name that a tensor's file name stands for: the file name without its suffix."""
    return file_name.rpartition(".")[0] or file_name


def numbered_gradients(entry: str) -> str:
    """Return the name of an entry of parameter gradients with its number, which older tools leave out."""
    return f"{entry}.0" if entry.endswith(f".{Phase.PARAMETERS_GRAD.value}") else entry


def forward_of(entry: str) -> str | None:
    """Return the name of the forward entry of the same call; ``None`` if ``entry`` is outside of the grammar."""
    try:
        site = parse_entry(entry)
    except EntryNameError:
        return None
    return format_entry(msgspec.structs.replace(site, phase=Phase.FORWARD, backward_pass=0))


def backward_of_parameters(entry: str) -> str | None:
    """Return the name of the module's backward entry beside which its parameters' gradients ``entry`` arise.

    ``None`` if ``entry`` is not such an entry.
    """
    try:
        site = parse_entry(entry)
    except EntryNameError:
        return None
    if site.phase is not Phase.PARAMETERS_GRAD:
        return None
    return format_entry(msgspec.structs.replace(site, phase=Phase.BACKWARD))


def split_module(stem: str) -> tuple[str, str, str]:
    """Return prefix, path and class of a module's stem: ``Module.head.Linear`` is ``Module``, ``head``, ``Linear``."""
    prefix, _, rest = stem.partition(".")
    path, _, type_name = rest.rpartition(".")
    return prefix, path, type_name


def split_api(stem: str) -> tuple[str, str]:
    """Return prefix and name of an API's stem: ``Functional.linear`` is ``Functional``, ``linear``."""
    prefix, _, name = stem.partition(".")
    return prefix, name


def is_module(name: str) -> bool:
    """Whether a stem or an entry is that of a module."""
    return name.partition(".")[0] in MODULE_PREFIXES


def stem_of(entry: str) -> str | None:
    """Return an entry's name without phase and index; ``None`` if it is outside of the grammar."""
    try:
        site = parse_entry(entry)
    except EntryNameError:
        return None
    return call_stem(site)


def is_backward(entry: str) -> bool:
    """Whether an entry is that of a backward, of an API or a module."""
    return entry.endswith(_BACKWARD) or entry.rpartition(".")[0].endswith(_BACKWARD)


_BACKWARD = f".{Phase.BACKWARD.value}"


@dataclass(frozen=True)
class ApiCall:
    """An API's entry, taken apart.

    Attributes:
        family: Its stem, such as ``Distributed.all_reduce``.
        index: Number of the call, as text.
        phase: ``forward`` or ``backward``.
    """

    family: str
    index: str
    phase: str


_API_ENTRY = re.compile(r"(\w+\..+)\.(\d+)\.(forward|backward)", re.ASCII)


def api_call(entry: str) -> ApiCall | None:
    """Take an API's entry apart; ``None`` if it is not that of an API."""
    match = _API_ENTRY.fullmatch(entry)
    return None if match is None or is_module(entry) else ApiCall(*match.groups())


def function_of(entry: str) -> str:
    """Return the part after the prefix: ``all_reduce`` of ``Distributed.all_reduce.0.forward``; "" if there is none."""
    return entry.partition(".")[2].partition(".")[0]


def ending_of(entry: str) -> str:
    """Return the last two parts, phase and index: ``forward.0`` of a module's entry."""
    return ".".join(entry.rsplit(".", 2)[-2:])


def with_number_in_path(entry: str, position: int, number: int) -> str:
    """Return a module's entry with another number as the part of its path at ``position``, from 0."""
    parts = entry.split(".")
    parts[position + 1] = str(number)  # after the prefix
    return ".".join(parts)


def entry_without_wrappers(entry: str) -> str:
    """Return a module's entry with the path and the class that it has without wrappers; other entries as they are."""
    parts = entry.split(".")
    if parts[0] not in MODULE_PREFIXES or len(parts) < 4:
        return entry
    prefix, *path, type_name, phase, index = parts
    stem = module_stem(prefix, without_wrappers(".".join(path)), class_without_wrapper(type_name))
    return f"{stem}.{phase}.{index}"


# --- patterns, for columns of names -----------------------------------------------------------------------------------

API_END = r"\.\d+\.(?:forward|backward)$"
"""What an API's entry has after its stem."""

API_CALL = rf"^([^.]+\..+?)(?:{IN_LATER_PASS})?\.([0-9]+)\.(?:forward|backward)$"
"""Stem and index of an API's entry; not for modules."""

API_NAME = r"^[^.]+\.(.+)\.\d+\.(?:forward|backward)$"
"""What an API's entry has between prefix and index."""

API_OF_FORWARD = r"^[^.]+\.(.+)\.\d+\.forward$"
"""The same, of forwards only."""

FUNCTION_OF_FORWARD = r"^[^.]+\.(?:.+\.)?([^.]+)\.\d+\.forward$"
"""The last part of that."""

IN_PLACE_FORWARD = r"\.(?:[^.]*[^_.]_|__setitem__|__i[a-z]+__)\.\d+\.forward$"
"""Entries of APIs that write to what they are given: ``add_``, ``__iadd__``, ``__setitem__``."""

MODULE = r"^(?:Module|Cell)\."
"""Entries of modules."""

MODULE_CALL = rf"^((?:Module|Cell)\..+?)(?:{IN_LATER_PASS})?\.(?:forward|backward|parameters_grad)\.([0-9]+)$"
"""Stem and index of a module's entry."""

OUTERMOST_MODULE = rf"{MODULE}[^.]+\.(?:forward|backward|parameters_grad)(?:\.\d+)?$"
"""Entries of models themselves, whose stem has a class and no path."""

OUTERMOST_FORWARD = rf"{MODULE}[^.]+\.forward\.\d+$"
"""Forwards of models themselves."""

CALLED_MODULE = r"^(.+)\.forward(?:\.\d+)?$"
"""Stem of a module's forward."""

OWNER_OF_GRADIENTS = r"^(.+)\.parameters_grad(?:\.\d+)?$"
"""Stem of the module that gradients of parameters belong to."""

PASS_OF_BACKWARD = rf"({IN_LATER_PASS})\.(?:[0-9]+\.backward|backward\.[0-9]+)$"
"""Mark of the backward pass, where it is not the first."""

COMMUNICATION = r"^(?:Distributed|MintDistributed)\."
"""Entries of functions of communication."""

COMMUNICATION_FORWARD = rf"{COMMUNICATION}.+\.forward$"
"""Forwards of them."""

DATA_PARALLEL = r"\.DistributedDataParallel\.(?:forward|backward|parameters_grad)\."
"""Entries of a model that data parallelism is wrapped around."""

INPUT_PLACE = r"\.input\.(.+)$"
"""Place of a row among the inputs of its call."""

VALUE_PLACE = r"\.(?:input|output)\.(.+)$"
"""Place of a row among the inputs or outputs of its call."""

OUT_ARGUMENT = r"\.input\.out(?:\.|$)"
"""Rows of the argument ``out``."""

DIMENSION_ARGUMENT = r"\.input\.(?:dims?|axis|axes)\d?(?:\.|$)"
"""Rows of arguments that name dimensions."""

ARGUMENT = r"^(.*\.forward(?:\.\d+)?\.input\.[^.]+)"
"""A row of a forward's inputs as far as its argument: without the places inside of it."""

PARAMETER_ROW = r"^(.*)\.(?:forward\.\d+\.parameters|parameters_grad\.\d+)\.(.*)$"
"""Module's stem and parameter of a row of a parameter or of its gradient."""

PATH_OF_PARAMETER_ROW = r"^(?:Module|Cell)\.(.*)\.[^.]+\.(?:forward\.\d+\.parameters|parameters_grad\.\d+)\.(.*)$"
"""The same, with the module's path only."""

CONTRIBUTION_ROW = rf"\.parameters_grad\.\d+\..+\.{CONTRIBUTION}(\.\d+)?$"
"""Rows of what is added to a parameter's gradient."""

ROLE_IN_ROW = r"\.(?:input|kwargs|output|parameters|parameters_grad|debug)(?:\.|$)"
"""What a row's name has after its entry."""


def forward_of_any(apis: Iterable[str]) -> str:
    """Return the pattern of forwards of APIs with one of these names."""
    return rf"\.(?:{'|'.join(map(re.escape, apis))})\.\d+\.forward$"


def backward_of_any(apis: Iterable[str]) -> str:
    """Return the pattern of backwards of APIs with one of these names, or of modules of one of these classes."""
    either = "|".join(map(re.escape, apis))
    return rf"\.(?:{either})(?:{IN_LATER_PASS})?\.(?:\d+\.backward|backward\.\d+)$"
