"""Codes of what is wrong with plugins; their templates are in ``wording``."""

from __future__ import annotations

from msprobe_core.findings import Code


class PluginCode(Code):
    """What is wrong with a plugin, a hook of it, or one of its offers."""

    NOT_LOADED = "plugin.not-loaded"
    NEEDS_OTHER_CORE = "plugin.needs-other-core"
    HOOK_NEEDS_LATER_CORE = "plugin.hook-needs-later-core"
    DISABLED = "plugin.disabled"
    HOOK_FAILED = "plugin.hook-failed"
    NO_LIST = "plugin.no-list"
    SLOW = "plugin.slow"
    INCOMPLETE = "plugin.incomplete"
    WRONG_MEMBER = "plugin.wrong-member"
    NAME_TAKEN = "plugin.name-taken"
    OFFERED_TWICE = "plugin.offered-twice"
    OFFER_FAILED = "plugin.offer-failed"
