"""The configurations of two runs on the page, as a search has compared them; of a single run, its manifest in short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msprobe_core.config.ranges import format_ranges
from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding
from msprobe_core.locate.configuration import value_in_words
from msprobe_core.manifest.facts import Manifest, Optimizer, Scalar
from msprobe_core.store.manifest_file import find_manifest, read_manifest
from msprobe_core.untrusted.paths import shown
from msprobe_core.view.data import Fact
from msprobe_core.view.view_codes import ViewCode

_MAX_GROUPS = 8
_MAX_ITEMS = 40


def facts_beside(unit: Path) -> list[Fact] | Finding:
    """Return what the manifest of a run says in short; a note if it cannot be read, nothing if there is none.

    Args:
        unit: Directory of a dump, or its file.
    """
    path = find_manifest(unit)
    if path is None:
        return []
    try:
        manifest = read_manifest(path)
    except DumpError as error:
        return Finding(ViewCode.NO_MANIFEST, fields={"why": str(error)})
    return [Fact(name, shown(value)) for name, value in _facts(manifest) if value]


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    run = manifest.run
    yield "framework", _joined([f"{run.framework.name} {run.framework.version}", f"Python {manifest.python}"])
    device = run.device
    yield "device", _joined([device.kind, device.name, device.driver, device.runtime])
    yield "program", manifest.program
    yield "libraries", _joined([f"{each.name} {each.version}" for each in manifest.libraries])
    yield "switches", _settings(run.switches)
    yield "models", _joined([_model(manifest, number) for number in range(len(run.models))])
    yield "optimizers", "\n".join(line for each in run.optimizers for line in _optimizer(each))
    yield "parallel", _joined([f"{each.name} {_ranks(each.ranks)} {each.backend or ''}".strip() for each in run.groups])
    yield (
        "random",
        _joined([f"{each.name} {each.state[:8] if each.seed is None else each.seed}" for each in run.generators]),
    )
    yield "environment", _settings({each.name: each.value for each in manifest.environment if each.value is not None})


def _model(manifest: Manifest, number: int) -> str:
    model = manifest.run.models[number]
    root = model.modules[0].type.rpartition(".")[2] if model.modules else ""
    dtypes = {parameter.dtype for module in model.modules for parameter in module.parameters if not parameter.is_buffer}
    return " ".join([part for part in (root, "/".join(sorted(dtypes))) if part])


def _optimizer(optimizer: Optimizer) -> Iterator[str]:
    name = optimizer.type.rpartition(".")[2]
    if not optimizer.groups:
        yield f"{name}: {_settings(optimizer.defaults)}"
    for number, group in enumerate(optimizer.groups[:_MAX_GROUPS]):
        yield f"{name} {number}: {_settings(group.settings)}"
    if len(optimizer.groups) > _MAX_GROUPS:
        yield "…"


def _settings(settings: Mapping[str, Scalar]) -> str:
    return _joined([f"{name}={value_in_words(value)}" for name, value in settings.items()])


def _ranks(ranks: Sequence[int]) -> str:
    return ",".join(format_ranges(ranks))


def _joined(parts: Sequence[str | None]) -> str:
    given = [part for part in parts if part]
    return " · ".join(given[:_MAX_ITEMS]) + (" · …" if len(given) > _MAX_ITEMS else "")
