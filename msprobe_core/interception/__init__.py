"""Interception: the base of framework plugins for observing APIs, modules, gradients and communication.

It reports calls to a `CallRecorder` and is independent of recording itself.
"""
