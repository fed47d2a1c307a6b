"""One guard around every call into a plugin.

Whatever a plugin raises, even ``sys.exit``, becomes an error that names it, and so does a result that is not what the
contract says. `GuardedOffer` does both for the methods of an object that a hook returned, `plugin_call` and `checked`
for the objects that these methods return.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from msprobe_core.errors import BrokenPluginError, MsprobeError, PluginError
from msprobe_core.interrupts import is_of_a_signal

_MAX_REASON = 300
"""Characters of an exception's description that are recorded in the place of a value."""

_MAX_SHOWN = 120

_T = TypeVar("_T")


class UserCodeError(BaseException):
    """Carries an error of the training itself through the probe's code.

    A framework may report the error of an operator at the next synchronisation, which may be the probe's. If the probe
    suppressed it, it would be lost, and the training would continue with unwritten memory.
    """

    def __init__(self, error: Exception) -> None:
        """Wrap an error.

        Args:
            error: The training's error.
        """
        super().__init__(str(error))
        self.error = error


@contextmanager
def plugin_call(who: str, doing: str) -> Generator[None, None, None]:
    """Turn whatever a plugin raises in the block into a `PluginError`.

    Errors of msprobe, Ctrl-C, and exceptions raised by the program's own signal handlers pass through.

    Args:
        who: Description of the plugin's object, for example ``the writer 'csv' of the plugin 'tables'``.
        doing: Description of the operation, for example ``opening a dump``.

    Raises:
        BrokenPluginError: the block has raised.
    """
    try:
        yield
    except MsprobeError:
        raise
    except BaseException as error:
        raise _of_plugin(error, who, doing) from error


def _of_plugin(error: BaseException, who: str, doing: str) -> BrokenPluginError:
    if is_of_the_program(error):
        raise error
    return BrokenPluginError(f"{who} failed at {doing} ({described(error)})")


def checked(value: _T, expected: type, who: str, doing: str) -> _T:
    """Return what a plugin gave, if it is what its contract says.

    Args:
        value: What the plugin gave.
        expected: A protocol, of which it must have all members, or a class.
        who: See `plugin_call`.
        doing: See `plugin_call`.

    Raises:
        BrokenPluginError: it is something else.
    """
    is_protocol = getattr(expected, "_is_protocol", False) is True
    missing = missing_members(value, expected) if is_protocol else []
    if missing or not (is_protocol or isinstance(value, expected)):
        lack = f": it lacks {', '.join(missing)}" if missing else ""
        raise BrokenPluginError(f"{who} returned {shown(value)} from {doing}, which is no {expected.__name__}{lack}")
    return value


def missing_members(value: object, protocol: type) -> list[str]:
    """Return the members of a protocol that an object lacks, in the order of the alphabet.

    Properties are looked up without being read, as reading one may read a whole file. A member that the protocol has as
    a method counts as missing if it cannot be called.
    """
    return sorted(name for name, member in members_of(protocol).items() if not _has(value, name, member))


def members_of(protocol: type) -> dict[str, object]:
    """Return the public members of a protocol or dataclass: methods, properties, and annotations of attributes."""
    found: dict[str, object] = {}
    for each in reversed(protocol.__mro__):
        if each is not object:
            found |= inspect.get_annotations(each) | vars(each)
    return {name: member for name, member in found.items() if not name.startswith("_")}


_NOTHING = object()


def _has(value: object, name: str, member: object) -> bool:
    found = inspect.getattr_static(value, name, _NOTHING)
    if found is _NOTHING:  # it may have ``__getattr__``
        try:
            found = getattr(value, name, _NOTHING)
        except Exception:  # noqa: BLE001  # of a third party
            return False
    # A descriptor, such as a property, may give a method.
    is_callable = callable(found) or hasattr(cast("type[object]", type(found)), "__get__")
    return found is not _NOTHING and (is_callable or not inspect.isfunction(member))


def shown(value: object) -> str:
    """Return an object of a third party in one short line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001  # of a third party
        text = f"a {type(value).__qualname__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


class GuardedOffer:
    """What a plugin offers: whatever its methods raise names the plugin, and what they return is checked.

    Looking a method up costs more than calling it, so code that calls one per tensor looks it up once.
    """

    def __init__(self, offer: Any, who: str, results: Mapping[str, type]) -> None:
        """Guard an offer.

        Args:
            offer: What a hook returned.
            who: Its name for messages.
            results: By name of a method, what it must return: a protocol or a class. The items of an `Iterable` come
                from the plugin as well, and are guarded each.
        """
        self._offer = offer
        self._who = who
        self._results = results

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also while it is copied or unpickled, when it has no offer yet
            raise AttributeError(name)
        value = getattr(self._offer, name)
        return self._guarded(value, name) if callable(value) else value

    def __repr__(self) -> str:
        return self._who

    def _guarded(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        who, expected = self._who, self._results.get(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = method(*args, **kwargs)
            except MsprobeError:
                raise
            except BaseException as error:
                raise _of_plugin(error, who, name) from error
            if expected is None:
                return result
            checked(result, expected, who, name)
            return _guarded_items(iter(result), who, name) if expected is Iterable else result

        return call


def _guarded_items(items: Iterator[_T], who: str, doing: str) -> Generator[_T, None, None]:
    try:
        while True:
            with plugin_call(who, doing):
                item = next(items, cast("_T", _NOTHING))
            if item is _NOTHING:
                return
            yield item
    finally:
        if isinstance(items, Generator):
            with plugin_call(who, doing):
                items.close()


def is_of_the_program(error: BaseException) -> bool:
    """Whether an exception that passes through the probe's code must reach the program.

    These are Ctrl-C, exceptions raised by a signal handler, and `UserCodeError`.
    """
    if isinstance(error, UserCodeError):
        return True
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()  # others get no Ctrl-C
    return is_of_a_signal(error)


def kept(error: BaseException) -> Exception:
    """Return an exception that the probe handles itself, as an `Exception`.

    Raises:
        BaseException: it must reach the program; see `is_of_the_program`.
    """
    if is_of_the_program(error):
        raise error
    return error if isinstance(error, Exception) else PluginError(described(error))


def described(error: BaseException) -> str:
    """Return type and text of an exception in one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  # of a third party
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def message_of(error: BaseException, where: str = "") -> str:
    """Return what an error says; if it is not one of ours, with its type, and where it was raised."""
    if isinstance(error, MsprobeError):
        return str(error)
    return f"{where}: {described(error)}" if where else described(error)


def reason_of(error: BaseException) -> str:
    """Return type and text of an exception in one short line, to record in the place of a value."""
    return described(error)[:_MAX_REASON]
