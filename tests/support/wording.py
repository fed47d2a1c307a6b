"""What a command says, held by one snapshot in ``tests/data/wording``; ``pytest --renew-wording`` writes it again.

Everything else is asserted by codes and fields, so that a sentence can be improved in one place and reviewed as a diff.
"""

from collections.abc import Mapping
from pathlib import Path

from msprobe_core.findings import Code, Field, Finding, Language, Level, worded

DIRECTORY = Path(__file__).parents[1] / "data" / "wording"


class Snapshot:
    """Compares texts with the snapshots, or writes them again."""

    def __init__(self, *, renews: bool) -> None:
        self._renews = renews

    def check(self, command: str, *sections: str) -> None:
        """Assert that a command says what its snapshot has.

        Args:
            command: Its name, and that of the file.
            sections: What it says; without paths, times or releases.
        """
        path = DIRECTORY / f"{command}.txt"
        text = "\n\n".join(section.strip("\n") for section in sections) + "\n"
        if self._renews:
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: renew with pytest --renew-wording, see the diff"


def worded_samples(codes: type[Code], samples: Mapping[Code, Mapping[str, Field]]) -> str:
    """Return each code of an enumeration in both languages.

    Args:
        codes: The enumeration.
        samples: Fields by code; a code that has none may be left out.
    """
    assert {*samples} <= {*codes}
    found = [Finding(code, Level.NOTE, samples.get(code, {})) for code in codes]
    return "\n".join(
        "\n".join([each.code.value, *(f"  {worded(each, language)}" for language in Language)]) for each in found
    )
