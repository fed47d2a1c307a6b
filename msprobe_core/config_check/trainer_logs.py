"""Settings that trainers of reinforcement learning print into their logs: verl and slime.

What a log says is parsed as data, never evaluated; the last configuration in a log counts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, cast

from msprobe_core.config_check.static_settings import YAML_SUFFIXES
from msprobe_core.config_check.values import same
from msprobe_core.errors import ConfigError, MalformedConfigError, UnreadableConfigError
from msprobe_core.manifest.facts import Scalar
from msprobe_core.manifest.secrets import cleaned
from msprobe_core.untrusted.files import read_plain, reading
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.yaml_text import load_yaml

LOG_SUFFIXES = frozenset({".log", ".txt", ".out"})

_MAX_LOG_BYTES = 1 << 30
_MAX_TEXT = 4 << 20
_MOST_MARKS, _BEFORE_MARK = 16, 1 << 16
_MAX_DEPTH = 64

_ABSENT = "NA"

_VERL = re.compile(r"\{\s*'actor_rollout_ref'\s*:")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_RAY_PREFIX = re.compile(r"^\([^()\n]{1,200}\bpid=\d+[^()\n]{0,100}\)\s?")

_SLIME_BEGIN = re.compile(r"-{10}[ \t]+arguments\b")
_SLIME_END = re.compile(r"end of arguments")
_SLIME_LINE = re.compile(r"(?<![\w.-])([A-Za-z_][\w.-]*) \.{2,} ?(.*)$")


@dataclass(frozen=True, slots=True)
class SettingPair:
    """A setting of two sides; ``None`` as text stands for a side without it.

    Attributes:
        name: Its path, with slashes.
        target: The target's value as its program would print it; ``NA`` if it has none.
        golden: The golden run's.
        is_same: Whether both mean the same.
    """

    name: str
    target: str
    golden: str
    is_same: bool


def read_verl_log(path: Path) -> dict[str, Any]:
    """Return the last configuration that verl has printed into a log, as nested objects, without secrets.

    Raises:
        ConfigError: the file cannot be read, is no log, or has no configuration.
    """
    text = _log_text(path, b"'actor_rollout_ref'")
    found = [*_VERL.finditer(text)]
    for match in reversed(found):  # the last one may be cut off
        config = _dict_at(text, match.start())
        if config is not None:
            return cast("dict[str, Any]", _without_secrets("", config))
    why = "it is cut off, or is no literal" if found else "there is none"
    raise ConfigError(
        f"{path}: holds no configuration of verl ({why}); looked for a dict that begins with "
        "{'actor_rollout_ref': …, which verl prints when it starts; give the log of the whole training"
    )


def read_slime_log(path: Path) -> dict[str, Any]:
    """Return the last arguments that slime has printed into a log, without secrets.

    Raises:
        ConfigError: the file cannot be read, is no log, or has no arguments.
    """
    found: dict[str, Any] | None = None
    block: dict[str, Any] | None = None
    for line in _log_text(path, b"- arguments").splitlines():
        if _SLIME_BEGIN.search(line):
            block = {}
        elif block is not None and _SLIME_END.search(line):
            found, block = block or found, None
        elif block is not None and (match := _SLIME_LINE.search(line)) is not None:
            name = match[1]
            if "profile" not in name:
                block[name] = _cleaned(name, _literal(match[2].strip()))
    if not found:
        raise ConfigError(
            f"{path}: holds no arguments of slime; looked for lines 'name ..... value' between "
            "'------------------------ arguments' and 'end of arguments', which it prints when it starts"
        )
    return found


def _cleaned(name: str, value: Any) -> Any:
    """Return a value without secrets, whatever its type."""
    return cleaned(name, value) if isinstance(value, str) else _without_secrets(name, value)


def _log_text(path: Path, mark: bytes) -> str:
    """Return the text of a log around its last places with a mark; the rest, which may be most of it, is not decoded.

    Raises:
        ConfigError: it cannot be read, or is no log.
    """
    if path.suffix.lower() not in LOG_SUFFIXES:
        raise ConfigError(f"{path}: is no log; expected a file that ends in {', '.join(sorted(LOG_SUFFIXES))}")
    with reading(path, UnreadableConfigError):
        content = read_plain(path, _MAX_LOG_BYTES)
    places: list[int] = []
    end = len(content)
    while len(places) < _MOST_MARKS and (end := content.rfind(mark, 0, end)) >= 0:
        places.append(end)
    parts: list[bytes] = []
    begin = 0
    for place in reversed(places):
        first = max(begin, content.rfind(b"\n", 0, max(0, place - _BEFORE_MARK)) + 1, place - 2 * _BEFORE_MARK)
        parts.append(b"\n" if first > begin else b"")
        begin = max(begin, place + _MAX_TEXT)
        parts.append(content[first:begin])
    return _ANSI.sub("", b"".join(parts).decode("utf-8", "replace").replace("\r\n", "\n"))


# --- dicts in a log --------------------------------------------------------------------------------------------------


def _dict_at(text: str, begin: int) -> dict[str, Any] | None:
    """Return the dict that begins here; lines may have the prefix of its first one, or one of Ray."""
    line_begin = text.rfind("\n", 0, begin) + 1
    strip = _stripper(text[line_begin:begin])
    lines = text[begin : begin + _MAX_TEXT].split("\n")
    stripped = "\n".join([lines[0], *map(strip, lines[1:])])
    end = _end_of_dict(stripped)
    if end is None:
        return None
    for joined in (stripped[:end], stripped[:end].replace("\n", "")):  # a line may be broken within a word
        value = _literal(joined)
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
    return None


def _stripper(prefix: str) -> Callable[[str], str]:
    """Return what removes the prefix of a log's lines; its numbers, such as times, may be other ones."""
    if not prefix.strip():
        return lambda line: _RAY_PREFIX.sub("", line)
    pattern = re.compile("^" + r"\d+".join(map(re.escape, re.split(r"\d+", prefix))))
    return lambda line: _RAY_PREFIX.sub("", pattern.sub("", line))


def _end_of_dict(text: str) -> int | None:
    """Return the place after the bracket that closes the first one; ``None`` if there is none, or too much depth."""
    depth, quote, is_escaped = 0, "", False
    for place, letter in enumerate(text):
        if quote:
            if is_escaped:
                is_escaped = False
            elif letter == "\\":
                is_escaped = True
            elif letter == quote:
                quote = ""
        elif letter in "'\"":
            quote = letter
        elif letter in "{[(":
            depth += 1
            if depth > _MAX_DEPTH:
                return None
        elif letter in "}])":
            depth -= 1
            if not depth:
                return place + 1
    return None


def _literal(text: str) -> Any:
    """Return the value of a Python literal; what is none within it, such as ``PosixPath('a')``, is text."""
    if len(text) > _MAX_TEXT:
        return text
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, text.strip(), 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return text


def _value(node: ast.expr, text: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError(text[:20])
    match node:
        case ast.Constant():
            return node.value if isinstance(node.value, str | int | float | bool | None) else str(node.value)
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            return {str(_value(key, text, depth + 1)): _value(each, text, depth + 1) for key, each in pairs if key}
        case ast.List() | ast.Tuple() | ast.Set():
            return [_value(each, text, depth + 1) for each in node.elts]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case _:
            return ast.get_source_segment(text, node) or ""


def _without_secrets(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: _without_secrets(f"{name}.{key}".removeprefix("."), each) for key, each in items}
    if isinstance(value, list):
        return [_without_secrets(name, each) for each in cast("list[Any]", value)]
    return cleaned(name, value)


# --- comparison ------------------------------------------------------------------------------------------------------


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by path, with slashes; lists are values."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        path = f"{prefix}/{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            found |= flat(cast("Mapping[str, Any]", value), path)
        else:
            found[path] = value
    return found


def compare_logged(target: Mapping[str, Any], golden: Mapping[str, Any]) -> list[SettingPair]:
    """Return the settings of two logs by path; profilers and Ray's own are left out."""
    own, other = flat(target), flat(golden)
    paths = sorted(path for path in {*own, *other} if "profiler/" not in path and "ray_" not in path)
    return [_pair(path, own, other) for path in paths]


def verify_logged(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[SettingPair]:
    """Return the wanted settings, with what a log has of each.

    A variable of the environment is found wherever the configuration sets it.
    """
    own, other = flat(config), flat(wanted)
    for path in other:
        if path not in own and "/" not in path:
            place = next((each for each in own if each.endswith(f"/env_vars/{path}")), None)
            own |= {} if place is None else {path: own[place]}
    return [_pair(path, own, other) for path in sorted(other)]


def _pair(path: str, own: Mapping[str, Any], other: Mapping[str, Any]) -> SettingPair:
    values = own.get(path, _ABSENT), other.get(path, _ABSENT)
    texts = tuple(_ABSENT if path not in side else repr(side[path]) for side in (own, other))
    is_same = path in own and path in other and (texts[0] == texts[1] or same(_scalar(values[0]), _scalar(values[1])))
    return SettingPair(path, texts[0], texts[1], is_same)


def _scalar(value: Any) -> Scalar:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def read_wanted(path: Path | None) -> dict[str, Any]:
    """Return settings that must be so: those of a YAML file, or the built-in ones for verl.

    Raises:
        ConfigError: the file cannot be read, or holds no settings.
    """
    if path is None:
        text, shown = (resources.files(__package__ or "") / "verl_settings.yaml").read_text("utf-8"), "verl_settings"
    else:
        shown = str(path)
        if path.suffix.lower() not in YAML_SUFFIXES:
            raise ConfigError(f"{path}: is no YAML file; expected one that ends in .yaml or .yml")
        try:
            text = read_plain(path, _MAX_TEXT).decode("utf-8")
        except OSError as error:
            raise UnreadableConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
        except UnicodeDecodeError as error:
            raise UnreadableConfigError(f"{path}: is not UTF-8 text ({error})") from error
    try:
        found = load_yaml(text)
    except MalformedError as error:
        raise MalformedConfigError(f"{shown}: is no YAML ({error})") from error
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"{shown}: holds no settings; expected names with values")
    return cast("dict[str, Any]", found)
