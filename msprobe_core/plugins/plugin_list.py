"""The plugins of a process, and what is wrong with them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pluggy

from msprobe_core import hookspecs
from msprobe_core.errors import BrokenPluginError
from msprobe_core.findings import Field, Finding, Level, NoteCode
from msprobe_core.guard import kept, message_of
from msprobe_core.plugins.offers import HOOK_PREFIX
from msprobe_core.plugins.plugin_codes import PluginCode

_logger = logging.getLogger(__name__)

CORE = "core"


@dataclass(frozen=True)
class Plugin:
    """A plugin as ``msprobe plugins`` lists it.

    Attributes:
        name: Name of its entry point.
        version: Version of its distribution; ``None`` if it is not installed as one.
        source: Where it was found: a distribution, or ``not installed``.
        hooks: The hooks it implements.
        summary: The first line of its module's docstring.
        problems: What is wrong with it, with a hook of it or with one of its offers; the rest of it works.
    """

    name: str
    version: str | None
    source: str
    hooks: tuple[str, ...] = ()
    summary: str = ""
    problems: tuple[Finding, ...] = ()

    @property
    def problem(self) -> str | None:
        """The first of its problems as text; ``None`` if it has none."""
        return self.problems[0].text if self.problems else None

    @property
    def is_of_core(self) -> bool:
        """Whether it is a part of the core."""
        return self.name.startswith(f"{CORE}:")


@dataclass
class PluginList:
    """All plugins of a process, those that do not work too."""

    manager: pluggy.PluginManager
    _plugins: dict[str, Plugin] = field(default_factory=dict[str, Plugin])

    @property
    def plugins(self) -> Sequence[Plugin]:
        """Every plugin that was found, the core first."""
        return list(self._plugins.values())

    def add(self, plugin: Plugin, load: Callable[[], object]) -> None:
        """Load and register a plugin; one that fails is listed with its problem and disabled."""
        self._plugins[plugin.name] = plugin
        try:
            module = load()
            hooks = _hooks_of(module)
            with warnings.catch_warnings(record=True) as announced:
                warnings.simplefilter("always", DeprecationWarning)
                self.manager.register(module, plugin.name)
            self.manager.check_pending()
        except BaseException as error:  # noqa: BLE001  # whatever a plugin raises must not end this program
            if self.manager.has_plugin(plugin.name):
                self.manager.unregister(name=plugin.name)
            self.note(plugin.name, PluginCode.NOT_LOADED, {"reason": reason_of_failure(error)}, error)
        else:
            summary = (module.__doc__ or "").strip().partition("\n")[0]
            self._plugins[plugin.name] = replace(plugin, hooks=hooks, summary=summary)
            for each in announced:
                text = f"implements a hook that a later release removes: {each.message}"
                self.note_finding(plugin.name, Finding(NoteCode.TEXT, Level.WARNING, {"text": text}))

    def leave_out(self, plugin: Plugin, problem: Finding) -> None:
        """List a plugin that is not to be loaded."""
        self._plugins[plugin.name] = plugin
        self.note_finding(plugin.name, problem)

    def note(
        self, name: str, code: PluginCode, fields: Mapping[str, Field], error: BaseException | None = None,
        level: Level = Level.ERROR,
    ) -> None:  # fmt: skip
        """Note a problem of a plugin, and log it the first time; its traceback is logged too, at level debug."""
        self.note_finding(name, Finding(code, level, fields), error)

    def note_finding(self, name: str, problem: Finding, error: BaseException | None = None) -> None:
        """Note a problem of a plugin; see `note`."""
        plugin = self._plugins[name]
        if problem in plugin.problems:
            return
        self._plugins[name] = replace(plugin, problems=(*plugin.problems, problem))
        log = _logger.info if problem.level is Level.NOTE else _logger.warning
        log("the plugin '%s' (%s) %s", name, plugin.source, problem.text)
        if error is not None:
            _logger.debug("where the plugin '%s' failed:", name, exc_info=error)


def reason_of_failure(error: BaseException) -> str:
    """Return why a plugin failed, in words."""
    kept(error)  # Ctrl-C, and what a handler of a signal raises, is for the program
    return message_of(error)


def _hooks_of(module: object) -> tuple[str, ...]:
    """Return the names of the hooks that ``module`` implements.

    Raises:
        BrokenPluginError: a function is named like a hook but there is no hook of that name.
    """
    known = {name for name in vars(hookspecs.HookSpecs) if name.startswith(HOOK_PREFIX)}
    found = {name for name in dir(module) if name.startswith(HOOK_PREFIX) and callable(getattr(module, name))}
    required = (name for name in found - known if not _is_optional(getattr(module, name)))
    for name in sorted(required):
        raise BrokenPluginError(f"there is no hook {name!r}; known: {', '.join(sorted(known))}")
    return tuple(sorted(found & known))


def _is_optional(implementation: object) -> bool:
    """Whether a hook that this release does not have is one of a later release, as its plugin says."""
    options: Any = getattr(implementation, f"{hookspecs.PROJECT}_impl", None)
    return isinstance(options, dict) and bool(cast("dict[str, Any]", options).get("optionalhook"))
