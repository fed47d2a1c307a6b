"""The objects that the core and plugins hand each other, as protocols, by domain.

Plugin authors import them from `msprobe_core.plugin`.
"""
