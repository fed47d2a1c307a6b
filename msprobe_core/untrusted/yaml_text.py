"""Read YAML whose author may mean harm, in time and memory that its length bounds.

An anchor names a node that aliases use again: nine lines of nine aliases each stand for a billion nodes, and merge keys
copy what they refer to. So what a text stands for is counted on its nodes, before anything is made of them. Nesting is
bounded before there are nodes: the time that libyaml takes is quadratic in the depth.
"""

from __future__ import annotations

from typing import Any, cast

import yaml
from yaml.constructor import BaseConstructor, SafeConstructor

from msprobe_core.untrusted.malformed import MalformedError

MAX_DEPTH = 64
"""Lists and objects within each other, aliases followed."""

MAX_NODES = 1_000_000
"""Values of a text, of 400 bytes each once they are nodes."""

_FREE_NODES = 10_000
_MOST_PER_NODE = 4
"""Times that each node of a text may be used, on average."""

_MAX_NUMBER = 1_000
"""Characters of a number or a date: numbers to base 60, which YAML 1.1 has, take time that is quadratic in them."""

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")


def load_yaml(text: str, *, has_types: bool = True) -> Any:
    """Return what a text stands for; ``None`` if it is empty.

    Args:
        text: One document.
        has_types: Whether ``1`` is a number and ``on`` a boolean; else every scalar is text.

    Raises:
        MalformedError: it is no YAML, nested too deeply, or stands for more than its length allows.
    """
    return construct(compose(text, has_types=has_types), SafeConstructor() if has_types else BaseConstructor())


def compose(text: str, *, has_types: bool = True) -> yaml.Node | None:
    """Return the nodes of a text, which know their lines; ``None`` if it is empty.

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
        # To libyaml the end of the text is a line of its own.
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
    """Return what nodes stand for.

    Args:
        node: As `compose` returns it.
        constructor: What makes objects of nodes; a new one.

    Raises:
        MalformedError: a node stands for nothing, such as the 99th of a month.
    """
    if node is None:
        return None
    try:
        return cast("Any", constructor).construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise MalformedError(error.problem or "", None if mark is None else mark.line + 1) from error
    except Exception as error:  # `!!int ""`, `!!bool x`, `!!float 1:…`: each type fails in ways of its own
        raise MalformedError(str(error) or type(error).__name__) from error


def _text_loader() -> Any:
    return getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def _check_events(text: str, loader: Any) -> None:
    """Raise if there are too many values, or they are nested too deeply; events are made one after the other."""
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
    """Return how many nodes there are with all aliases replaced by what they stand for, and how deeply they nest.

    Args:
        node: The outermost.
        known: The same of each node whose sizes are known, by its identity; filled.
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
