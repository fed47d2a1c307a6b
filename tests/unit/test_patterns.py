"""No regular expression of ours takes more than linear time on hostile text.

Python's engine backtracks: two adjacent parts that accept the same characters, or a search that restarts at each
position, can need quadratic time. So every pattern in the sources runs on texts of 40 kB that repeat its own parts and
end in a character that it rejects. Users' patterns and those of columns go to polars, whose engine is linear.
"""

import ast
import re
import time
from pathlib import Path

import pytest
import yaml

from msprobe_core import names
from msprobe_core.config import edit

REPOSITORY = Path(__file__).parents[2]
METHODS = {"match", "fullmatch", "search", "sub", "findall", "finditer", "split"}
NUM_CHARS = 40_000
CPU_SECONDS = 1.0
"""Linear patterns need some milliseconds, quadratic ones three seconds and more."""

TESTED_ELSEWHERE = {
    "msprobe_core/bisect_steps/checkpoint_pairs.py: f'{re.escape(begin)}0*(\\\\d{{1,15}}){re.escape(end)}'": (
        "of the user, around zeros and fifteen digits, and applied to whole names of files"
    ),
    "msprobe_core/config/edit.py: pattern": "test_edits_take_linear_time",
    "msprobe_core/judge/limits.py: pattern": "alternatives of plain words",
    "msprobe_core/capture/kernel_dump.py: found[1]": "compiled for its message only; the framework applies it",
    "msprobe_core/checkpoint/compare.py: only": "of the user",
    "msprobe_core/rl/weight_chain.py: text": "of the user",
    "msprobe_core/store/convert.py: re.escape(f'.{destination.name}.') + '[0-9a-f]{8}\\\\.old'": (
        "an escaped text and eight digits, from the beginning of a name"
    ),
    "msprobe_core/cli/checkpoint.py: only or ''": "of the user",
    "msprobe_core/config_check/trainer_logs.py: '^' + '\\\\d+'.join(map(re.escape, re.split('\\\\d+', prefix)))": (
        "escaped texts and runs of digits, from the beginning of a line"
    ),
    "msprobe_core/locate/explain.py: pattern": "test_explanations_take_linear_time",
    "msprobe_core/locate/explain.py: cause.paths": "test_explanations_take_linear_time",
}
"""Patterns that are made while the program runs."""


def modules():
    rooms = [REPOSITORY / "msprobe_core", *(REPOSITORY / "plugins").glob("*/msprobe")]
    return sorted(path for room in rooms for path in room.rglob("*.py") if "import re\n" in path.read_text())


def uses_in(path):
    """Yield ``(pattern, method)`` for each use of ``re`` in a module; of unknown patterns, the expression as text."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    values = {ast.unparse(node.targets[0]): node.value for node in nodes if isinstance(node, ast.Assign)}
    known = {name: found for name, value in values.items() if (found := evaluated(value, values)) is not None}
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    methods = {(ast.unparse(call.func.value), call.func.attr) for call in calls if call.func.attr in METHODS}
    others = {method for owner, method in methods if owner != "re" and owner not in known}
    for call in calls:
        owner, method = ast.unparse(call.func.value), call.func.attr
        if owner == "re" and method in METHODS:
            first = call.args[0]
            found = known.get(ast.unparse(first)) or evaluated(first, values)
            yield (found, method) if found is not None else (ast.unparse(first), method)
        elif owner == "re" and method == "compile":
            own = [name for name, value in values.items() if value is call]
            applied = {applied for name, applied in methods if name in own} if own else others
            pattern = evaluated(call, values) or ast.unparse(call.args[0])
            yield from ((pattern, applied) for applied in sorted(applied))
            if not applied:
                yield pattern, "search"


def evaluated(value, values):
    """Return the pattern that an expression stands for; ``None`` if it is none, or has parts from elsewhere."""
    is_call = isinstance(value, ast.Call) and ast.unparse(value.func) == "re.compile"
    if (
        not is_call
        and not isinstance(value, ast.Constant | ast.JoinedStr)
        and not ast.unparse(value).startswith("names.")
    ):
        return None
    used = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)} - {"re", "names"}
    parts = {name: values.get(name) for name in used}
    if not all(isinstance(part, ast.Constant) for part in parts.values()):
        return None
    try:
        constants = {name: part.value for name, part in parts.items()}
        return re.compile(eval(ast.unparse(value), {"re": re, "names": names, **constants}))
    except (AttributeError, TypeError, re.error):  # a constant that is no pattern
        return None


def found_patterns():
    found = {}
    for path in modules():
        name = str(path.relative_to(REPOSITORY))
        for pattern, method in uses_in(path):
            text = pattern if isinstance(pattern, str) else repr(pattern.pattern)
            found[name, method, text] = pytest.param(pattern, method, id=f"{name}: {method} {text[:40]}")
    return found


FOUND = found_patterns()


def hostile_texts(pattern):
    """Yield texts that repeat parts of a sample of the pattern, and end in what it rejects."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    sample = re.sub(r"\(\?(?:P<\w+>|[:=!]|<[=!])", "(", source)
    sample = re.sub(r"\\w|\[\^[^]]*\]|\[a-[^]]*\]|(?<!\\)\.", "a", sample.replace(r"\d", "1"))
    sample = re.sub(r"\\s|\[ \\t\]", " ", sample)
    sample = re.sub(r"\{\d*,?\d*\}|(?<!\\)[()+*?|^$]", "", sample)
    sample = re.sub(r"\\([^a-zA-Z0-9])", r"\1", sample) or "a"
    ends = range(1, len(sample) + 1) if len(sample) < 40 else range(1, len(sample) + 1, 5)
    parts = {*(sample[:end] for end in ends), *(sample[-end:] for end in ends)}
    for part in sorted(parts | {" ", "1", "a", "_", ".", "a.", "1_", "aA", "\n", "\t", '"'}):
        for begin, end in (("", "\x00"), (sample[:1], "\n\x00")):
            yield begin + part * (NUM_CHARS // len(part)) + end


def seconds_of(pattern, method, text):
    given = text.encode() if isinstance(pattern.pattern, bytes) else text
    begin = time.process_time()
    if method == "sub":
        pattern.sub(given[:0], given)
    elif method == "finditer":
        list(pattern.finditer(given))
    else:
        getattr(pattern, method)(given)
    return time.process_time() - begin


def worst(pattern, method):
    """Return the most CPU seconds and the beginning of the text that took them."""
    most = (0.0, "")
    for text in hostile_texts(pattern):
        most = max(most, (seconds_of(pattern, method, text), text[:40]))
        if most[0] > CPU_SECONDS:
            break
    return most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "method"), [param for param in FOUND.values() if not isinstance(param.values[0], str)]
)
def test_time_is_linear(pattern, method):
    seconds, text = worst(pattern, method)
    assert seconds < CPU_SECONDS, text


def test_every_use_is_found():
    unknown = {f"{name}: {text}" for (name, _, text), param in FOUND.items() if isinstance(param.values[0], str)}
    assert unknown == set(TESTED_ELSEWHERE)
    assert len(FOUND) > 60


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "method"), [(r"\s+and\s+", "split"), (r"(%\d+)\(.*?\) = Load\(", "search")])
def test_quadratic_time_is_noticed(pattern, method):
    assert worst(re.compile(pattern), method)[0] > CPU_SECONDS


@pytest.mark.slow
def test_explanations_take_linear_time():
    table = yaml.safe_load((REPOSITORY / "msprobe_core" / "locate" / "explanations.yaml").read_text())
    causes = [*table["causes"], *table["topics"].values()]
    patterns = {value for cause in causes for name, value in cause.items() if isinstance(value, str) and name != "name"}
    assert len(patterns) > 20
    for pattern in patterns:
        assert worst(re.compile(pattern, re.IGNORECASE), "search")[0] < CPU_SECONDS


@pytest.mark.parametrize("suffix", ["json", "yaml"])
@pytest.mark.parametrize("part", ['"level": ', '"level": [', "level:", "level: a ", " ", "a ", "\n "])
def test_edits_take_linear_time(tmp_path, suffix, part):
    """Their pattern holds the name that is changed."""
    text = part * (NUM_CHARS // len(part)) + "\x0b"
    begin = time.process_time()
    edit._replaced(text, "level", "mix", tmp_path / f"x.{suffix}")
    assert time.process_time() - begin < CPU_SECONDS
