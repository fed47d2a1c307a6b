"""The protocols of the objects that the core and plugins exchange, one module per domain.

Plugin authors import them from `msprobe_core.plugin`.
"""
