"""Maps of names that add to the map of another plugin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, cast

from msprobe_core.protocols.trainers import ApiMap


def extended_maps(offered: Iterable[ApiMap]) -> dict[str, ApiMap]:
    """Return maps by framework, each with what others add to it.

    Where two maps say something of one name, the map of the framework comes first, and then maps in their order.
    """
    maps = list(offered)
    found = {each.name: each for each in maps if not each.extends}
    for each in maps:
        if each.extends:
            own = found.get(each.extends, ApiMap(name=each.extends))
            found[each.extends] = _extended(own, each)
    return found


def _extended(own: ApiMap, added: ApiMap) -> ApiMap:
    names = [each.name for each in fields(ApiMap) if each.name not in {"name", "extends"}]
    return replace(own, **{name: _with(getattr(own, name), getattr(added, name)) for name in names})


def _with(own: Any, added: Any) -> Any:
    """Return a field of a map with what another adds to it: names of buffers, or a mapping, two levels deep."""
    if not isinstance(own, Mapping):
        return tuple(dict.fromkeys([*own, *added]))
    merged = dict(cast("Mapping[str, Any]", added))
    for key, value in cast("Mapping[str, Any]", own).items():
        other = merged.get(key)
        is_nested = isinstance(value, Mapping) and isinstance(other, Mapping)
        merged[key] = {**cast("Mapping[str, Any]", other), **value} if is_nested else value
    return merged
