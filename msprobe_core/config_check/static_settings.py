"""Settings in scripts and configuration files, without running them.

Of a shell script that is the command line of the program that it starts: ``torchrun``, ``msrun`` or ``python -m
torch.distributed.launch``, with the variables in it replaced by what the script assigned to them. A YAML file is
flattened. Settings that look like secrets are not kept.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msprobe_core.errors import ConfigError, MalformedConfigError, UnreadableConfigError
from msprobe_core.manifest.environment import is_number
from msprobe_core.manifest.facts import Scalar
from msprobe_core.manifest.secrets import cleaned
from msprobe_core.manifest.settings import flattened
from msprobe_core.untrusted.files import read_plain
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.yaml_text import load_yaml

SHELL_SUFFIXES, YAML_SUFFIXES = frozenset({".sh", ".bash"}), frozenset({".yaml", ".yml"})

_MAX_BYTES = 8 << 20
_MAX_VALUE = 1 << 16
_MAX_DEPTH = 20
_MOST_ASSIGNMENTS, _MOST_LAUNCHES = 20_000, 100
"""A script can put together far more than it has: each is read with the values of those before it."""

_ASSIGNMENT = re.compile(
    r"""^[ \t]*(?:export[ \t]+|local[ \t]+|declare[ \t]+(?:-\w+[ \t]+)*)?([A-Za-z_]\w*)(\+?)=
        (?:"((?:[^"\\]|\\.)*)" | '([^']*)' | \(([^()]*)\) | ([^\s;&|]*))""",
    re.MULTILINE | re.VERBOSE | re.ASCII,
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?(?::?[-=]([^{}]*))?\}|(\w+))", re.ASCII)
_LAUNCHES = re.compile(r"torchrun|msrun|torch\.distributed\.(?:launch|run)|deepspeed|accelerate", re.ASCII)
_ENDS = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "2>&1", "<", "&>", "1>", "2>"})


def read_settings(paths: Sequence[Path]) -> dict[str, Scalar]:
    """Return the settings in scripts and YAML files by name.

    A setting with several values is one text that has all of them, in the order of the files.

    Raises:
        ConfigError: a file cannot be read, is neither a script nor YAML, or is malformed.
    """
    found: dict[str, list[Scalar]] = {}
    for path in paths:
        for name, value in _settings_in(path).items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return {
        name: values[0] if len(values) == 1 else f"[{', '.join(map(str, values))}]" for name, values in found.items()
    }


def _settings_in(path: Path) -> Mapping[str, Scalar]:
    suffix = path.suffix.lower()
    if suffix not in SHELL_SUFFIXES | YAML_SUFFIXES:
        raise ConfigError(f"{path}: is neither a shell script (.sh) nor YAML (.yaml, .yml); give one of these")
    try:
        text = read_plain(path, _MAX_BYTES).decode("utf-8")
    except OSError as error:
        raise UnreadableConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise UnreadableConfigError(f"{path}: is not UTF-8 text ({error})") from error
    if suffix in SHELL_SUFFIXES:
        return {name: cleaned(name, value) for name, value in shell_settings(text).items()}
    try:
        content = load_yaml(text)
    except MalformedError as error:
        raise MalformedConfigError(f"{path}: is no YAML ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds no settings; expected names with values")
    return {name: cleaned(name, value) for name, value in flattened(content).items()}  # pyright: ignore[reportUnknownArgumentType]


def shell_settings(text: str) -> dict[str, Scalar]:
    """Return the options of the launch command of a script; a flag without a value is true.

    Args:
        text: The script. Nothing of it is run: ``$(…)`` and conditions are left as they are.
    """
    text = re.sub(r"\\\r?\n", " ", re.sub(r"(?m)(^|[ \t])#.*$", "", text))
    variables = _variables(text)
    found: dict[str, Scalar] = {}
    launches = (line for line in text.splitlines() if _LAUNCHES.search(line) and not _ASSIGNMENT.match(line))
    for line in itertools.islice(launches, _MOST_LAUNCHES):
        found |= _options(_words(_expanded(line, variables, 0)))
    # A launch of the script in a way that is not known: its blocks of arguments have the settings all the same.
    if not found:
        endings = ("ARGS", "ARGUMENTS", "OPTIONS", "OPTS", "PARAMS")
        blocks = (value for name, value in variables.items() if name.upper().endswith(endings))
        for value in itertools.islice(blocks, _MOST_LAUNCHES):
            found |= _options(_words(_expanded(value, variables, 0)))
    return found


def _variables(text: str) -> dict[str, str]:
    """Return what a script assigns to its variables, the last value of each."""
    found: dict[str, str] = {}
    for match in itertools.islice(_ASSIGNMENT.finditer(text), _MOST_ASSIGNMENTS):
        double, single, several, bare = match.groups()[2:]
        value = next(each for each in (double, single, several, bare) if each is not None)
        if len(value) > _MAX_VALUE:
            continue
        name = match[1]
        before = found.get(name, "")
        # ARGS="$ARGS --more": itself is what it was.
        value = _replaced(value, lambda own, name=name, before=before: before if _name(own) == name else own[0])
        joined = f"{before} {value}" if match[2] else value
        found[name] = joined[:_MAX_VALUE]
    return found


def _name(match: re.Match[str]) -> str:
    return match[1] or match[3]


def _expanded(text: str, variables: Mapping[str, str], depth: int) -> str:
    """Return a text with variables replaced; unknown ones stay."""
    if depth > _MAX_DEPTH:
        return text

    def value(match: re.Match[str]) -> str:
        default: str | None = match[2]
        return variables.get(_name(match), match[0] if default is None else default)

    replaced = _replaced(text, value)
    return replaced if replaced == text else _expanded(replaced, variables, depth + 1)


def _replaced(text: str, value: Callable[[re.Match[str]], str]) -> str:
    """Return at most `_MAX_VALUE` characters of a text with variables replaced; more are never put together."""
    parts: list[str] = []
    size = end = 0
    for match in _VARIABLE.finditer(text):
        found = value(match)
        parts += [text[end : match.start()], found]
        size += match.start() - end + len(found)
        end = match.end()
        if size >= _MAX_VALUE:
            break
    else:
        parts.append(text[end:])
    return "".join(parts)[:_MAX_VALUE]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote that is not closed
        return line.replace('"', " ").replace("'", " ").split()


def _options(words: Sequence[str]) -> dict[str, Scalar]:
    """Return ``--name value``, ``--name=value``, ``--flag`` and ``name=value`` (hydra's) as settings."""
    found: dict[str, Scalar] = {}
    name: str | None = None
    for word in _of_command(words):
        if word.endswith(".py"):  # the program; what follows are its own
            name = None
        elif word.startswith("-") and not is_number(word) and word.strip("-"):
            name, mark, value = word.lstrip("-").partition("=")
            found[name] = value if mark else True
            name = None if mark else name
        elif name is not None:
            before = found[name]
            found[name] = word if before is True else f"{before} {word}"
        elif "=" in word and word.partition("=")[0].lstrip("+").replace(".", "").replace("_", "").isalnum():
            own, _, value = word.partition("=")
            found[own.lstrip("+")] = value
    found.pop("m", None)  # python -m torch.distributed.launch
    return found


def _of_command(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word in _ENDS:
            return
        yield word
