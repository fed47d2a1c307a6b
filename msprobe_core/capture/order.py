"""Execution order of entries, and removal of their empty places."""

from __future__ import annotations

from collections.abc import Mapping

from msprobe_core.model import Entry, Failure, GradientSlot, Phase, TensorValue, Value


def in_execution_order(timed: list[tuple[int, Entry]], calls: Mapping[str, str | None]) -> list[Entry]:
    """Sort entries by the time at which they were complete, a module's backward after everything inside it.

    Args:
        timed: Entries with their times.
        calls: Parents of calls, including calls without an entry.

    The backward of a module whose inputs need no gradient is complete when the gradient of its outputs arrives, before
    anything inside it has run. Its entry still follows those of its children, as in forward.
    """
    times = {entry.name: time for time, entry in timed}
    parents = {**calls, **{entry.name: entry.parent for _, entry in timed}}
    depths: dict[str, int] = {}
    for name in sorted(times, key=times.__getitem__):
        ancestor = parents[name]
        while ancestor is not None:
            if ancestor in times:
                times[ancestor] = max(times[ancestor], times[name])
            ancestor = parents.get(ancestor)
        depths[name] = _depth(name, parents)
    return [entry for _, entry in sorted(timed, key=lambda item: (times[item[1].name], -depths[item[1].name]))]


def _depth(name: str, parents: Mapping[str, str | None]) -> int:
    depth = 0
    parent = parents.get(name)
    while parent is not None:
        depth += 1
        parent = parents.get(parent)
    return depth


def drop_empty_places(entry: Entry) -> None:
    """Drop trailing places and keywords without a gradient.

    The entry's original lists are not changed: another pass may need all places.
    """
    if entry.phase is not Phase.BACKWARD:
        return
    if entry.inputs and _is_empty(entry.inputs[-1]):
        entry.inputs = _without_empty_end(entry.inputs)
    if entry.outputs and _is_empty(entry.outputs[-1]):
        entry.outputs = _without_empty_end(entry.outputs)
    if entry.output_kwargs is not None:
        entry.output_kwargs = {k: v for k, v in entry.output_kwargs.items() if not _is_empty(v)} or None


def _without_empty_end(values: list[Value]) -> list[Value]:
    length = len(values)
    while length and _is_empty(values[length - 1]):
        length -= 1
    return values[:length]


def _is_empty(value: Value) -> bool:
    """Whether a tree has no gradient."""
    if isinstance(value, GradientSlot):
        return value.value is None
    if isinstance(value, list):
        return all(_is_empty(item) for item in value)
    if isinstance(value, dict):
        return all(_is_empty(item) for item in value.values())
    return not isinstance(value, TensorValue | Failure)
