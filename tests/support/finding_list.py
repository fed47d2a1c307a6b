"""Write ``docs/findings.md`` and its Chinese page: every code of the core with the fields and the text of its template.

python tests/support/finding_list.py
"""

import re
from pathlib import Path

from finding_samples import core_codes

from msprobe_core.findings import Code, Language, Place, template_of, wording

_DOCS = Path(__file__).parents[2] / "docs"

PAGES = {Language.ENGLISH: _DOCS / "findings.md", Language.CHINESE: _DOCS / "zh" / "findings.md"}

_HEADS = {
    Language.ENGLISH: """\
# Findings

What msprobe finds has a *code*, a *level* (`error`, `unmatched`, `warning` or `note`) and *fields*; texts are made of
these. Scripts can rely on codes and fields: they are in [`summary.json`](formats.md#summaryjson), `locate.json`,
`overflow.json` and `confirm.json`, in the column `codes` of tables, and in [pages](view_format.md). The wording may
change. `make findings` writes this page.

| code | fields | text |
|---|---|---|
""",
    Language.CHINESE: """\
# 发现 <a id="findings"></a>

msprobe 的发现由*编码*、*级别*(`error`、`unmatched`、`warning` 或 `note`)和*字段*组成,
文本由它们生成。脚本可以依赖编码和字段:它们出现在
[`summary.json`](formats.md#summaryjson)、`locate.json`、`overflow.json` 和 `confirm.json` 中,
表的 `codes` 列和[页面](view_format.md)中也有。措辞可能改变。本页由 `make findings` 写出。

| 编码 | 字段 | 文本 |
|---|---|---|
""",
}


def table(language: Language) -> str:
    """Return the page in a language."""
    codes = sorted(core_codes(), key=lambda code: code.value)
    rows = (f"| `{code.value}` | {_fields(code)} | {_text(code, language)} |\n" for code in codes)
    return _HEADS[language] + "".join(rows)


def _fields(code: Code) -> str:
    names = dict.fromkeys(part.field for part in template_of(code) if isinstance(part, Place))
    return ", ".join(f"`{name}`" for name in names)


def _text(code: Code, language: Language) -> str:
    text = wording(code.package(), language).findings[code.value]
    return re.sub(r"\{(\w+)[^{}]*\}", r"*\1*", text.replace("|", "\\|") if "{" not in text else text).strip()


if __name__ == "__main__":
    for language, path in PAGES.items():
        path.write_text(table(language), encoding="utf-8")
