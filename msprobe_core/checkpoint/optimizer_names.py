"""Names of an optimizer's states: of which parameter each is, where the checkpoint says so or its order does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from msprobe_core.checkpoint.contents import Kind
from msprobe_core.store.pt_trees import Key

_MOMENTS = re.compile(r"exp_avg|momentum|max_exp|moment\d?|square_avg|acc_delta|sum$|variance|^m$|^v$")
_MASTER = re.compile(r"master|fp32|^param$|main_param")
_NOT_TRAINED = re.compile(
    r"(num_batches_tracked|running_(mean|var)|inv_freq|_extra_state|position_ids|rotary_emb\.|attn\.masked_bias)"
)
_WITHOUT_DECAY = re.compile(r"bias$|norm|\bln_|layernorm", re.IGNORECASE)


def kind_of_state(what: str) -> Kind:
    """Return the kind of a state by its name: ``exp_avg`` is a moment, ``step`` is a state."""
    if _MASTER.search(what):
        return Kind.MASTER
    return Kind.MOMENT if _MOMENTS.search(what) else Kind.STATE


def state_name(parameter: str, what: str) -> str:
    """Return the name of a state of a parameter."""
    return f"optimizer.state.{parameter}.{what}"


def names_by_order(
    groups: Sequence[Sequence[Key]],
    shapes: Mapping[Key, tuple[int, ...]],
    parameters: Mapping[str, tuple[int, ...]],
) -> dict[Key, str]:
    """Return the parameter of each number in an optimizer's groups, if one of the usual orders fits all shapes.

    Optimizers number parameters in the order in which they were given to them: all in the order of the model, or those
    with weight decay before those without.

    Args:
        groups: Numbers in each group.
        shapes: Shape of a state with one element for each of a parameter, by number.
        parameters: Shapes of parameters, in the order of the model.

    Returns: empty if no order fits.
    """
    trained = [name for name in parameters if not _NOT_TRAINED.search(name)]
    numbers = [number for group in groups for number in group]
    for order in _orders(trained, parameters, groups):
        if len(order) != len(numbers):
            continue
        fits = (
            shapes.get(number, parameters[name]) == parameters[name]
            for number, name in zip(numbers, order, strict=True)
        )
        if all(fits):
            return dict(zip(numbers, order, strict=True))
    return {}


def _orders(
    names: Sequence[str], parameters: Mapping[str, tuple[int, ...]], groups: Sequence[Sequence[Key]]
) -> Iterator[Sequence[str]]:
    if len(groups) == 1:
        yield names
        return
    matrices = [name for name in names if len(parameters[name]) > 1]
    for first in (
        [name for name in matrices if not _WITHOUT_DECAY.search(name)],
        matrices,
        [name for name in matrices if not name.endswith("bias")],
        [name for name in names if not name.endswith("bias")],
    ):
        known = set(first)
        second = [name for name in names if name not in known]
        yield [*first, *second]
        yield [*second, *first]
    yield names


def given_names(groups: Any) -> dict[Key, str]:
    """Return the names in ``param_names`` of an optimizer's groups, which PyTorch keeps if it was given names."""
    found: dict[Key, str] = {}
    for group in groups_of(groups):
        names: Any = group.get("param_names")
        numbers: Any = group.get("params")
        if (
            isinstance(names, list)
            and isinstance(numbers, list)
            and len(cast("Any", names)) == len(cast("Any", numbers))
        ):
            pairs = zip(cast("list[Any]", numbers), cast("list[Any]", names), strict=True)
            found |= {number: name for number, name in pairs if isinstance(name, str) and isinstance(number, int)}
    return found


def groups_of(value: Any) -> list[dict[Key, Any]]:
    """Return the groups of an optimizer's state; empty if it has none."""
    if not isinstance(value, list):
        return []
    return [cast("dict[Key, Any]", group) for group in cast("list[Any]", value) if isinstance(group, dict)]


def numbers_of(group: Mapping[Key, Any]) -> list[Key]:
    """Return the numbers of the parameters in a group."""
    numbers: Any = group.get("params")
    return [n for n in cast("list[Any]", numbers) if isinstance(n, int)] if isinstance(numbers, list) else []
