"""A ``config.json`` of the debugger."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from msprobe_core.config.load import check_config
from msprobe_core.errors import ConfigError
from msprobe_core.former_names import table as former
from msprobe_core.migrate.messages import gathered
from msprobe_core.migrate.result import FieldMeaning, Standing
from msprobe_core.model import Task
from msprobe_core.plugins import registry

Fields = dict[str, Any]
_LOGGER: Final = "msprobe_core.config.load"
_WHERE: Final = "FILE"
_MENTIONED: Final = re.compile(r"FILE: (?:'(\w+)': )?(?:unknown field '|the field '|')?(\w+)'?")
"""The block and the field that a message of the reader begins with."""

BLOCKS: Final = {*(task.value for task in Task), *former.TASKS}

_REPLACED: Final = {"run_ut": "acc_check", "nan_check": "overflow_check"}
"""Tasks that are written under another name, with the fields that it has."""
_KEPT: Final = {"nan_check": ("scope", "list", "data_mode")}

_DIFFERENT: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "rank": (bool, "a process outside of a job is rank 0; there it records nothing if any ranks are listed"),
    "async_dump": (
        bool,
        "without effect, with any task and summary mode: results always stay on the device until the window ends",
    ),
    "precision": (
        lambda value: value == "high",
        "without effect: statistics are always accumulated in float32 or wider; there PyTorch's have no mean and norm",
    ),
    "dump_enable": (
        lambda value: value is not None,
        "the file is looked at between steps, and takes effect at the next; a broken one ends recording",
    ),
    "level": (
        lambda value: value == "L2",
        "kernels of MindSpore's static graphs; for PyTorch take L1 with the task 'tensor' and 'list'",
    ),
    "task": (
        lambda value: value == "acc_check",
        "sampled calls are checked while training; there the debugger refuses this task",
    ),
}
"""By field: for which values it means something else, and what. Facts of the other tool are of its release 26.2."""

_DIFFERENT_IN_BLOCKS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "scope": (bool, "the window has the outputs of its last call; there they are left out"),
    "bench_path": (
        bool,
        "keyword arguments and backward calls are compared too; the training goes on when recording ends",
    ),
}
"""The same for fields in the block of a task."""


def meanings_of(given: Mapping[str, Any]) -> tuple[list[FieldMeaning], Fields | None]:
    """Return what the fields of a configuration mean, and one for msprobe; ``None`` if its task cannot be replaced."""
    fields = {name: dict(cast("Fields", block)) if _is_block(name, block) else block for name, block in given.items()}
    meanings = [*_replaced(fields), *_passed_over(fields), *_former(fields)]
    refused, warnings = _refused(fields)
    refused += _unknown_modes(fields)
    meanings += refused
    done = {each.field for each in meanings}
    for name, text in warnings.items():
        meanings += [] if name in done else [FieldMeaning(name, Standing.DIFFERENT, text)]
    done |= warnings.keys()
    meanings += [_meaning(name, value) for name, value in _flat(fields) if name not in done]
    can_be_written = not any(each.field == "task" and each.standing is Standing.REFUSED for each in meanings)
    return meanings, fields if can_be_written else None


def _is_block(name: str, value: object) -> bool:
    return name in BLOCKS and isinstance(value, dict)


def _is_comment(name: str) -> bool:
    return name.startswith(former.COMMENT_PREFIXES)


def _flat(fields: Fields) -> list[tuple[str, Any]]:
    """Return the fields with their values, those of blocks by dotted names."""
    flat: list[tuple[str, Any]] = []
    for name, value in fields.items():
        if _is_block(name, value):
            flat += [(f"{name}.{key}", own) for key, own in value.items() if not _is_comment(key)]
        elif not _is_comment(name):
            flat.append((name, value))
    return flat


def _meaning(name: str, value: object) -> FieldMeaning:
    key = name.rpartition(".")[2]
    differs, text = _DIFFERENT.get(name, _DIFFERENT_IN_BLOCKS.get(key, (_never, "")))
    return FieldMeaning(name, Standing.DIFFERENT, text) if differs(value) else FieldMeaning(name, Standing.SAME)


def _never(_value: object) -> bool:
    return False


def _replaced(fields: Fields) -> list[FieldMeaning]:
    """Replace the task if another does the same; its block gets the new name."""
    task = fields.get("task")
    if not isinstance(task, str) or task not in _REPLACED:
        return []
    fields["task"] = _REPLACED[task]
    block = fields.pop(task, None)
    if not isinstance(block, dict):
        return [FieldMeaning("task", Standing.DIFFERENT, former.TASKS[task])]
    own = cast("Fields", block)
    kept = _KEPT.get(task, tuple(own))
    fields[_REPLACED[task]] = {name: value for name, value in own.items() if name in kept}
    left_out = [
        FieldMeaning(f"{task}.{name}", Standing.REFUSED, f"the task {_REPLACED[task]!r} has no such field")
        for name in own
        if name not in kept
    ]
    return [FieldMeaning("task", Standing.DIFFERENT, former.TASKS[task]), *left_out]


def _passed_over(fields: Fields) -> list[FieldMeaning]:
    names = [name for name in fields if name in former.TASKS]
    for name in names:
        del fields[name]
    return [FieldMeaning(name, Standing.DIFFERENT, "passed over: its task does not exist here") for name in names]


def _former(fields: Fields) -> list[FieldMeaning]:
    """Take out fields of older releases, which have no effect."""
    found: list[FieldMeaning] = []
    for name in [name for name in fields if name in former.COMMON_FIELDS]:
        del fields[name]
        found.append(FieldMeaning(name, Standing.DIFFERENT, former.COMMON_FIELDS[name]))
    for block, own in [(name, value) for name, value in fields.items() if _is_block(name, value)]:
        for name in [name for name in own if name in former.TASK_FIELDS]:
            del own[name]
            found.append(FieldMeaning(f"{block}.{name}", Standing.DIFFERENT, former.TASK_FIELDS[name]))
    return found


def _refused(fields: Fields) -> tuple[list[FieldMeaning], dict[str, str]]:
    """Take out what the reader refuses, one field after the other; returns these, and its warnings by field."""
    refused: list[FieldMeaning] = []
    while True:
        with gathered(_LOGGER) as messages:
            try:
                check_config(fields, _WHERE)
            except ConfigError as error:
                refused.append(_without_refused(fields, str(error)))
                if refused[-1].field:
                    continue
                fields.clear()
        return refused, dict(map(_field_and_text, messages))


def _unknown_modes(fields: Fields) -> list[FieldMeaning]:
    """Take out modes that no plugin here has, which the reader leaves to the session."""
    found: list[FieldMeaning] = []
    known = registry().processors()
    for block, own in [(name, value) for name, value in fields.items() if _is_block(name, value)]:
        mode = own.get("summary_mode")
        if isinstance(mode, str) and mode not in known:
            del own["summary_mode"]
            text = f"'summary_mode' is {mode!r}; known: {', '.join(known)}"
            found.append(FieldMeaning(f"{block}.summary_mode", Standing.REFUSED, text))
    return found


def _without_refused(fields: Fields, message: str) -> FieldMeaning:
    name, text = _field_and_text(message)
    block, _, key = name.rpartition(".")
    owner = fields.get(block) if block else fields
    if not isinstance(owner, dict) or key not in owner:
        return FieldMeaning("", Standing.REFUSED, text)
    del owner[key]
    if "unknown field" in text:
        text = f"{text}; there it is ignored silently"
    return FieldMeaning(name, Standing.REFUSED, text)


def _field_and_text(message: str) -> tuple[str, str]:
    """Return the field that a message of the reader is about, and the message without the name of the file."""
    found = _MENTIONED.match(message)
    text = message.removeprefix(f"{_WHERE}: ")
    if text.startswith("there is no task"):
        return "task", text
    if found is None:
        return "", text
    block, field = found[1], found[2]
    return (f"{block}.{field}" if block else field), text
