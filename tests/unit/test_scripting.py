"""Recorded calls as source code: nothing of a dump gets into it but literals and identifiers."""

import ast
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe_core.api_check import script_parts as parts
from msprobe_core.api_check.script_text import comment, inline_rows, stored_rows, write_safetensors
from msprobe_core.errors import ReplayError
from msprobe_core.interception import call_text, literal, may_write, script_leaves, script_tensors, source_of
from msprobe_core.model import Argument, Phase, ReplayCall, ReplayTensor, Site, SiteKind
from msprobe_core.replay.limits import cover

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


def call_of(*args, name="softmax", **kwargs):
    site = Site(kind=SiteKind.API, prefix="Functional", path=name, type_name="", phase=Phase.FORWARD, index=0)
    return ReplayCall(site=site, args=list(args), kwargs=kwargs)


def tensor(*values, **options):
    return ReplayTensor(values=np.array(values, "f4"), dtype="float32", **options)


def text_of(call, function="f"):
    return call_text(call, function, lambda _: None)


@given(PLAIN)
def test_a_literal_is_the_value_in_one_line_of_ascii(value):
    text = literal(value)
    assert text.isascii()
    assert text.isprintable()
    # repr, as NaN is unlike itself
    assert repr(eval(text, {"__builtins__": {"float": float}})) == repr(value)


@pytest.mark.parametrize("value", [object(), {1: 2}, b"x", np.float32(1)], ids=lambda value: type(value).__name__)
def test_what_is_not_plain_is_refused(value):
    with pytest.raises(ReplayError, match="not written in a script"):
        literal(value)


def test_arguments_are_written_as_they_were_given():
    call = call_of(
        tensor(1.0), [Argument("int", 2), None], Argument("slice", "(1, None, 2)"), Argument("ellipsis"),
        dim=Argument("int", -1), weight=tensor(2.0),
    )  # fmt: skip
    assert text_of(call) == 'f(x["0"], (2, None), slice(1, None, 2), ..., dim=-1, weight=x["weight"])'


@pytest.mark.parametrize("name", ["a b", "class", "x=open('f')", "é", "1", "", '"'])
def test_a_keyword_that_is_no_identifier_is_a_literal(name):
    tree = ast.parse(text_of(call_of(**{name: Argument("int", 1)})), mode="eval").body
    assert isinstance(tree, ast.Call)
    (keyword,) = tree.keywords
    assert keyword.arg is None
    assert ast.literal_eval(keyword.value) == {name: 1}


@given(st.text(), st.text())
def test_no_text_of_a_dump_is_code(name, value):
    tree = ast.parse(text_of(call_of(Argument("str", value), **{name: Argument("str", value)})), mode="eval").body
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert calls == [tree]
    (first,) = tree.args
    assert ast.literal_eval(first) == value


@given(st.text())
def test_a_comment_is_one_line(text):
    assert ast.parse(f"# {comment(text)}").body == []
    assert len(f"# {comment(text)}".splitlines()) == 1


def test_what_was_one_tensor_is_one():
    same = [tensor(1.0, takes_gradient=True, identity=0) for _ in range(2)]
    call = call_of(*same, tensor(2.0, takes_gradient=True, identity=1))
    assert text_of(call) == 'f(x["0"], x["0"], x["2"])'
    assert list(script_tensors(call)) == ["0", "2"]
    assert script_leaves(call) == {"0": "0", "1": "0", "2": "2"}


@pytest.mark.parametrize(
    ("name", "argument", "writes"),
    [("relu_", 1, True), ("__iadd__", 1, True), ("__setitem__", 1, True), ("relu", True, True), ("__add__", 1, False)],
)
def test_a_call_that_may_write_to_its_arguments_gets_copies(name, argument, writes):
    call = call_of(tensor(1.0, takes_gradient=True), Argument(type(argument).__name__, argument), name=name)
    assert may_write(call) is writes
    assert 'x["0"].clone()' in call_text(call, "f", lambda _: None, ".clone()")


def test_a_copied_function_has_no_annotations():
    text = source_of(parts.judge, "judged")
    assert text.startswith('@np.errstate(all="ignore")\ndef judged(result, exact, allowed):\n    """')
    assert ast.unparse(ast.parse(text).body[0].args) == "result, exact, allowed"


@pytest.mark.parametrize("kind", ["f8", "f4", "f2", "i8", "i1", "u1", "?", "c8", "c16", ">f4"])
@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (0, 2)], ids=str)
def test_tensors_are_written_exactly(tmp_path, kind, shape, monkeypatch):
    values = np.asarray(np.random.default_rng(0).normal(size=shape) * 3).astype(kind)
    tensors = {"first": tensor(1.0, 2.0), "0": ReplayTensor(values=values, dtype="own")}
    path = tmp_path / "x.safetensors"
    offsets = write_safetensors(path, tensors)
    monkeypatch.setattr(parts, "__file__", str(path.with_suffix(".py")))
    for load, rows in (
        (parts.load_inline, inline_rows(tensors, {})),
        (parts.load_stored, stored_rows(tensors, {}, offsets)),
    ):
        found = load(*ast.literal_eval(f"{{{''.join(rows)}}}")["0"])
        assert found.shape == shape
        assert np.array_equal(found, values)


def limits(**others):
    base = {"rounding": 0.1, "condition": 0.1, "absolute": 0.5, "relative": 0.0, "largest": 65504.0, "odd": 0}
    return base | others


def judged(result, exact, **others):
    return parts.judge(np.array(result, float), np.array(exact, float), limits(**others))[0]


def test_a_script_judges_norms_elements_and_overflow():
    exact = np.ones(1000)
    assert judged(exact, exact)
    assert judged(exact * 1.09, exact)
    assert not judged(exact * 1.11, exact)
    assert judged(exact * 1.2, exact, condition=0.3)
    assert not judged([0.0, *exact[1:]], exact)  # one element, within the norm
    assert judged([math.inf, 1.0], [7e4, 1.0])
    assert not judged([-math.inf, 1.0], [7e4, 1.0])
    assert not judged([math.inf, 1.0], [6e4, 1.0])
    assert judged([math.inf, 1.0], [6e4, 1.0], odd=1)
    assert not judged([math.nan, 1.0], [1.0, 1.0])
    assert judged([math.nan, 1.0], [math.nan, 1.0])
    assert judged([0.0], [0.0])
    assert judged([], [])
    assert not judged([1e300, 1e300], [-1e300, 1e300], absolute=1e301)  # its squares are Inf


def test_a_script_counts_decisions():
    exact = np.arange(8)
    other = exact.copy()
    other[:2] = 7
    assert parts.judge_exact(exact, exact, {"different": 0})[0]
    assert not parts.judge_exact(other, exact, {"different": 1})[0]
    assert parts.judge_exact(other, exact, {"different": 2})[0]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1e-9, 1e3)), min_size=1, max_size=20))
def test_a_line_covers_the_limits_of_all_elements(pairs):
    magnitudes, allowed = np.array(pairs).T
    absolute, relative = cover(magnitudes, allowed, 2.0**-8)
    assert np.all(absolute + relative * magnitudes >= allowed * (1 - 1e-9))
    assert absolute + relative * np.mean(magnitudes) <= np.max(allowed) * (1 + 1e-9)
