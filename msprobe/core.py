"""The place of ``msprobe.core.…`` in scripts written for mindstudio-probe: each name says what to use here.

A module, so that it neither replaces nor hides the package of that name where both distributions are installed.
"""

from msprobe_core.former_names.imports import former_module

__path__, __getattr__ = former_module(__name__)
