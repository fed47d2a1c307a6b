"""Find, check and query plugins: the only room that uses pluggy's manager.

A plugin never ends a program. One that cannot be loaded, a hook that fails and an offer that is not what the contract
says are left out, each by itself, with a warning that names the plugin.
"""

from msprobe_core.plugins.discovery import refuse_shadowing, registry, shadowing_advice, shadowing_package
from msprobe_core.plugins.plugin_list import Plugin
from msprobe_core.plugins.registry import Registry

__all__ = ["Plugin", "Registry", "refuse_shadowing", "registry", "shadowing_advice", "shadowing_package"]
