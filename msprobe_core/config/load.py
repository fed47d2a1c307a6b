"""Read a configuration file strictly: an unknown key or an invalid value is an error that names it."""

from __future__ import annotations

import difflib
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import msgspec
import yaml

from msprobe_core import names
from msprobe_core.config.apis import load_apis
from msprobe_core.config.origin import ARGUMENTS
from msprobe_core.config.ranges import parse_ranges
from msprobe_core.config.repetition import as_repetition
from msprobe_core.config.requested_windows import as_requested
from msprobe_core.config.schema import (
    TASK_FIELDS,
    CommonFields,
    Config,
    DataMode,
    DumpMode,
    FuzzDevice,
    FuzzStage,
    HandlerType,
    JsonObject,
    LoadOptions,
    PertMode,
    TaskOptions,
    TwinOptions,
)
from msprobe_core.config.text import given_path, is_directory, read_text
from msprobe_core.errors import (
    ConfigError,
    ConflictingSettingsError,
    EntryNameError,
    MalformedConfigError,
    UnknownFieldError,
    clip,
)
from msprobe_core.former_names import table as former
from msprobe_core.model import Level, Perturbation, Phase, SiteKind, Task
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.yaml_text import compose, load_yaml

_logger = logging.getLogger(__name__)


MAX_WAIT_S = 60.0
"""Maximum of ``wait``: a training is not to stand still for another one."""

_WITH_STATISTICS = (Task.STATISTICS, Task.TENSOR, Task.OVERFLOW_CHECK)
"""Tasks that record statistics of tensors."""

_COMMON_TYPES = get_type_hints(CommonFields)
_OPTION_TYPES = get_type_hints(TaskOptions)
_LOAD_TYPES = get_type_hints(LoadOptions)
_PERTURB_TYPES = get_type_hints(Perturbation)
_TWIN_TYPES = get_type_hints(TwinOptions)

CONFIG_FIELDS = frozenset(_COMMON_TYPES)
"""Names of the fields outside of any task's block."""

_BLOCKS = {*(task.value for task in Task), "load", "perturb", "twin", "per_stage", "rollout"}


def load_config(path: str | os.PathLike[str] | None = None, **overrides: Any) -> Config:
    """Return the configuration in ``path``, with every override that is not ``None`` applied.

    Args:
        path: JSON (``.json``) or YAML (``.yaml``, ``.yml``) file. ``None`` uses the defaults.
        overrides: Common fields by name, for example ``level="mix"``; they take precedence over the file.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, a value is invalid, or two values conflict.
    """
    try:
        file = None if path is None else Path(path)
    except TypeError as error:
        raise ConfigError(
            f"the path of a configuration is text, not {type(path).__name__}; give settings by name"
        ) from error
    fields = {} if file is None else read_fields(file)
    return check_config(fields, "arguments" if file is None else str(file), **overrides)


def check_config(fields: JsonObject, where: str, **overrides: Any) -> Config:
    """Return the configuration of a file with the content ``fields`` and the name ``where``.

    Args:
        fields: Decoded content.
        where: Name of the file in error messages.
        overrides: See `load_config`.

    Raises:
        ConfigError: a key is unknown, a value is invalid, or two values conflict.
    """
    values, blocks = _split_blocks(without_comments(fields))
    common = _check_fields(values, _COMMON_TYPES, where, known_before=former.COMMON_FIELDS)
    given = {name: value for name, value in overrides.items() if value is not None}
    common |= _check_arguments(given)
    options = {task: _check_block(task, block, where) for task, block in blocks.items()}
    if common.get("custom_apis") is not None:
        path = given_path(common["custom_apis"], f"{where}: 'custom_apis'")
        common["listed_apis"] = load_apis(path, f"{where}: 'custom_apis'")
    config = Config(
        **common,
        options=options.get(common.get("task", Task.STATISTICS), TaskOptions()),
        is_live=values.get("dump_enable") is not None and "dump_enable" not in given,
    )
    given_path(config.dump_path, f"{where}: 'dump_path'")
    if config.level is not Level.L2:
        config = msgspec.structs.replace(config, options=_as_one_mode(config.options, where))
    if config.task is Task.FREE_BENCHMARK:
        config = msgspec.structs.replace(config, options=_as_listed_calls(config.options, where))
    if config.task is Task.GRAD_PROBE:
        config = msgspec.structs.replace(config, level=Level.L1)  # no calls are recorded, at whatever level
    config = as_repetition(as_requested(config))
    _check_together(config, where)
    if config.task is Task.STRUCTURE and config.level not in {Level.L0, Level.MIX}:
        if "level" in common:
            _logger.warning("%s: the task 'structure' is recorded at level mix, not %s", where, config.level.value)
        config = msgspec.structs.replace(config, level=Level.MIX)
    return config


def without_comments(fields: JsonObject) -> JsonObject:
    """Return the content of a file without keys that are comments, such as ``_comment`` and ``//``, also in blocks."""
    return {
        name: without_comments(cast("JsonObject", value)) if name in _BLOCKS and isinstance(value, dict) else value
        for name, value in fields.items()
        if not str(name).startswith(former.COMMENT_PREFIXES)
    }


def read_fields(path: Path) -> JsonObject:
    """Return the content of a configuration file, unchecked.

    Raises:
        ConfigError: it cannot be read, or is not an object.
    """
    return dict(_read(path))


def _read(path: Path) -> Mapping[str, Any]:
    text = read_text(path, kind="a configuration file", advice="give the path of a JSON or YAML file")
    content = _decode(path, text)
    if not isinstance(content, dict):
        raise ConfigError(f'{path}: holds {type(content).__name__}, but must hold an object such as {{"level": "L0"}}')
    return content  # pyright: ignore[reportUnknownVariableType]


def _decode(path: Path, text: str) -> object:
    kind, read = ("YAML", _read_yaml) if path.suffix.lower() in {".yaml", ".yml"} else ("JSON", _read_json)
    try:
        content, repeated = read(text)
    except (MalformedError, msgspec.DecodeError, RecursionError) as error:
        raise MalformedConfigError(f"{path}: is not valid {kind} ({' '.join(str(error).split())})") from error
    if repeated is not None:
        raise ConfigError(f"{path}: an object has the key {repeated!r} twice; keep the one that is to count")
    return content


_decode_json = msgspec.json.Decoder().decode


def _read_json(text: str) -> tuple[object, str | None]:
    """Return the content, and a key that one of its objects has twice, of which decoders keep the last."""
    content: object = _decode_json(text)
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        repeated.extend(_repeated(key for key, _ in pairs))

    json.loads(text, object_pairs_hook=look, parse_int=str, parse_float=str)
    return content, next(iter(repeated), None)


def _read_yaml(text: str) -> tuple[object, str | None]:
    """Do the same for YAML, whose aliases stand for nodes that have been looked at already."""
    root = compose(text)
    waiting, seen = [] if root is None else [root], set[int]()
    repeated: list[str] = []
    while waiting:
        node = waiting.pop()
        if id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
            repeated.extend(_repeated(key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)))
            waiting.extend(value for _, value in pairs)
        else:
            waiting.extend(cast("list[yaml.Node]", node.value))
    return load_yaml(text), next(iter(repeated), None)


def _repeated(keys: Iterable[str]) -> list[str]:
    """Return keys that are there more than once; comments may be, and so may YAML's merges."""
    counts = Counter(key for key in keys if not key.startswith((*former.COMMENT_PREFIXES, "<<")))
    return [key for key, number in counts.items() if number > 1]


def _split_blocks(fields: JsonObject) -> tuple[JsonObject, dict[Task, object]]:
    tasks = {task.value: task for task in Task}
    values: JsonObject = {}
    blocks: dict[Task, object] = {}
    for name, value in fields.items():
        key = _text_of_key(name)
        if key in tasks:
            blocks[tasks[key]] = value
        elif key not in former.TASKS:  # templates for other tools have blocks of these tasks
            values[key] = value
    return values, blocks


def _check_block(task: Task, block: object, where: str) -> TaskOptions:
    if not isinstance(block, dict):
        raise ConfigError(f"{where}: '{task.value}' is {block!r}, but must be an object")
    types = {name: _OPTION_TYPES[name] for name in TASK_FIELDS[task]}
    checked = _check_fields(block, types, f"{where}: '{task.value}'", known_before=former.TASK_FIELDS)  # pyright: ignore[reportUnknownArgumentType]
    options = TaskOptions(**checked)
    _check_options(options, task, f"{where}: '{task.value}'")
    return options


def _as_one_mode(options: TaskOptions, where: str) -> TaskOptions:
    """Return the options with a list of statistics replaced by the one mode that keeps them; L2 keeps the list."""
    listed = options.summary_mode
    if isinstance(listed, str):
        return options
    if len(listed) == 1 and listed[0] not in {*former.STATISTICS, *former.CHECKSUMS}:
        return msgspec.structs.replace(options, summary_mode=listed[0])
    unknown = [name for name in listed if name not in {*former.STATISTICS, *former.CHECKSUMS, "statistics"}]
    if unknown:
        known = ", ".join((*former.STATISTICS, *former.CHECKSUMS))
        raise ConfigError(f"{where}: 'summary_mode' lists {unknown[0]!r}; give one mode, or a list of {known}")
    if any(name in former.ZERO_COUNTS for name in listed):
        _logger.warning("%s: 'summary_mode' lists counts of zeros, which are kept at level L2 only", where)
    mode = "md5" if set(listed) & set(former.CHECKSUMS) else "statistics"
    return msgspec.structs.replace(options, summary_mode=mode)


def _as_listed_calls(options: TaskOptions, where: str) -> TaskOptions:
    """Return the options of ``free_benchmark`` with its calls as ``list``, and the direction of these as ``data_mode``.

    Raises:
        ConfigError: ``scope`` has a name that no call has.
    """
    for name in options.scope:
        _check_scope(name, Level.L1, f"{where}: 'free_benchmark'")
    calls = tuple(name.rpartition(".")[0] + "." for name in options.scope)
    is_forward = options.fuzz_stage is FuzzStage.FORWARD
    mode = (DataMode.FORWARD,) if is_forward else (DataMode.ALL,)  # a backward is repeated from its forward's inputs
    return msgspec.structs.replace(options, scope=(), list=(*options.list, *calls), data_mode=mode)


def _check_arguments(given: Mapping[str, Any]) -> JsonObject:
    for block in (task.value for task in Task if task.value in given):
        try:
            content = clip(json.dumps({block: given[block]}, default=str), 200)
        except (TypeError, ValueError):  # keys that are no text, or a block that contains itself
            content = f'{{"{block}": {{…}}}}'
        raise UnknownFieldError(
            f"{ARGUMENTS}: '{block}' is the block of a task, which only a file has; write {content} into a file such "
            "as config.json, and give its path as config_path"
        )
    return _check_fields(given, _COMMON_TYPES, ARGUMENTS, known_before={})


def _check_fields(
    values: Mapping[str, Any], types: Mapping[str, Any], where: str, known_before: Mapping[str, str]
) -> JsonObject:
    checked: JsonObject = {}
    for name, value in values.items():
        key = _text_of_key(name)
        if key in known_before:
            _logger.warning("%s: the field '%s' is of an older release: %s", where, key, known_before[key])
        elif key not in types:
            raise UnknownFieldError(f"{where}: unknown field {key!r} (value {value!r}); {_suggest_field(key, types)}")
        else:
            checked[key] = _check_value(key, value, types[key], where)
    return checked


def _text_of_key(key: object) -> str:
    """Return a key as text: YAML reads ``on``, ``1`` and ``null`` as values of other types."""
    return key if isinstance(key, str) else "on" if key is True else "off" if key is False else str(key)


def _check_value(key: str, value: Any, expected: Any, where: str) -> Any:
    if key in {"step", "rank"}:
        return parse_ranges(value, f"{where}: '{key}'")
    if key == "load" and isinstance(value, dict):
        inner = _check_fields(value, _LOAD_TYPES, f"{where}: 'load'", known_before={})  # pyright: ignore[reportUnknownArgumentType]
        missing = {"path", "modules"} - inner.keys()
        if missing:
            raise ConfigError(f"{where}: 'load' lacks the field {min(missing)!r}")
        return _checked_load(LoadOptions(**inner), f"{where}: 'load'")
    if key == "perturb" and isinstance(value, dict):
        return _checked_perturbation(value, f"{where}: 'perturb'")  # pyright: ignore[reportUnknownArgumentType]
    if key == "twin" and isinstance(value, dict):
        return _checked_twin(value, f"{where}: 'twin'")  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
    if value is None:
        # Published templates write null for "not set": use the default.
        return _default(key, where)
    if key == "task" and isinstance(value, str) and value in former.TASKS:
        raise ConfigError(f"{where}: there is no task {value!r}: {former.TASKS[value]}")
    try:
        return msgspec.convert(value, expected)
    except UnicodeEncodeError as error:  # half of a pair of surrogates, as JSON may have
        raise ConfigError(f"{where}: '{key}' is {value!r}, which is no text") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: '{key}' is {value!r}; {_explain(value, expected, error)}") from error


def _checked_load(options: LoadOptions, where: str) -> LoadOptions:
    if not is_directory(given_path(options.path, f"{where}: 'path'")):
        raise ConfigError(f"{where}: 'path' is {options.path!r}, which is no directory; give that of an earlier run")
    if not options.modules:
        raise ConfigError(f"{where}: 'modules' is empty; name module calls, such as 'Module.layers.0.Block.forward.0'")
    for i, entry in enumerate(options.modules):
        if entry in options.modules[:i]:
            raise ConfigError(f"{where}: 'modules' has {entry!r} twice")
        try:
            site = names.parse_entry(entry)
        except EntryNameError:
            site = None
        if site is None or site.kind is not SiteKind.MODULE or site.phase is not Phase.FORWARD:
            raise ConfigError(
                f"{where}: 'modules' has {entry!r}, which is no forward call of a module; "
                "names are such as 'Module.layers.0.Block.forward.0'"
            )
    return options


def _checked_twin(fields: Mapping[str, Any], where: str) -> TwinOptions:
    inner = _check_fields(fields, _TWIN_TYPES, where, known_before={})
    if not str(inner.get("leader") or "").strip():
        raise ConfigError(f"{where}: lacks the field 'leader': the directory that the other job records to")
    options = TwinOptions(**inner)
    given_path(options.leader, f"{where}: 'leader'")
    if not 0 <= options.wait <= MAX_WAIT_S:
        raise ConfigError(
            f"{where}: 'wait' is {options.wait}, but must be from 0 to {MAX_WAIT_S:g} seconds; what comes later is "
            "judged later"
        )
    if not options.budget > 0:
        raise ConfigError(f"{where}: 'budget' is {options.budget}, but must be more than 0, such as 0.05")
    return options


def _checked_perturbation(fields: Mapping[str, Any], where: str) -> Perturbation:
    perturbation = Perturbation(**_check_fields(fields, _PERTURB_TYPES, where, known_before={}))
    if perturbation.seed < 0:
        raise ConfigError(f"{where}: 'seed' is {perturbation.seed}, but must be at least 0")
    return perturbation


def _default(key: str, where: str) -> Any:
    owners = (CommonFields(), TaskOptions(), Perturbation(), TwinOptions(leader=""))
    for owner in owners:
        if hasattr(owner, key):
            return getattr(owner, key)
    raise ConfigError(f"{where}: '{key}' is null, and has no default; give a value")


def _explain(value: object, expected: Any, error: msgspec.ValidationError) -> str:
    choices = _choices(expected)
    if not choices:
        return str(error).partition(" - at ")[0].replace("`", "'").lower()
    elements = value if isinstance(value, list | tuple) else [value]  # pyright: ignore[reportUnknownVariableType]
    wrong = [element for element in elements if element not in choices] or [value]  # pyright: ignore[reportUnknownVariableType]
    return _suggest(str(wrong[0]), choices)  # pyright: ignore[reportUnknownArgumentType]


def _choices(expected: Any) -> list[str]:
    """Return the values of the enum that ``expected`` is or contains."""
    for kind in (expected, *get_args(expected)):
        if isinstance(kind, type) and issubclass(kind, Enum):
            return [str(member.value) for member in kind]
    return []


def _suggest_field(key: str, types: Mapping[str, Any]) -> str:
    if types is not _COMMON_TYPES:
        return _suggest(key, types)
    known = [*types, *(task.value for task in Task)]
    misplaced = difflib.get_close_matches(key, _OPTION_TYPES, n=1, cutoff=0.8)
    if misplaced and not difflib.get_close_matches(key, known, n=1, cutoff=0.8):
        return f"did you mean '{misplaced[0]}', which belongs into the block of a task, such as 'statistics'?"
    return _suggest(key, known)


def _suggest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    allowed = f"allowed: {', '.join(known)}" if known else "no field is allowed here"
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.5)
    return f"did you mean '{lowered[close[0]]}'? ({allowed})" if close else allowed


def _check_options(options: TaskOptions, task: Task, where: str) -> None:
    if len(options.scope) not in {0, 2} and task is not Task.FREE_BENCHMARK:  # which lists single calls there
        raise ConfigError(
            f"{where}: 'scope' is {list(options.scope)!r}, but must be the first and last entry name of the window, "
            "or empty"
        )
    modes = options.data_mode
    if len(set(modes)) < len(modes):
        raise ConfigError(f"{where}: 'data_mode' is {[mode.value for mode in modes]!r}; give each value once")
    if DataMode.ALL in modes and len(modes) > 1:
        raise ConflictingSettingsError(
            f"{where}: 'data_mode' has 'all' among others; write [\"all\"] or leave 'all' out"
        )
    if options.diff_nums < 1 and options.diff_nums != -1:
        raise ConfigError(f"{where}: 'diff_nums' is {options.diff_nums}, but must be at least 1, or -1 for no limit")
    if options.overflow_nums < 1 and options.overflow_nums != -1:
        raise ConfigError(
            f"{where}: 'overflow_nums' is {options.overflow_nums}, but must be at least 1, or -1 for no limit"
        )
    if not options.budget > 0:
        raise ConfigError(f"{where}: 'budget' is {options.budget}, but must be more than 0, such as 0.05")
    if options.sample < 1:
        raise ConfigError(f"{where}: 'sample' is {options.sample}, but must be at least 1")
    if options.bench_path:
        _check_bench(options, where)
    if task is Task.FREE_BENCHMARK:
        _check_perturbing(options, where)
    _check_lists(options, where)


def _check_bench(options: TaskOptions, where: str) -> None:
    if options.summary_mode == "statistics":
        raise ConflictingSettingsError(f'{where}: \'bench_path\' needs checksums: add "summary_mode": "md5"')
    if (DataMode.INPUT in options.data_mode) != (DataMode.OUTPUT in options.data_mode):
        raise ConflictingSettingsError(
            f"{where}: 'bench_path' compares inputs and outputs, but 'data_mode' has only one of them"
        )
    if not is_directory(given_path(str(options.bench_path), f"{where}: 'bench_path'")):
        raise ConfigError(
            f"{where}: 'bench_path' is {options.bench_path!r}, which is no directory; give that of an earlier run"
        )


def _check_lists(options: TaskOptions, where: str) -> None:
    if any(not low < high for low, high in pairwise((-math.inf, *options.bounds, math.inf))):
        raise ConfigError(
            f"{where}: 'bounds' is {list(options.bounds)!r}, but must be finite numbers, each above the one before"
        )
    for rule in options.slice:
        if rule.dim < 0 or rule.begin < 0 or (rule.size is not None and rule.size < 0):
            raise ConfigError(f"{where}: 'slice' has a negative 'dim', 'size' or 'begin'")
        if rule.end is not None and 0 <= rule.end <= rule.begin:
            raise ConfigError(
                f"{where}: 'slice' has 'begin' {rule.begin} and 'end' {rule.end}, which keeps nothing; 'end' is the "
                "index after the last that is kept"
            )


def _check_perturbing(options: TaskOptions, where: str) -> None:
    if options.max_sample < 1 or options.preheat_step < 0:
        raise ConfigError(f"{where}: 'max_sample' must be at least 1, and 'preheat_step' at least 0")
    if (options.pert_mode is PertMode.TO_CPU) != (options.fuzz_device is FuzzDevice.CPU):
        raise ConflictingSettingsError(
            f"{where}: 'fuzz_device' is {options.fuzz_device.value!r} and 'pert_mode' is {options.pert_mode.value!r}; "
            "the host stands for the mode to_cpu, and that mode for the host: give both or neither"
        )
    if options.dump_mode is not DumpMode.AUTO and options.pert_mode is not PertMode.TO_CPU:
        raise ConflictingSettingsError(
            f"{where}: 'dump_mode' is {options.dump_mode.value!r}, but keeps results of both devices, which only the "
            "mode to_cpu has; leave it out"
        )
    if options.dump_mode is DumpMode.LIST and not options.list:
        raise ConflictingSettingsError(
            f"{where}: 'dump_mode' is 'list', but 'list' is empty; give names of calls, or take 'all'"
        )
    is_finer = options.pert_mode in (PertMode.IMPROVE_PRECISION, PertMode.TO_CPU)
    if options.handler_type is HandlerType.FIX and not is_finer:
        raise ConflictingSettingsError(
            f"{where}: 'handler_type' is 'fix' and 'pert_mode' is {options.pert_mode.value!r}, whose results are no "
            "better than the training's own; fix with improve_precision or to_cpu, or take 'check'"
        )
    if options.if_preheat:
        _logger.warning(
            "%s: 'if_preheat' has no effect: limits follow from the arithmetic of each call, and need no calibration",
            where,
        )


def _check_scope(name: str, level: Level, where: str) -> None:
    """Refuse a name that no call has at this level: its window would never open or close."""
    try:
        site = names.parse_entry(name)
    except EntryNameError:
        site = None
    if site is None or site.phase not in {Phase.FORWARD, Phase.BACKWARD}:
        raise ConfigError(
            f"{where}: 'scope' has {name!r}, which no call is named; give whole names as dump.json has them, such as "
            "'Module.layers.0.mlp.MLP.forward.0' or 'Functional.linear.3.backward'"
        )
    if level is Level.L0 and site.kind is SiteKind.API:
        raise ConflictingSettingsError(
            f"{where}: 'scope' has {name!r}, the name of an API, but level L0 records modules only; give the name of a "
            "module, or take level mix"
        )


def _check_together(config: Config, where: str) -> None:
    if not config.dump_path.strip():
        raise ConfigError(f"{where}: 'dump_path' is empty; give the directory that the dump goes to")
    if config.aten and not config.level.has_apis and config.task is not Task.STRUCTURE:
        raise ConflictingSettingsError(
            f"{where}: 'aten' records operators below the APIs, and level {config.level.value} records no APIs; take "
            "level mix or L1, or leave 'aten' out"
        )
    if config.task is Task.STRUCTURE and not config.extra_info:
        raise ConflictingSettingsError(
            f"{where}: 'extra_info' is false, but the task 'structure' records nothing else; remove one"
        )
    if config.task is Task.OVERFLOW_CHECK and {DataMode.INPUT, DataMode.OUTPUT} & set(config.options.data_mode):
        raise ConflictingSettingsError(
            f"{where}: 'data_mode' leaves out a side of each call, but 'overflow_check' needs both; use forward or "
            "backward, or leave it out"
        )
    if config.task in (Task.ACC_CHECK, Task.FREE_BENCHMARK) and config.level is not Level.L1:
        task = config.task.value
        raise ConflictingSettingsError(
            f"{where}: '{task}' checks calls of APIs: take level L1, not {config.level.value}"
        )
    if config.extra_statistics and (config.task not in _WITH_STATISTICS or config.level is Level.L2):
        known = ", ".join(task.value for task in _WITH_STATISTICS)
        raise ConflictingSettingsError(
            f"{where}: 'extra_statistics' are recorded by the tasks {known}, at every level but L2; leave them out"
        )
    if config.twin is not None and (
        config.task not in (Task.STATISTICS, Task.TENSOR) or config.level in (Level.DEBUG, Level.L2)
    ):
        raise ConflictingSettingsError(
            f"{where}: 'twin' compares calls of each step: take the task statistics or tensor, at level L0, L1 or mix"
        )
    if config.level is Level.L2 and config.perturb is not None:
        raise ConflictingSettingsError(
            f"{where}: 'perturb' does not apply at level L2, whose kernels run compiled; remove one"
        )
    if config.level is Level.L2 and config.options.scope:
        raise ConflictingSettingsError(f"{where}: 'scope' does not apply at level L2; use 'list'")
    if config.level is not Level.DEBUG:
        for name in config.options.scope:
            _check_scope(name, config.level, where)
