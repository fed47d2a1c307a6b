"""Recognise what a file is, and say what it means here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from msprobe_core import names
from msprobe_core.api_check.op_config import read_op_config
from msprobe_core.api_check.settings_file import CheckSettings, read_settings
from msprobe_core.compare.mapping_files import read_matching
from msprobe_core.config.load import CONFIG_FIELDS
from msprobe_core.config.text import read_text
from msprobe_core.errors import ConfigError, MalformedConfigError
from msprobe_core.migrate.configuration import BLOCKS, meanings_of
from msprobe_core.migrate.messages import gathered
from msprobe_core.migrate.result import FieldMeaning, Migrated, MigratedFile, Standing
from msprobe_core.monitor.plan_file import load_plan
from msprobe_core.monitor.plan_file_v2 import load_second_plan
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.yaml_text import load_yaml

SUFFIXES: Final = (".json", ".yaml", ".yml")
MOST_FILES: Final = 1000
"""Files of a directory that are looked at."""
MOST_NAMED: Final = 10
"""Files that cannot be read, and are named."""
MOST_BYTES: Final = 1 << 20
"""Larger files of a directory are data, and not looked at."""

_MONITOR: Final = {
    "targets", "ops", "xy_distribution", "wg_distribution", "mv_distribution", "param_distribution", "cc_distribution",
    "print_struct", "stack_info",
}  # fmt: skip
_RECORDED: Final = {"dump_data_dir", "schema"}
"""Fields of dumps and of manifests, which are beside configurations and share fields with them."""
_CHECKS: Final = {*CheckSettings.__struct_fields__}
_REQUEST: Final = {
    "npu_path": "",
    "bench_path": "",
    "stack_path": "",
    "rank_id": "",
    "step_id": "",
    "is_print_compare_log": "without effect: results are in the table and on the terminal",
    "common": "without effect: dynamic and static dumps of a directory are found without it",
    "map_dict": "without effect: name the files of mappings with -dm, -cm, -am and -lm",
}
_API: Final = re.compile(
    r"(?:Distributed|Functional|Torch|Tensor|Mint|MintFunctional|MintDistributed|Primitive|Aten|VF|NPU|Jit)\.\w+"
)
_NAMED_API: Final = "this form fails there; it works here"


def migrated(path: Path) -> Migrated:
    """Say what a file means here, or every known file in a directory.

    Args:
        path: The file or the directory.

    Raises:
        ConfigError: the file cannot be read or is of no known kind, or the directory has none of a known kind.
    """
    if not path.is_dir():
        found = _migrated(path)
        if found is None:
            raise ConfigError(
                f"{path}: is no file of a known kind: a configuration of the debugger, the monitor, acc_check or "
                "op_generate, a compare.json, or a mapping"
            )
        return Migrated([found])
    files, unreadable, num_others = list[MigratedFile](), list[str](), 0
    for each in _candidates(path):
        try:
            found = _migrated(each)
        except ConfigError as error:
            unreadable.append(str(error))
            continue
        if found is None:
            num_others += 1
        else:
            files.append(found)
    if not files:
        also = f"; {'; '.join(unreadable[:MOST_NAMED])}" if unreadable else ""
        raise ConfigError(f"{path}: has no file of a known kind; {num_others} others were looked at{also}; name a file")
    return Migrated(files, unreadable, num_others)


def _candidates(directory: Path) -> Iterator[Path]:
    number = 0
    for place, folders, files in os.walk(directory):
        folders.sort()
        for name in sorted(files):
            path = Path(place, name)
            if path.suffix.lower() not in SUFFIXES or path.is_symlink() or path.stat().st_size > MOST_BYTES:
                continue
            number += 1
            if number > MOST_FILES:
                raise ConfigError(f"{directory}: has more than {MOST_FILES} files; name a smaller directory")
            yield path


def _migrated(path: Path) -> MigratedFile | None:
    content = _content_of(path)
    if isinstance(content, dict):
        fields = {str(name): value for name, value in cast("dict[Any, Any]", content).items()}
        return _of_object(path, fields) if fields else None
    if isinstance(content, list):
        entries = cast("list[Any]", content)
        if entries and all(isinstance(each, dict) and "ms_api" in each for each in entries):
            return _mapping(path, "a mapping of APIs", "msprobe compare -am", "api_mapping", entries)
    return None


def _content_of(path: Path) -> object:
    text = read_text(path, kind="a configuration or a mapping", advice="give the path of a JSON or YAML file")
    try:
        return json.loads(text) if path.suffix.lower() == ".json" else load_yaml(text)
    except (ValueError, MalformedError, RecursionError) as error:
        raise MalformedConfigError(f"{path}: is neither JSON nor YAML ({' '.join(str(error).split())})") from error


def _of_object(path: Path, fields: Mapping[str, Any]) -> MigratedFile | None:
    given = fields.keys()
    if given & _RECORDED:
        return None
    if "monitors" in given:
        read: Callable[[Path], object] = load_second_plan
        return _plan(path, fields, "TrainerMonitorV2(…)", read, "msprobe_core.monitor.plan_file_v2")
    if given & _MONITOR:
        return _plan(path, fields, "TrainerMon(…)", load_plan, "msprobe_core.monitor.plan_file")
    if given & {"npu_path", "bench_path"}:
        return _request(path, fields)
    if "extract_api_path" in given:
        return _checked(path, fields, "a configuration of op_generate", "msprobe op_generate -i", read_op_config)
    if given <= _CHECKS:
        return _checked(path, fields, "a configuration of acc_check", "msprobe acc_check -config", read_settings)
    if given & (BLOCKS | CONFIG_FIELDS):
        meanings, content = meanings_of(fields)
        return MigratedFile(
            path=path, kind="a configuration of the debugger", used_by="PrecisionDebugger(…)", meanings=meanings,
            content=content,
        )  # fmt: skip
    return _mapping_of(path, fields)


def _plan(
    path: Path, fields: Mapping[str, Any], used_by: str, read: Callable[[Path], object], logger: str
) -> MigratedFile:
    kind = "a configuration of the monitor"
    with gathered(logger) as messages, gathered("msprobe_core.monitor.plan_file") as shared:
        found = _checked(path, fields, kind, used_by, read)
    said = {name: text for text in (*messages, *shared) for name in fields if f"'{name}'" in text}
    meanings = [
        FieldMeaning(each.field, Standing.DIFFERENT, said[each.field].partition(": ")[2])
        if each.standing is Standing.SAME and each.field in said
        else each
        for each in found.meanings
    ]
    return MigratedFile(path=path, kind=kind, used_by=used_by, meanings=meanings)


def _checked(
    path: Path, fields: Mapping[str, Any], kind: str, used_by: str, read: Callable[[Path], object]
) -> MigratedFile:
    """Say of a file that is used as it is whether its reader takes it."""
    meanings = [FieldMeaning(name, Standing.SAME) for name in fields]
    try:
        read(path)
    except ConfigError as error:
        text = str(error).removeprefix(f"{path}: ").removeprefix(f"{path.absolute()}: ")
        meanings = [each for each in meanings if f"'{each.field}'" not in text]
        wrong = next((name for name in fields if f"'{name}'" in text), "")
        meanings.append(FieldMeaning(wrong, Standing.REFUSED, text))
    return MigratedFile(path=path, kind=kind, used_by=used_by, meanings=meanings)


def _request(path: Path, fields: Mapping[str, Any]) -> MigratedFile:
    meanings: list[FieldMeaning] = []
    for name in fields:
        text = _REQUEST.get(name, "unknown field; it is ignored")
        meanings.append(FieldMeaning(name, Standing.DIFFERENT if text else Standing.SAME, text))
    for name in ("npu_path", "bench_path"):
        if not isinstance(fields.get(name), str):
            meanings = [each for each in meanings if each.field != name]
            meanings.append(FieldMeaning(name, Standing.REFUSED, "must be the path of a dump or of a directory"))
    return MigratedFile(path=path, kind="a request", used_by="msprobe compare -i", meanings=meanings)


def _mapping_of(path: Path, fields: Mapping[str, Any]) -> MigratedFile | None:
    """Return what a file means whose keys are names of rows, APIs, layers or modules; ``None`` if they are none."""
    values = list(fields.values())
    if all(isinstance(value, dict) for value in values):
        return _mapping(path, "a mapping of layers", "msprobe compare -lm", "layer_mapping", [*fields])
    if not all(isinstance(value, str) for value in values):
        return None
    pairs = [*fields, *values]
    if all(re.search(names.ROLE_IN_ROW, name) for name in pairs):
        return _mapping(path, "a mapping of rows", "msprobe compare -dm", "data_mapping", [*fields])
    if all(_API.fullmatch(name) for name in pairs):
        return _mapping(path, "a mapping of APIs", "msprobe compare -am", "api_mapping", [*fields], _NAMED_API)
    if all(re.fullmatch(r"[\w.*]+\.\w+", name) for name in pairs):
        return _mapping(path, "a mapping of modules", "msprobe compare -cm", "cell_mapping", [*fields])
    return None


def _mapping(path: Path, kind: str, used_by: str, option: str, entries: Sequence[Any], text: str = "") -> MigratedFile:
    field = f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}"
    meaning = FieldMeaning(field, Standing.DIFFERENT if text else Standing.SAME, text)
    try:
        read_matching(**cast("dict[str, Any]", {option: path}))
    except ConfigError as error:
        meaning = FieldMeaning(field, Standing.REFUSED, str(error).removeprefix(f"{path}: "))
    return MigratedFile(path=path, kind=kind, used_by=used_by, meanings=[meaning])
