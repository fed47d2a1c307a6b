"""Findings of every code of the core, with numbers that are hard to format, in the places of their templates."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import cycle
from pathlib import Path

import msprobe_core
from msprobe_core.findings import Code, Field, Finding, Language, Level, NoteCode, Place, template_of

_CORE = Path(msprobe_core.__file__).parent

_FLOATS: Sequence[Field] = (
    1.25e-7, 0.000123456, 0.0001, 2.0, 0.5, 0.125, 2.5, 9.995, 1234.5, 123456.0, 1e6, 2.5e6, 1e22, -0.0375, 0.0,
    float("inf"), float("nan"),
)  # fmt: skip
_INTEGERS: Sequence[Field] = (0, 1, 2, 999, 1000, 1234567, -5)
_PLAIN: Sequence[Field] = (
    "Functional.linear.0", *_FLOATS, *_INTEGERS, None, "{code}", ["a", 2, 0.5],
    Finding(NoteCode.TEXT, fields={"text": "within"}),
    [Finding(NoteCode.TEXT, fields={"text": "one"}), Finding(NoteCode.TEXT, fields={"text": "two"})],
)  # fmt: skip
_LISTS: Sequence[Field] = (["one", "two"], [Finding(NoteCode.TEXT, fields={"text": "one"})])


def core_codes(base: type[Code] = Code) -> Iterator[Code]:
    """Yield every code of the core."""
    for path in _CORE.rglob("*_codes.py"):  # a class is known once its module is imported
        import_module(".".join(path.relative_to(_CORE.parent).with_suffix("").parts))
    for kind in base.__subclasses__():
        if kind.__module__.startswith("msprobe_core."):
            yield from kind
            yield from core_codes(kind)


def filled(code: Code, number: int = 8) -> Iterator[Finding]:
    """Yield some findings of a code."""
    both = [part for language in Language for part in template_of(code, language) if isinstance(part, Place)]
    # One language may have a format where the other has none.
    places = {part.field: part.spec for part in both} | {part.field: part.spec for part in both if part.spec}
    values = {name: cycle(_values(spec)) for name, spec in places.items()}
    for i, own in enumerate(values.values()):
        for _ in range(i * 3 + len(code.value) % 7):
            next(own)
    for _ in range(number if places else 1):
        yield Finding(code, Level.ERROR, {name: next(own) for name, own in values.items()})


def _values(spec: str) -> Sequence[Field]:
    if spec == "word":
        return ("target", "golden", "none of these words", "scale", "a tensor", None)
    if spec in (";", " "):
        return _LISTS
    if "|" in spec:
        return _INTEGERS
    if spec == ",":
        return (*_INTEGERS, 7_654_321)
    return (*_FLOATS, *_INTEGERS) if spec else _PLAIN
