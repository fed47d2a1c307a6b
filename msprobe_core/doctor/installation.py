"""Conditions of what is installed: the core, its plugins, and what hides them."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

import msgspec

from msprobe_core._version import __version__
from msprobe_core.findings import Finding, Level
from msprobe_core.plugins import Plugin, Registry, shadowing_advice, shadowing_package
from msprobe_core.plugins.checking import check_plugins
from msprobe_core.plugins.discovery import DISTRIBUTION, NAMESPACE
from msprobe_core.plugins.plugin_codes import PluginCode
from msprobe_core.protocols.checkups import Condition, Health

_PACKAGE = Path(__file__).parents[1]
_OTHER_TOOL = "mindstudio-probe"
_EXTRAS = {"pyarrow": ("arrow", "dumps in Arrow's format"), "ray": ("ray", "comparisons on a Ray cluster")}
_OWN_HINDRANCE = frozenset({PluginCode.NOT_LOADED, PluginCode.NEEDS_OTHER_CORE})
"""Problems of a plugin after which nothing of it works."""


class _DirInfo(msgspec.Struct):
    editable: bool = False


class _Origin(msgspec.Struct):
    """What ``direct_url.json`` says, of which only local directories matter. Source: PEP 610."""

    url: str = ""
    dir_info: _DirInfo = msgspec.field(default_factory=_DirInfo)


def of_installation(found: Registry) -> Iterator[Condition]:
    """Yield the conditions of the core, of what hides it, and of each plugin."""
    yield from _core()
    yield from _shadows(Path.cwd())
    for plugin in check_plugins(found):
        yield _of_plugin(plugin)
    for library, (extra, needed_for) in _EXTRAS.items():
        if importlib.util.find_spec(library) is None:
            yield Condition(
                code="core.extra",
                health=Health.NOTE,
                state=f"the optional library {library} is not installed",
                why=f"{needed_for} need it",
                advice=f"if you want these: pip install '{DISTRIBUTION}[{extra}]'",
            )


def _core() -> Iterator[Condition]:
    state = f"{DISTRIBUTION} {__version__} in {_PACKAGE}, Python {platform.python_version()}"
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        yield Condition(
            code="core.not-installed",
            health=Health.NOTE,
            state=f"{state}; it is not installed, only on the import path",
            why="other environments and started processes find it only if they have the same path",
            advice="to install it from a clone: pip install -e .",
        )
        return
    versions = sorted({each.version for each in distributions(name=DISTRIBUTION)})
    place = _place_of(installed)
    if len(versions) > 1:
        yield Condition(
            code="core.twice",
            health=Health.WARNING,
            state=f"{state}; releases {', '.join(versions)} are installed beside each other",
            why="which one a process imports depends on the order of its import path",
            advice=f"pip uninstall {DISTRIBUTION} until none is left, then install it again",
        )
    elif place is not None and place != _PACKAGE.parent:
        yield Condition(
            code="core.shadowed",
            health=Health.WARNING,
            state=f"{state}; the one that is installed, {installed.version} in {place}, is hidden by it",
            why="a process with another PYTHONPATH or working directory imports another release",
            advice=f"remove {_PACKAGE.parent} from PYTHONPATH, or install from it",
        )
    else:
        yield Condition(code="core.version", health=Health.OK, state=state)


def _place_of(installed: Distribution) -> Path | None:
    """Return the directory on the import path that a distribution brings; ``None`` if that cannot be told."""
    stated = installed.read_text("direct_url.json")
    try:
        origin = msgspec.json.decode(stated or "{}", type=_Origin)
    except msgspec.MsgspecError:
        return None
    if origin.dir_info.editable:
        return Path(origin.url.removeprefix("file://")).resolve()
    return Path(str(installed.locate_file(""))).resolve()


def _shadows(here: Path) -> Iterator[Condition]:
    """Yield what hides the package ``msprobe``, in this process and in programs that are started in a directory."""
    hiding = shadowing_package()
    if hiding is not None:
        yield Condition(
            code="namespace.hidden",
            health=Health.ERROR,
            state=f"the package {NAMESPACE} is another one: {hiding.parent}",
            why="no plugin of ours is found, so nothing is recorded",
            advice=shadowing_advice(hiding),
        )
    elif (other := next(iter(distributions(name=_OTHER_TOOL)), None)) is not None:
        yield Condition(
            code="namespace.shared",
            health=Health.WARNING,
            state=f"{_OTHER_TOOL} {other.version} is installed in this environment too",
            why=f"both bring a package and a command named {NAMESPACE}; which one is used depends on the import path",
            advice="keep the two in virtual environments of their own",
        )
    for name in (NAMESPACE, _PACKAGE.name):
        path = next((each for each in (here / name / "__init__.py", here / f"{name}.py") if each.is_file()), None)
        if path is not None and _PACKAGE not in path.parents:
            yield Condition(
                code="namespace.local",
                health=Health.WARNING,
                state=f"{path} is named like our package",
                why="programs that are started in this directory import it instead of ours",
                advice="rename it, or start programs elsewhere",
            )


def _of_plugin(plugin: Plugin) -> Condition:
    state = f"the plugin {plugin.name} {plugin.version or '(not installed)'} of {plugin.source}"
    worst = next((p for level in Level for p in plugin.problems if p.level is level), None)
    if worst is None or _is_in_other_section(worst):
        return Condition(code="plugin.version", health=Health.OK, state=state)
    code = worst.code.value
    said = f"{state} {worst.text}"
    if worst.code is PluginCode.DISABLED:
        return Condition(
            code=code,
            health=Health.WARNING,
            state=said,
            why="it records nothing",
            advice="unset the variable to use it",
        )
    if worst.level is Level.NOTE:
        return Condition(code=code, health=Health.NOTE, state=said, why="what it needs is missing here")
    hinders = worst.code in _OWN_HINDRANCE
    return Condition(
        code=code,
        health=Health.ERROR if worst.level is Level.ERROR else Health.WARNING,
        state=said,
        why="nothing of it works" if hinders else "what it offers there is left out",
        advice=f"`msprobe --debug plugins check {plugin.name}` shows where it fails",
    )


def _is_in_other_section(problem: Finding) -> bool:
    """Whether the section of a framework or a trainer says the same in more detail."""
    sections = ("msprobe_register_frameworks", "msprobe_register_checkups")
    return problem.code is PluginCode.OFFER_FAILED and problem.fields.get("hook") in sections
