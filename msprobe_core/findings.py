"""Findings: what a command has found, as data.

A finding is a code, a level and fields. Scripts rely on these; people read a text, which is made from a template with
the same code. Templates are in ``wording/en.json`` and ``wording/zh.json``, one entry per code, and nowhere else; the
page has the same files. A plugin has codes of its own with templates in its own package, see `Code.package`.

A template is plain text with fields in braces:

``{row}``
    Text as it is, an integer in digits, a float with three significant digits, another finding in the same language,
    several values with commas between them; ``None`` is *unknown*.
``{clauses:;}``
    Several values with semicolons between them.
``{sentences: }``
    Several values one after the other.
``{score:.2g}``
    A number in another format of Python's: ``,`` or a precision followed by ``g``, ``f`` or ``e``.
``{score:times}``
    How many times something else a number is: two digits below ten, none after the point above.
``{count:call|calls}``
    A number and the word for it: *1 call*, *3 calls*.
``{kind:word}``
    A member of a closed set, by its entry among the file's ``words``; as it is if it has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union, cast

import msgspec


class Code(str, Enum):
    """Base of the enumerations of codes; each room that finds something has its own."""

    @classmethod
    def package(cls) -> str:
        """Return the import name of the package whose directory ``wording`` has the templates.

        A plugin's enumeration returns the plugin's own.
        """
        return "msprobe_core"


class NoteCode(Code):
    """Of what is known as a text only: what readers of dumps note, and messages of errors."""

    TEXT = "note.text"


def code_of(value: str) -> Code:
    """Return the code with a value; its enumeration must have been imported.

    Raises:
        ValueError: there is none.
    """
    kinds = [Code]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if value in kind._value2member_map_:
            return kind(value)
    raise ValueError(f"there is no finding with the code {value!r}")


class Level(str, Enum):
    """How bad a finding is, the worst first."""

    ERROR = "error"
    UNMATCHED = "unmatched"
    WARNING = "warning"
    NOTE = "note"


class Language(str, Enum):
    """In which findings can be worded."""

    ENGLISH = "en"
    CHINESE = "zh"


Field: TypeAlias = Union[str, int, float, "Finding", Sequence["Field"], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        code: What was found; stable between releases.
        level: How bad it is.
        fields: The values that its template names.
    """

    code: Code
    level: Level = Level.NOTE
    fields: Mapping[str, Field] = field(default_factory=dict[str, Field])

    if not TYPE_CHECKING:
        # For msgspec, which decodes neither an enumeration without members nor a recursive union.
        __annotations__ = {"code": str, "level": Level, "fields": dict[str, Any]}

    def __post_init__(self) -> None:
        code = cast("object", self.code)
        if not isinstance(code, Code):  # a finding that was stored
            object.__setattr__(self, "code", code_of(str(code)))
            object.__setattr__(self, "fields", {name: _stored(value) for name, value in self.fields.items()})

    @classmethod
    def of(cls, code: Code, level: Level = Level.NOTE, /, **fields: Field) -> Finding:
        """Return a finding whose fields are the further arguments."""
        return cls(code, level, fields)

    @property
    def text(self) -> str:
        """The finding in English."""
        return worded(self)

    def __str__(self) -> str:
        return self.text


def _stored(value: Any) -> Field:
    if isinstance(value, dict):
        return msgspec.convert(value, Finding)
    return [_stored(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value


def noted(text: str | Finding) -> Finding:
    """Return a text that is no template, such as the message of an error, as a finding; a finding as it is."""
    return text if isinstance(text, Finding) else Finding(NoteCode.TEXT, Level.NOTE, {"text": text})


def with_fields_of(values: Mapping[str, Field], code: Code) -> Finding:
    """Return a note with those of some values that the template of its code names."""
    places = [part for part in template_of(code) if isinstance(part, Place)]
    return Finding(code, fields={place.field: values[place.field] for place in places})


def each_once(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings without those that say what an earlier one does."""
    found: dict[str, Finding] = {}
    for finding in findings:
        found.setdefault(finding.text, finding)
    return list(found.values())


class Place(NamedTuple):
    """Place of a field in a template.

    Attributes:
        field: Its name.
        spec: What follows the colon; empty if there is none.
    """

    field: str
    spec: str


Template: TypeAlias = Sequence[str | Place]
"""Texts and places, in their order."""


class Wording(msgspec.Struct, frozen=True):
    """The templates of one package in one language.

    Attributes:
        findings: Template by code.
        words: Word by member of a closed set; a member without an entry is its own word.
    """

    findings: dict[str, str]
    words: dict[str, str] = {}


_PLACE = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
_UNKNOWN = {Language.ENGLISH: "unknown", Language.CHINESE: "未知"}
_COMMA = {Language.ENGLISH: ", ", Language.CHINESE: "、"}
_BETWEEN = {
    ";": {Language.ENGLISH: "; ", Language.CHINESE: ";"},
    " ": {Language.ENGLISH: " ", Language.CHINESE: ""},
}
"""What stands between several values, by what a template asks for; else a comma."""


def worded(finding: Finding, language: Language = Language.ENGLISH) -> str:
    """Return a finding as a text.

    Raises:
        KeyError: its code has no template in this language, or a field of the template is missing.
    """
    return "".join(
        part if isinstance(part, str) else _filled(finding, part, language)
        for part in template_of(finding.code, language)
    )


@cache
def template_of(code: Code, language: Language = Language.ENGLISH) -> Template:
    """Return the template of a code, taken apart.

    Raises:
        KeyError: it has none in this language.
    """
    template, parts, end = wording(code.package(), language).findings[code.value], list[str | Place](), 0
    for place in _PLACE.finditer(template):
        parts += [template[end : place.start()], Place(place[1], place[2] or "")]
        end = place.end()
    return [part for part in (*parts, template[end:]) if part]


@cache
def wording(package: str, language: Language) -> Wording:
    """Return the templates of a package in a language."""
    file = resources.files(package) / "wording" / f"{language.value}.json"
    return msgspec.json.decode(file.read_bytes(), type=Wording)


def _filled(finding: Finding, place: Place, language: Language) -> str:
    words = wording(finding.code.package(), language).words
    return as_text(finding.fields[place.field], place.spec, language, words)


def as_text(value: Field, spec: str, language: Language, words: Mapping[str, str]) -> str:
    """Return the value of a field as a template's place has it.

    Args:
        value: The value.
        spec: What the place says after the colon.
        language: Of the template.
        words: By member of a closed set, in this language.
    """
    if value is None:
        return _UNKNOWN[language]
    if isinstance(value, Finding):
        return worded(value, language)
    if isinstance(value, str):
        plain = value.value if isinstance(value, Enum) else value
        return words.get(plain, plain) if spec == "word" else plain
    if not isinstance(value, (int, float)):
        between = _BETWEEN.get(spec, _COMMA)[language]
        return between.join(as_text(each, spec, language, words) for each in value)
    if "|" in spec:
        one, several = spec.split("|")
        return f"{value:,} {one if value == 1 else several}"
    return format(value, _times(value) if spec == "times" else spec or (".3g" if isinstance(value, float) else "d"))


def _times(value: float) -> str:
    return ".1e" if value >= 1e6 else ".2g" if value < 10 else ",.0f"


def content_of(finding: Finding) -> dict[str, object]:
    """Return a finding in JSON's own types: ``code``, ``level`` and ``fields``; numbers that JSON has not are text."""
    fields = {name: _as_json(value) for name, value in finding.fields.items()}
    return {"code": finding.code.value, "level": finding.level.value, "fields": fields}


def text_and_content(key: str, found: Finding | Sequence[Finding] | None) -> dict[str, object]:
    """Return what files for programs have of findings: their text at ``key``, and `content_of` at ``{key}_finding``.

    Args:
        key: Of the text.
        found: One; several, which give a list of texts and one of contents; ``None``, which gives nulls.
    """
    if found is None or isinstance(found, Finding):
        both = (None, None) if found is None else (found.text, content_of(found))
    else:
        both = [each.text for each in found], [content_of(each) for each in found]
    return dict(zip((key, f"{key}_finding"), both, strict=True))


def _as_json(value: Field) -> object:
    if isinstance(value, Finding):
        return content_of(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    return [_as_json(each) for each in value]


def finding_of(content: Mapping[str, Any]) -> Finding:
    """Return the finding of which `content_of` has made this.

    Raises:
        KeyError: none of the enumerations that were imported has its code.
    """
    fields = {name: _from_json(value) for name, value in content["fields"].items()}
    return Finding(_code(content["code"]), Level(content["level"]), fields)


def read_finding(text: str, content: Mapping[str, Any] | None) -> Finding:
    """Return a finding of a file; its text alone if its code or fields are unknown to this release.

    Args:
        text: The finding as text.
        content: What `content_of` has made of it, or what a file claims to be that; ``None`` if the file has none.
    """
    try:
        found = noted(text) if content is None else finding_of(content)
        return found if found.text else noted(text)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return noted(text)


def _from_json(value: Any) -> Field:
    if isinstance(value, Mapping):
        return finding_of(cast("Mapping[str, Any]", value))
    return [_from_json(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value


def _code(value: str) -> Code:
    _import_codes()
    try:
        return code_of(value)
    except ValueError as error:
        raise KeyError(value) from error


@cache
def _import_codes() -> None:
    """Import the core's enumerations, which are known only then."""
    for module in walk_packages([str(Path(__file__).parent)], "msprobe_core."):
        if module.name.endswith("_codes"):
            import_module(module.name)
