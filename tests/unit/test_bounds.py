"""What is allowed to be installed is what is tested: `make test-lowest` has the bounds of pyproject.toml."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_the_lowest_releases_are_the_bounds():
    constraints = (REPOSITORY / "constraints-lowest.txt").read_text().lower()
    tested = dict(re.findall(r"^([\w-]+)==([\d.]+)$", constraints, re.MULTILINE))
    text = (REPOSITORY / "pyproject.toml").read_text()
    required = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    bounds = dict(re.findall(r'"([\w-]+)>=([\d.]+)', required + text[text.index("\narrow =") : text.index("\nray =")]))
    assert bounds.keys() <= tested.keys()

    def numbers(version):
        found = [int(part) for part in version.split(".")]
        return [*found, *[0] * (3 - len(found))]

    assert {name: numbers(bounds[name]) for name in bounds} == {name: numbers(tested[name]) for name in bounds}


def test_releases_that_run_code_out_of_files_are_not_allowed():
    """CVE-2023-47248 of pyarrow; `torch.load`, CVE-2025-32434, is not called on files of others at all."""
    assert '"pyarrow>=14.0.1"' in (REPOSITORY / "pyproject.toml").read_text()
    sources = [*(REPOSITORY / "msprobe_core").rglob("*.py"), *(REPOSITORY / "plugins").rglob("msprobe/**/*.py")]
    assert not [path for path in sources if re.search(r"\btorch\.load\(", path.read_text())]
