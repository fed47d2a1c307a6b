"""The grammar of entry names. No other module builds or parses such strings.

::

    api     := PREFIX "." NAME "." N "." ("forward" | "backward")
    module  := ("Module" | "Cell") "." [DOTTED_PATH "."] CLASS "." ("forward" | "backward") "." N
    pgrad   := ("Module" | "Cell") "." [DOTTED_PATH "."] CLASS ".parameters_grad." N
    saved   := NAME "." N ".debug"
    row     := entry "." ("input" | "output" | "parameters") "." PATH    |   pgrad "." PARAMETER   |   saved ["." PATH]

The root module has an empty path. The path of a model in a list begins with its position. ``N`` counts the calls of one
API or module within a step, from 0.

If a backward pass reaches a call again, through a retained graph, its entries have ``-pass1``, ``-pass2``, … after NAME
or CLASS: ``Functional.linear-pass1.0.backward``, ``Module.head.Linear-pass1.backward.0``. The first pass has no suffix.
The suffix is there, and not at the end or at ``N``, for three reasons. Every parser of such names, also in other tools,
finds phase and number by their positions. ``N`` stays that of the forward, and a count of the calls of ``linear`` does
not include these. And identifiers in a program have no hyphen, while file names may.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
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
"""Prefixes that frameworks use. Other prefixes are valid too: users register their own APIs."""

OPTIMIZER = "optimizer"
CLIP_GRAD = "clip_grad"
"""Owners of calls outside of every module, used instead of the enclosing call."""

CONTRIBUTION = "contribution"
"""Suffix, after a parameter's name and a dot, for the amount just added to its gradient. No such name has a dot."""

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
    """Return the part that all entry names of a site's calls have in common, for example ``Functional.linear``."""
    if site.kind is SiteKind.API:
        return f"{site.prefix}.{site.path}"
    return module_stem(site.prefix, site.path, site.type_name)


def operator_prefix(prefix: str, *, is_in_backward: bool) -> str:
    """Return the prefix of an operator that runs below the APIs. Operators of backward passes are counted separately.

    ``Aten.mm.0.forward`` is the first in a forward, and ``AtenBackward.mm.0.forward`` the first in a gradient
    computation. So an additional operator in the forward does not change the numbers in the backward. Neither is the
    backward of the other; each is a call with arguments and results.
    """
    return f"{prefix}{_BACKWARD_OPERATOR}" if is_in_backward else prefix


_BACKWARD_OPERATOR = "Backward"


def stem_in_pass(stem: str, backward_pass: int) -> str:
    """Return the stem of backward entries of a later pass.

    Args:
        stem: Stem of an API or a module.
        backward_pass: From 1.
    """
    return f"{stem}{_MARK}{backward_pass}"


_MARK = "-pass"

IN_LATER_PASS = rf"{_MARK}[1-9][0-9]*"
"""Regular expression for the suffix of the stem in a later pass, for parsing whole columns."""


def _without_pass(name: str, phase: Phase) -> tuple[str, int]:
    """Return name of an API or class of a module, and the backward pass in its suffix."""
    stem, mark, number = name.rpartition(_MARK)
    if phase is not Phase.BACKWARD or not stem or not mark or not is_index(number) or number == "0":
        return name, 0
    return stem, int(number)


def is_index(text: str) -> bool:
    """Whether a text is a number as written in entry names."""
    # "007" and "٣" are digits to Python, but no entry is written this way, and they would not round-trip.
    return text.isascii() and text.isdigit() and (len(text) == 1 or text[0] != "0")


def module_stem(prefix: str, path: str, type_name: str) -> str:
    """Return the part that all entry names of a module have in common, for example ``Module.head.Linear``."""
    return f"{prefix}.{path}.{type_name}" if path else f"{prefix}.{type_name}"


_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Attributes under which a wrapper holds the wrapped module; so is ``module`` as the first part of a path."""


def without_wrappers(path: str) -> str:
    """Return the path of a module or parameter without FSDP, DDP, checkpointing, compiling and PEFT wrappers.

    ``_fsdp_wrapped_module.model.layers.0._checkpoint_wrapped_module.mlp`` becomes ``model.layers.0.mlp``, and so does
    ``base_model.model.model.layers.0.mlp``.
    """
    parts = [part for part in path.split(".") if part not in _WRAPPERS]
    while parts[:1] == ["module"]:
        del parts[0]
    if parts[:2] == ["base_model", "model"]:
        del parts[:2]
    return ".".join(parts)


def class_without_wrapper(type_name: str) -> str:
    """Return the class that a module had before FSDP2 replaced it: ``FSDPQwen2MLP`` becomes ``Qwen2MLP``."""
    return type_name.removeprefix("FSDP") or type_name


def parse_entry(name: str) -> Site:
    """Return the site that ``name`` denotes; the inverse of ``format_entry``.

    Raises:
        EntryNameError: ``name`` does not follow the grammar.
    """
    parts = name.split(".")
    if parts[0] in MODULE_PREFIXES:
        return _parse_module(name, parts)
    return _parse_api(name, parts)


def calls_in(entries: Iterable[str]) -> Iterator[tuple[str, Site]]:
    """Yield the entries that are calls, forward or backward, each with its site; names of another form are none."""
    for entry in entries:
        with suppress(EntryNameError):
            site = parse_entry(entry)
            if site.phase in (Phase.FORWARD, Phase.BACKWARD):
                yield entry, site


def is_listed(entry: str, white_list: Sequence[str], black_list: Sequence[str]) -> bool:
    """Whether a name has a text of the white list in it, or that is empty, and none of the black list."""
    if any(word in entry for word in black_list):
        return False
    return not white_list or any(word in entry for word in white_list)


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
        role: Role of the value. Parameter gradients have no word for it in the row name, because their entry name has
            one.
        path: Position in the call: ``0``, ``1.2``, ``mask``; for parameters their name.
    """
    if role is Role.PARAMETERS_GRAD:
        return f"{entry}.{path}"
    return f"{entry}.{_ROLE_TEXT[role]}.{path}"


def tensor_file_stem(entry: str, category: str, path: str) -> str:
    """Return the file name, without suffix, under which a tensor is stored.

    Args:
        entry: Entry name.
        category: ``input``, ``kwargs``, ``output`` or ``parameters``; empty for parameter gradients and saved values.
        path: Position in the call, as in `row_name`; empty for a saved value that is one tensor.
    """
    return ".".join(part for part in (entry, category, path) if part)


SAVED_GRADIENT = "_grad"
"""Suffix of the name of a saved value for its gradient."""


def saved_entry(name: str, index: int) -> str:
    """Return the entry name of the 0-based ``index``-th value that the program saved as ``name``."""
    return f"{name}.{index}.{Phase.DEBUG.value}"


def is_saved(entry: str) -> bool:
    """Whether an entry is a value that the program saved itself."""
    return entry.endswith(f".{Phase.DEBUG.value}")


def is_saved_gradient(entry: str) -> bool:
    """Whether an entry is the gradient of a saved value: ``{name}_grad.{n}.debug``."""
    return is_saved(entry) and entry.rsplit(".", 2)[0].endswith(SAVED_GRADIENT)


def path_within(path: str) -> str:
    """Return the position inside a single argument, given that among all arguments: ``0.k.1`` becomes ``k.1``."""
    return path.partition(".")[2]


def row_of_file(file_name: str) -> str:
    """Return the row name for a tensor's file name: the file name without its suffix."""
    return file_name.rpartition(".")[0] or file_name


def numbered_gradients(entry: str) -> str:
    """Return the name of an entry of parameter gradients with its number, which older tools omit."""
    return f"{entry}.0" if entry.endswith(f".{Phase.PARAMETERS_GRAD.value}") else entry


def forward_of(entry: str) -> str | None:
    """Return the name of the forward entry of the same call; ``None`` if ``entry`` is outside of the grammar."""
    try:
        site = parse_entry(entry)
    except EntryNameError:
        return None
    return format_entry(msgspec.structs.replace(site, phase=Phase.FORWARD, backward_pass=0))


def call_of(entry: str) -> str:
    """Return the name of a call without its phase: ``Functional.linear.0``, or ``Module.fc.Linear.0`` of a module."""
    *stem, last = entry.split(".")
    return ".".join((*stem[:-1], last) if last.isdecimal() else stem)


def backward_of_parameters(entry: str) -> str | None:
    """Return the name of the module's backward entry during which its parameters' gradients ``entry`` arise.

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
    """Return prefix, path and class of a module's stem: ``Module``, ``head``, ``Linear`` for ``Module.head.Linear``."""
    prefix, _, rest = stem.partition(".")
    path, _, type_name = rest.rpartition(".")
    return prefix, path, type_name


def split_api(stem: str) -> tuple[str, str]:
    """Return prefix and name of an API's stem: ``Functional``, ``linear`` for ``Functional.linear``."""
    prefix, _, name = stem.partition(".")
    return prefix, name


def is_module(name: str) -> bool:
    """Whether a stem or an entry belongs to a module."""
    return name.partition(".")[0] in MODULE_PREFIXES


def stem_of(entry: str) -> str | None:
    """Return an entry's name without phase and index; ``None`` if it is outside of the grammar."""
    try:
        site = parse_entry(entry)
    except EntryNameError:
        return None
    return call_stem(site)


def is_backward(entry: str) -> bool:
    """Whether an entry is a backward of an API or a module."""
    return entry.endswith(_BACKWARD) or entry.rpartition(".")[0].endswith(_BACKWARD)


_BACKWARD = f".{Phase.BACKWARD.value}"


@dataclass(frozen=True)
class ApiCall:
    """The parts of an API's entry name.

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
    """Parse an API's entry name; ``None`` if it does not belong to an API."""
    match = _API_ENTRY.fullmatch(entry)
    return None if match is None or is_module(entry) else ApiCall(*match.groups())


def function_of(entry: str) -> str:
    """Return the part after the prefix: ``all_reduce`` of ``Distributed.all_reduce.0.forward``; "" if there is none."""
    return entry.partition(".")[2].partition(".")[0]


def ending_of(entry: str) -> str:
    """Return the last two parts, phase and index: ``forward.0`` of a module's entry."""
    return ".".join(entry.rsplit(".", 2)[-2:])


def with_number_in_path(entry: str, position: int, number: int) -> str:
    """Return a module's entry with ``number`` as the part of its path at ``position``, from 0."""
    parts = entry.split(".")
    parts[position + 1] = str(number)  # after the prefix
    return ".".join(parts)


def entry_without_wrappers(entry: str) -> str:
    """Return a module's entry with path and class as without wrappers; other entries unchanged."""
    parts = entry.split(".")
    if parts[0] not in MODULE_PREFIXES or len(parts) < 4:
        return entry
    prefix, *path, type_name, phase, index = parts
    stem = module_stem(prefix, without_wrappers(".".join(path)), class_without_wrapper(type_name))
    return f"{stem}.{phase}.{index}"


# --- patterns, for columns of names -----------------------------------------------------------------------------------

API_END = r"\.\d+\.(?:forward|backward)$"
"""The part of an API's entry after its stem."""

API_CALL = rf"^([^.]+\..+?)(?:{IN_LATER_PASS})?\.([0-9]+)\.(?:forward|backward)$"
"""Stem and index of an API's entry; not for modules."""

API_BACKWARD = r"\.\d+\.backward$"
"""Backwards of APIs; not of modules."""

API_NAME = r"^[^.]+\.(.+)\.\d+\.(?:forward|backward)$"
"""The part of an API's entry between prefix and index."""

API_OF_FORWARD = r"^[^.]+\.(.+)\.\d+\.forward$"
"""The same, for forwards only."""

FUNCTION_OF_FORWARD = r"^[^.]+\.(?:.+\.)?([^.]+)\.\d+\.forward$"
"""The last part of this name."""

IN_PLACE_FORWARD = r"\.(?:[^.]*[^_.]_|__setitem__|__i[a-z]+__)\.\d+\.forward$"
"""Entries of APIs that write to their arguments: ``add_``, ``__iadd__``, ``__setitem__``."""

MODULE = r"^(?:Module|Cell)\."
"""Entries of modules."""

MODULE_CALL = rf"^((?:Module|Cell)\..+?)(?:{IN_LATER_PASS})?\.(?:forward|backward|parameters_grad)\.([0-9]+)$"
"""Stem and index of a module's entry."""

BACKWARD_OPERATOR = rf"^\w+{_BACKWARD_OPERATOR}\."
"""Entries of operators that a backward pass calls."""

OUTERMOST_MODULE = rf"{MODULE}[^.]+\.(?:forward|backward|parameters_grad)(?:\.\d+)?$"
"""Entries of whole models, whose stem has a class and no path."""

OUTERMOST_FORWARD = rf"{MODULE}[^.]+\.forward\.\d+$"
"""Forwards of whole models."""

CALLED_MODULE = r"^(.+)\.forward(?:\.\d+)?$"
"""Stem of a module's forward."""

OWNER_OF_GRADIENTS = r"^(.+)\.parameters_grad(?:\.\d+)?$"
"""Stem of the module that gradients of parameters belong to."""

PASS_OF_BACKWARD = rf"({IN_LATER_PASS})\.(?:[0-9]+\.backward|backward\.[0-9]+)$"
"""Suffix of the backward pass, if it is not the first."""

COMMUNICATION = r"^(?:Distributed|MintDistributed)\."
"""Entries of communication functions."""

COMMUNICATION_FORWARD = rf"{COMMUNICATION}.+\.forward$"
"""Forwards of communication functions."""

ALL_REDUCE_FORWARD = r"^\w*Distributed\.(?:.+\.)?all_?reduce\.\d+\.forward$"
"""Forwards of sums over ranks, in the spellings of all frameworks."""

DATA_PARALLEL = r"\.DistributedDataParallel\.(?:forward|backward|parameters_grad)\."
"""Entries of a data-parallel wrapper around a model."""

INPUT_PLACE = r"\.input\.(.+)$"
"""Position of a row among the inputs of its call."""

VALUE_PLACE = r"\.(?:input|output)\.(.+)$"
"""Position of a row among the inputs or outputs of its call."""

OUT_ARGUMENT = r"\.input\.out(?:\.|$)"
"""Rows of the argument ``out``."""

DIMENSION_ARGUMENT = r"\.input\.(?:dims?|axis|axes)\d?(?:\.|$)"
"""Rows of arguments that specify dimensions."""

ARGUMENT = r"^(.*\.forward(?:\.\d+)?\.input\.[^.]+)"
"""A row of a forward's inputs up to its argument, without the position inside it."""

PARAMETER_ROW = r"^(.*)\.(?:forward\.\d+\.parameters|parameters_grad\.\d+)\.(.*)$"
"""Stem of the module and name of the parameter, in a row of a parameter or of its gradient."""

PATH_OF_PARAMETER_ROW = r"^(?:Module|Cell)\.(.*)\.[^.]+\.(?:forward\.\d+\.parameters|parameters_grad\.\d+)\.(.*)$"
"""The same, with the module's path only."""

CONTRIBUTION_ROW = rf"\.parameters_grad\.\d+\..+\.{CONTRIBUTION}(\.\d+)?$"
"""Rows of contributions to a parameter's gradient."""

ROLE_IN_ROW = r"\.(?:input|kwargs|output|parameters|parameters_grad|debug)(?:\.|$)"
"""The part of a row's name after its entry."""


def forward_of_any(apis: Iterable[str]) -> str:
    """Return the pattern of forwards of APIs with one of these names."""
    return rf"\.(?:{'|'.join(map(re.escape, apis))})\.\d+\.forward$"


def backward_of_any(apis: Iterable[str]) -> str:
    """Return the pattern of backwards of APIs with one of these names, or of modules of one of these classes."""
    either = "|".join(map(re.escape, apis))
    return rf"\.(?:{either})(?:{IN_LATER_PASS})?\.(?:\d+\.backward|backward\.\d+)$"


def call_of_any(apis: Iterable[str]) -> str:
    """Return the pattern of entries of APIs with one of these names, or of modules of one of these classes.

    FSDP2 puts ``FSDP`` before the name of a class.
    """
    either = "|".join(map(re.escape, apis))
    phases = "forward|backward"
    return rf"\.(?:FSDP)?(?:{either})(?:{IN_LATER_PASS})?\.(?:\d+\.(?:{phases})|(?:{phases}|parameters_grad)\.\d+)$"
