"""Write ``docs/findings.md``: every code of the core with the fields and the English text of its template.

python tests/support/finding_list.py
"""

import re
from pathlib import Path

from finding_samples import core_codes

from msprobe_core.findings import Code, Language, Place, template_of, wording

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"

_HEAD = """\
# Findings

What msprobe finds has a *code*, a *level* (`error`, `unmatched`, `warning` or `note`) and *fields*; texts are made of
these. Scripts can rely on codes and fields: they are in [`summary.json`](formats.md#summaryjson), `locate.json`,
`overflow.json` and `confirm.json`, in the column `codes` of tables, and in [pages](view_format.md). The wording may
change. `make findings` writes this page.

| code | fields | text |
|---|---|---|
"""


def table() -> str:
    """Return the page."""
    codes = sorted(core_codes(), key=lambda code: code.value)
    return _HEAD + "".join(f"| `{code.value}` | {_fields(code)} | {_text(code)} |\n" for code in codes)


def _fields(code: Code) -> str:
    names = dict.fromkeys(part.field for part in template_of(code) if isinstance(part, Place))
    return ", ".join(f"`{name}`" for name in names)


def _text(code: Code) -> str:
    text = wording(code.package(), Language.ENGLISH).findings[code.value]
    return re.sub(r"\{(\w+)[^{}]*\}", r"*\1*", text.replace("|", "\\|") if "{" not in text else text).strip()


if __name__ == "__main__":
    PAGE.write_text(table(), encoding="utf-8")
