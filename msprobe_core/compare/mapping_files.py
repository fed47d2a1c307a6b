"""Read the mapping files that users write for ``msprobe compare``.

Each file is YAML. The name on the left is the target's, the one on the right the golden dump's; ``ms_…`` and ``pt_…``
in an API file are the keys in files of ``mindstudio-probe`` users, and mean target and golden for any framework.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from msprobe_core import names
from msprobe_core.compare.mapping import ApiRule, Matching, Rule
from msprobe_core.config.text import read_text
from msprobe_core.errors import ConfigError, MalformedConfigError, UnknownFieldError
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.yaml_text import compose

OptionalFile = str | os.PathLike[str] | bool | None
"""A file; ``True`` or empty text for an option without a file; ``None`` or ``False`` for an absent option."""


def read_matching(
    *,
    is_fuzzy: bool = False,
    data_mapping: str | os.PathLike[str] | None = None,
    cell_mapping: OptionalFile = None,
    api_mapping: OptionalFile = None,
    layer_mapping: OptionalFile = None,
) -> Matching:
    """Return the pairing options of ``msprobe compare``.

    Args:
        is_fuzzy: ``-fm``.
        data_mapping: File of ``-dm``, with row names.
        cell_mapping: File of ``-cm``; without a file, modules are paired by their paths and any prefix.
        api_mapping: File of ``-am``; without a file, names are translated by the maps of the plugins.
        layer_mapping: File of ``-lm``; without a file, layers are paired by their paths.

    Raises:
        ConfigError: a file cannot be read, or is malformed; the message names the file and the line.
    """
    return Matching(
        is_fuzzy=is_fuzzy,
        rows=() if data_mapping is None else _rows_in(Path(data_mapping)),
        cells=None if _is_unasked(cell_mapping) else _cells_in(_file_of(cell_mapping)),
        apis=None if _is_unasked(api_mapping) else _apis_in(_file_of(api_mapping)),
        layers=None if _is_unasked(layer_mapping) else _layers_in(_file_of(layer_mapping)),
    )


def _is_unasked(option: OptionalFile) -> bool:
    return option is None or option is False


def _file_of(option: OptionalFile) -> Path | None:
    return None if option is None or isinstance(option, bool) or not os.fspath(option) else Path(option)


# --- the four kinds of file ---------------------------------------------------------------------------------------

_ROW = re.compile(names.ROLE_IN_ROW)
_ROWS_LOOK = (
    "row names as the table has them, for example 'Functional.relu.1.forward.input.0: Torch.relu.0.forward.input.0'"
)
_CELLS_LOOK = "modules as path and class, for example 'fc1.Dense: fc1.Linear'"
_APIS_LOOK = (
    "APIs as prefix and name, for example 'Functional.dense: Functional.linear', or a list of objects with ms_api, "
    "pt_api and, if they differ, ms_args, pt_args, ms_output, pt_output"
)
_LAYERS_LOOK = "classes of layers, each with its children, for example 'Attention: {core: core_attention}'"


def _rows_in(path: Path) -> Sequence[Rule]:
    members = _members(path, _as_mapping(path, _read(path, _ROWS_LOOK), _ROWS_LOOK))
    rules = [
        Rule(key.value, "" if _is_null(value) else _as_text(path, value, _ROWS_LOOK), _where(path, key))
        for key, value in members
    ]
    for rule in rules:
        for name in (rule.target, rule.golden):
            if name and not _ROW.search(name):
                raise ConfigError(f"{rule.where}: {name!r} is no row; expected are {_ROWS_LOOK}")
    return rules


def _cells_in(path: Path | None) -> Sequence[Rule]:
    return () if path is None else _flat_rules(path, _read(path, _CELLS_LOOK), _CELLS_LOOK)


def _layers_in(path: Path | None) -> Mapping[str, Sequence[Rule]]:
    if path is None:
        return {}
    root = _as_mapping(path, _read(path, _LAYERS_LOOK), _LAYERS_LOOK)
    return {name.value: _flat_rules(path, children, _LAYERS_LOOK) for name, children in _members(path, root)}


def _apis_in(path: Path | None) -> Sequence[ApiRule]:
    if path is None:
        return ()
    root = _read(path, _APIS_LOOK)
    if isinstance(root, yaml.SequenceNode):
        rules = [_api_rule(path, node, None) for node in root.value]
    else:
        members = _members(path, _as_mapping(path, root, _APIS_LOOK))
        if any(key.value in _TARGET_API for key, _ in members):
            rules = [_api_rule(path, root, None)]
        else:
            rules = [_named_api_rule(path, key, value) for key, value in members]
    seen: dict[str, ApiRule] = {}
    for rule in rules:
        if rule.target in seen:
            raise ConfigError(f"{rule.where}: {rule.target!r} stands there already, at {seen[rule.target].where}")
        seen[rule.target] = rule
    return rules


_TARGET_API, _GOLDEN_API = ("ms_api", "target_api"), ("pt_api", "golden_api")
_TARGET_ARGS, _GOLDEN_ARGS = ("ms_args", "target_args"), ("pt_args", "golden_args")
_TARGET_OUTPUT = ("ms_output", "ms_outputs", "target_output")
_GOLDEN_OUTPUT = ("pt_output", "pt_outputs", "golden_output")
_API_FIELDS = (*_TARGET_API, *_GOLDEN_API, *_TARGET_ARGS, *_GOLDEN_ARGS, *_TARGET_OUTPUT, *_GOLDEN_OUTPUT)


def _named_api_rule(path: Path, key: yaml.ScalarNode, value: yaml.Node) -> ApiRule:
    if isinstance(value, yaml.MappingNode):
        return _api_rule(path, value, key)
    rule = ApiRule(key.value, _as_text(path, value, _APIS_LOOK), _where(path, key))
    return _checked(rule)


def _api_rule(path: Path, node: yaml.Node, name: yaml.ScalarNode | None) -> ApiRule:
    """Return the rule for an object; ``name``: the target's API, if it precedes the object."""
    fields = {key.value: (key, value) for key, value in _members(path, _as_mapping(path, node, _APIS_LOOK))}
    for field_name, (key, _) in fields.items():
        if field_name not in _API_FIELDS:
            raise UnknownFieldError(
                f"{_where(path, key)}: there is no {field_name!r}; known are {', '.join(_API_FIELDS)}"
            )

    def text(keys: Sequence[str]) -> str:
        for key in keys:
            if key in fields:
                return _as_text(path, fields[key][1], _APIS_LOOK)
        raise ConfigError(f"{_where(path, node)}: lacks {keys[0]!r}; expected are {_APIS_LOOK}")

    def places(own: Sequence[str], other: Sequence[str]) -> Mapping[str, str] | None:
        lists = [[_as_texts(path, fields[key][1]) for key in keys if key in fields] for keys in (own, other)]
        if not any(lists):
            return None
        if not all(lists) or len(lists[0][0]) != len(lists[1][0]):
            raise ConfigError(
                f"{_where(path, node)}: {own[0]!r} and {other[0]!r} are paired in order, so both are needed, with as "
                "many elements"
            )
        for keys, (listed, *_) in zip((own, other), lists, strict=True):
            if len(set(listed)) != len(listed):
                raise ConfigError(f"{_where(path, node)}: {keys[0]!r} has an element twice")
        return dict(zip(lists[0][0], lists[1][0], strict=True))

    rule = ApiRule(
        target=text(_TARGET_API) if name is None else name.value,
        golden=text(_GOLDEN_API),
        where=_where(path, node if name is None else name),
        arguments=places(_TARGET_ARGS, _GOLDEN_ARGS),
        outputs=places(_TARGET_OUTPUT, _GOLDEN_OUTPUT),
    )
    return _checked(rule)


def _checked(rule: ApiRule) -> ApiRule:
    for name in (rule.target, rule.golden):
        if "." not in name or name.rpartition(".")[2].isdigit() or names.stem_of(name) is not None:
            raise ConfigError(f"{rule.where}: {name!r} is no API; expected are {_APIS_LOOK}, without the call's number")
    return rule


# --- YAML with lines ----------------------------------------------------------------------------------------------


def _read(path: Path, look: str) -> yaml.Node:
    """Return the content of a file as YAML nodes, which have line numbers."""
    text = read_text(path, kind="a file of names", advice="give the path of a YAML file")
    try:
        node = compose(text)
    except MalformedError as error:
        place = "" if error.line is None else f", line {error.line}"
        raise MalformedConfigError(f"{path}{place}: is not YAML ({error.reason}); expected are {look}") from error
    if node is None:
        raise ConfigError(f"{path}: is empty; expected are {look}")
    return node


def _where(path: Path, node: yaml.Node) -> str:
    return f"{path}, line {node.start_mark.line + 1}"


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "text" if node.value else "empty"
    return "a list" if isinstance(node, yaml.SequenceNode) else "an object"


def _as_mapping(path: Path, node: yaml.Node, look: str) -> yaml.MappingNode:
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{_where(path, node)}: is {_kind(node)}; expected are {look}")
    return node


def _members(path: Path, node: yaml.MappingNode) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """Return keys and values; a duplicate key is an error, which YAML itself ignores."""
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            raise ConfigError(f"{_where(path, key)}: a name is expected before the colon")
        if key.value in lines:
            raise ConfigError(f"{_where(path, key)}: {key.value!r} stands there already, in line {lines[key.value]}")
        lines[key.value] = key.start_mark.line + 1
    return node.value


def _flat_rules(path: Path, node: yaml.Node, look: str) -> list[Rule]:
    members = _members(path, _as_mapping(path, node, look))
    return [Rule(key.value, _as_text(path, value, look), _where(path, key)) for key, value in members]


def _is_null(node: yaml.Node) -> bool:
    """Whether there is an explicit null, not just an empty value."""
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null" and bool(node.value)


def _as_text(path: Path, node: yaml.Node, look: str) -> str:
    if not isinstance(node, yaml.ScalarNode) or not node.value:
        raise ConfigError(
            f"{_where(path, node)}: a name is expected after the colon, and it is {_kind(node)}; expected are {look}"
        )
    return node.value


def _as_texts(path: Path, node: yaml.Node) -> list[str]:
    if not isinstance(node, yaml.SequenceNode):
        raise ConfigError(
            f"{_where(path, node)}: a list is expected, of positions and keywords, for example [0, 1, mask]"
        )
    return [_as_text(path, item, "positions and keywords") for item in node.value]
