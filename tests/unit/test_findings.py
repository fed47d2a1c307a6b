"""Findings have a template in each language, and templates say what their fields are."""

import json
import re
from importlib import import_module, resources
from pathlib import Path

import msgspec
import pytest
from finding_list import PAGES, table

from msprobe_core import findings
from msprobe_core.findings import (
    Code,
    Finding,
    Language,
    Level,
    Place,
    Wording,
    content_of,
    finding_of,
    template_of,
    worded,
)
from msprobe_core.locate import FaultKind
from msprobe_core.locate.result import CheckState, Precondition, Strength
from msprobe_core.overflow import Kind


class Fruit(Code):
    EATEN = "fruit.eaten"
    GIVEN = "fruit.given"
    ROTTEN = "fruit.rotten"
    SWEETER = "fruit.sweeter"


WORDINGS = {
    Language.ENGLISH: Wording(
        {
            "fruit.eaten": "{who} ate {count:apple|apples}, {share} of {total:,}.",
            "fruit.given": "It was given {kinds:word}: {why:;}",
            "fruit.rotten": "All are rotten.",
            "fruit.sweeter": "It is {score:times}x as sweet.",
        }
    ),
    Language.CHINESE: Wording(
        {
            "fruit.eaten": "{who} 吃了 {count} 个苹果,占 {total:,} 的 {share:.1g}。",
            "fruit.given": "得到{kinds:word}:{why:;}",
            "fruit.rotten": "全部腐烂。",
            "fruit.sweeter": "甜度为 {score:times} 倍。",
        },
        {"pear": "梨"},
    ),
}


@pytest.fixture
def fruit(monkeypatch):
    monkeypatch.setattr(findings, "wording", lambda package, language: WORDINGS[language])
    template_of.cache_clear()
    yield
    template_of.cache_clear()


@pytest.mark.usefixtures("fruit")
class TestWording:
    def test_numbers_have_three_significant_digits_or_the_format_of_the_template(self):
        eaten = Finding(Fruit.EATEN, Level.NOTE, {"who": "Ann", "count": 1, "share": 0.123456, "total": 12345})
        assert eaten.text == "Ann ate 1 apple, 0.123 of 12,345."
        assert worded(eaten, Language.CHINESE) == "Ann 吃了 1 个苹果,占 12,345 的 0.1。"

    def test_a_number_other_than_one_takes_the_plural(self):
        eaten = Finding(Fruit.EATEN, Level.NOTE, {"who": None, "count": 2000, "share": 1e-9, "total": 0})
        assert eaten.text == "unknown ate 2,000 apples, 1e-09 of 0."

    def test_findings_and_words_within_a_finding_are_in_its_language(self):
        given = Finding(Fruit.GIVEN, Level.ERROR, {"kinds": ["pear", "fig"], "why": Finding(Fruit.ROTTEN)})
        assert given.text == "It was given pear, fig: All are rotten."
        assert worded(given, Language.CHINESE) == "得到梨、fig:全部腐烂。"

    @pytest.mark.parametrize(("score", "shown"), [(0.123, "0.12"), (9.96, "10"), (1234.5, "1,234"), (2.5e7, "2.5e+07")])
    def test_a_multiple_has_two_digits_or_is_whole(self, score, shown):
        assert Finding(Fruit.SWEETER, Level.NOTE, {"score": score}).text == f"It is {shown}x as sweet."

    def test_several_values_are_clauses_if_the_template_says_so(self):
        given = Finding(Fruit.GIVEN, Level.NOTE, {"kinds": ["fig"], "why": ["a", Finding(Fruit.ROTTEN)]})
        assert given.text == "It was given fig: a; All are rotten."
        assert worded(given, Language.CHINESE) == "得到fig:a;全部腐烂。"

    def test_a_field_that_the_template_names_must_be_there(self):
        with pytest.raises(KeyError, match="count"):
            worded(Finding(Fruit.EATEN, Level.NOTE, {"who": "Ann"}))

    def test_braces_in_a_field_are_text(self):
        eaten = Finding(Fruit.EATEN, Level.NOTE, {"who": "{count}", "count": 2, "share": 0.5, "total": 4})
        assert eaten.text == "{count} ate 2 apples, 0.5 of 4."


def test_the_content_of_a_finding_is_json():
    given = Finding(
        Fruit.GIVEN,
        Level.ERROR,
        {"kinds": [Level.NOTE, 1, None, True], "why": Finding(Fruit.EATEN, Level.NOTE, {"share": float("-inf")})},
    )
    content = content_of(given)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content == {
        "code": "fruit.given",
        "level": "error",
        "fields": {
            "kinds": ["note", 1, None, True],
            "why": {"code": "fruit.eaten", "level": "note", "fields": {"share": "-inf"}},
        },
    }


def test_a_stored_finding_is_the_same_when_it_is_read():
    inner = Finding(Fruit.ROTTEN, Level.WARNING, {"share": float("inf")})
    finding = Finding(Fruit.GIVEN, Level.ERROR, {"kinds": ["pear"], "why": inner})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(finding), type=Finding) == finding


def test_a_stored_finding_with_an_unknown_code_is_no_finding():
    with pytest.raises(msgspec.ValidationError, match=r"no finding with the code 'fruit\.stolen'"):
        msgspec.json.decode(b'{"code": "fruit.stolen"}', type=Finding)


def test_a_plugin_has_templates_in_its_own_package(tmp_path, monkeypatch):
    place = tmp_path / "a_plugin" / "wording"
    place.mkdir(parents=True)
    (place.parent / "__init__.py").touch()
    for language, template in (("en", "{count:worker|workers} did not answer"), ("zh", "{count} 个 worker 没有应答")):
        (place / f"{language}.json").write_text(json.dumps({"findings": {"a-plugin.silent": template}}))
    monkeypatch.syspath_prepend(tmp_path)

    class PluginCode(Code):
        SILENT = "a-plugin.silent"

        @classmethod
        def package(cls):
            return "a_plugin"

    silent = Finding(PluginCode.SILENT, Level.WARNING, {"count": 2})
    assert silent.text == "2 workers did not answer"
    assert worded(silent, Language.CHINESE) == "2 个 worker 没有应答"
    assert finding_of(content_of(silent)) == silent


def places(code, language):
    return {part.field for part in template_of(code, language) if isinstance(part, Place)}


CORE = Path(findings.__file__).parent


def enumerations(base=Code):
    for path in CORE.rglob("*_codes.py"):  # a class is known once its module is imported
        import_module(".".join(path.relative_to(CORE.parent).with_suffix("").parts))
    for kind in base.__subclasses__():
        if kind.__module__.startswith(("msprobe_core.", "msprobe.")):
            yield kind
            yield from enumerations(kind)


CLOSED_SETS = [FaultKind, Strength, Precondition, CheckState, Kind]


@pytest.mark.parametrize("members", CLOSED_SETS, ids=lambda each: each.__name__)
def test_each_member_of_a_closed_set_has_a_word_in_chinese(members):
    assert {each.value for each in members} <= {*findings.wording("msprobe_core", Language.CHINESE).words}


ALL = [code for kind in enumerations() for code in kind]


@pytest.mark.parametrize("code", ALL, ids=lambda code: code.value)
def test_a_template_has_the_same_fields_in_both_languages(code):
    assert places(code, Language.ENGLISH) == places(code, Language.CHINESE)
    chinese = findings.wording(code.package(), Language.CHINESE).findings[code.value]
    rest = re.sub(r"\{.*?\}|\b(NaN|Inf|rank)\b", "", chinese)  # what Chinese takes over
    assert re.search(r"[\u4e00-\u9fff]", rest) or not re.search(r"[a-zA-Z]{2}", rest)


@pytest.mark.parametrize("package", sorted({"msprobe_core", *(code.package() for code in ALL)}))
def test_each_template_is_of_a_code_that_exists(package):
    own = {code.value for code in ALL if code.package() == package}
    for language in Language:
        text = (resources.files(package) / "wording" / f"{language.value}.json").read_text(encoding="utf-8")
        assert set(json.loads(text)["findings"]) == own


@pytest.mark.parametrize("language", Language)
def test_the_list_of_codes_is_up_to_date(language):
    assert PAGES[language].read_text(encoding="utf-8") == table(language), "run make findings"
