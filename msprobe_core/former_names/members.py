"""Members that the debugger had in older releases."""

from __future__ import annotations

from typing import NoReturn


class Gone:
    """A member that is no more: whoever asks for it gets an AttributeError that says what to use instead."""

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        del instance
        raise AttributeError(f"{owner.__name__} has no {self._name}(): {self._advice}")
