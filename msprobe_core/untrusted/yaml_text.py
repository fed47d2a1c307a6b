"""Read untrusted YAML, in time and memory bounded by its length.

An anchor names a node that aliases reuse: nine lines of nine aliases each expand to a billion nodes, and merge keys
copy what they refer to. So the expanded size of a text is counted on its nodes, before objects are built from them.
Nesting is bounded before there are nodes: libyaml's time is quadratic in the depth.
"""

from __future__ import annotations

from typing import Any, cast

import yaml
from yaml.constructor import BaseConstructor, SafeConstructor

from msprobe_core.untrusted.malformed import MalformedError

MAX_DEPTH = 64
"""Maximum nesting of lists and objects, with aliases followed."""

MAX_NODES = 1_000_000
"""Maximum number of values of a text; each takes 400 bytes as a node."""

_FREE_NODES = 10_000
_MOST_PER_NODE = 4
"""Maximum average number of uses of each node of a text."""

_MAX_NUMBER = 1_000
"""Maximum length of a number or date: parsing numbers in base 60, part of YAML 1.1, takes quadratic time."""

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")


def load_yaml(text: str, *, has_types: bool = True) -> Any:
    """Return the value of a text; ``None`` if it is empty.

    Args:
        text: One document.
        has_types: Whether ``1`` is a number and ``on`` a boolean; otherwise every scalar is text.

    Raises:
        MalformedError: it is not YAML, is nested too deeply, or expands to more than its length justifies.
    """
    return construct(compose(text, has_types=has_types), SafeConstructor() if has_types else BaseConstructor())


def compose(text: str, *, has_types: bool = True) -> yaml.Node | None:
    """Return the nodes of a text, which have line numbers; ``None`` if it is empty.

    Args:
        text: One document.
        has_types: See `load_yaml`.

    Raises:
        MalformedError: see `load_yaml`.
    """
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if has_types else _text_loader()
    try:
        _check_events(text, loader)
        node = cast("yaml.Node | None", cast("Any", yaml).compose(text, Loader=loader))
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        problem = error.problem if mark is not None and isinstance(error, yaml.MarkedYAMLError) else str(error)
        # libyaml counts the end of the text as a separate line.
        line = None if mark is None else min(mark.line, text.count("\n")) + 1
        raise MalformedError(problem or "", line) from error
    except UnicodeEncodeError as error:
        raise MalformedError("it holds half a surrogate pair") from error
    if node is not None:
        known: dict[int, tuple[int, int]] = {}
        size, _ = _measure(node, known)
        if size > _FREE_NODES + _MOST_PER_NODE * len(known):
            raise MalformedError("its anchors and aliases stand for more than a file of its length should")
    return node


def construct(node: yaml.Node | None, constructor: BaseConstructor) -> Any:
    """Return the value of nodes.

    Args:
        node: As `compose` returns it.
        constructor: A new constructor, which builds objects from nodes.

    Raises:
        MalformedError: a node has no valid value, such as the 99th of a month.
    """
    if node is None:
        return None
    try:
        return cast("Any", constructor).construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise MalformedError(error.problem or "", None if mark is None else mark.line + 1) from error
    except Exception as error:  # `!!int ""`, `!!bool x`, `!!float 1:…`: each type fails differently
        raise MalformedError(str(error) or type(error).__name__) from error


def _text_loader() -> Any:
    return getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def _check_events(text: str, loader: Any) -> None:
    """Raise if there are too many values, or they are nested too deeply; events are generated one by one."""
    depth = 0
    for number, event in enumerate(cast("Any", yaml).parse(text, Loader=loader)):
        if number > MAX_NODES:
            raise MalformedError(f"more than {MAX_NODES:,} values", event.start_mark.line + 1)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _measure(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return the number of nodes with all aliases expanded, and their nesting depth.

    Args:
        node: The outermost.
        known: The result for each node already measured, by its identity; extended here.
    """
    if (found := known.get(id(node))) is not None:
        if not found[0]:
            raise MalformedError("an alias stands within what it stands for", node.start_mark.line + 1)
        return found
    known[id(node)] = 0, 0
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        parts = node.value
    elif isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    elif node.tag in _NUMBERS and len(node.value) > _MAX_NUMBER:
        raise MalformedError(f"a number of {len(node.value):,} characters", node.start_mark.line + 1)
    size, height = 1, 0
    for part in parts:
        own_size, own_height = _measure(part, known)
        size, height = size + own_size, max(height, own_height)
    if height >= MAX_DEPTH:
        raise _too_deep(node)
    known[id(node)] = size, height + 1
    return known[id(node)]


def _too_deep(place: yaml.Node | yaml.Event) -> MalformedError:
    line = place.start_mark.line + 1
    return MalformedError(f"lists and objects within each other, more than {MAX_DEPTH} of them", line)
