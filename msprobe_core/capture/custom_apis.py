"""APIs that the user registers: functions that the framework plugin does not intercept."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from msprobe_core.config import ListedApi
from msprobe_core.errors import ConfigError, SessionError
from msprobe_core.interception.patching import Function, FunctionPatch, Patches
from msprobe_core.protocols.framework import Attachment

_logger = logging.getLogger(__name__)

DEFAULT_PREFIX = "Custom"


class _Registration:
    """One function with its prefix; keeps a reference to its owner."""

    def __init__(self, owner: Any, attribute: str, prefix: str) -> None:
        self.owner = owner
        self.attribute = attribute
        self.prefix = prefix

    def is_for(self, owner: Any, attribute: str) -> bool:
        return self.owner is owner and self.attribute == attribute


class CustomApis:
    """The functions that the user registered, or listed in a file; patched while a window is open."""

    def __init__(self, listed: Sequence[ListedApi] = ()) -> None:
        """Begin with the APIs of the file; they are resolved when recording starts.

        Args:
            listed: APIs of the setting ``custom_apis``.
        """
        self._lock = threading.RLock()
        self._registered: list[_Registration] = []
        self._listed = tuple(listed)
        self._found: dict[ListedApi, Any] = {}
        self._pending = list(listed)
        self._reasons: dict[ListedApi, str] = {}
        self._attachment: Attachment | None = None
        self._made: dict[_Registration, Patches] = {}
        self._installed: dict[_Registration, Patches] = {}

    def register(self, owner: Any, attribute: str, prefix: str | None = None) -> None:
        """Record ``owner.attribute`` from now on; a second call changes the prefix.

        Raises:
            ConfigError: there is no such attribute, it cannot be called or replaced, or the prefix is invalid.
        """
        if not isinstance(attribute, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users may pass anything
            raise ConfigError(f"register_custom_api: 'api' is {attribute!r}, but must be the name of a function")
        where = f"register_custom_api: {_name_of(owner)}.{attribute}"
        if prefix is None:
            prefix = _name_of(owner)
        elif not isinstance(prefix, str) or not all(prefix.split(".")) or any(c.isspace() for c in prefix):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{where}: 'api_prefix' is {prefix!r}, but must be a word such as 'Custom'")
        try:
            function = getattr(owner, attribute)
        except AttributeError as error:
            raise ConfigError(f"{where} does not exist; give an object and the name of a function it has") from error
        if not callable(function):
            raise ConfigError(f"{where} is {type(function).__name__}, which cannot be called; give a function")
        with self._lock:
            self._forget(owner, attribute)
            registration = _Registration(owner, attribute, prefix)
            self._check(registration, where)
            self._registered.append(registration)
            if self._attachment is not None:
                self._install(registration)

    def restore(self, owner: Any, attribute: str) -> None:
        """Stop recording ``owner.attribute``, and restore the original function.

        Raises:
            SessionError: it is not registered.
        """
        with self._lock:
            if not self._forget(owner, attribute):
                raise SessionError(
                    f"restore_custom_api: {_name_of(owner)}.{attribute} is not registered; "
                    "give what register_custom_api was given"
                )

    def relist(self, listed: Sequence[ListedApi]) -> None:
        """Replace the APIs of the previous file; APIs that the user registered stay.

        Args:
            listed: See the constructor.
        """
        with self._lock:
            if tuple(listed) == self._listed:
                return
            for api in self._listed:
                if api not in listed and api in self._found:
                    self._forget(self._found.pop(api), api.name)
            self._pending = [api for api in listed if api not in self._found]
            self._reasons = {}
            self._listed = tuple(listed)

    def attach(self, attachment: Attachment) -> None:
        """Patch every resolved function, and try to resolve those that were not found before.

        Args:
            attachment: Calls a function and records the call.
        """
        with self._lock:
            self._resolve()
            self._attachment = attachment
            for registration in self._registered:
                self._install(registration)

    def detach(self) -> None:
        """Remove all patches."""
        with self._lock:
            self._attachment = None
            while self._installed:
                _, patches = self._installed.popitem()
                patches.remove()

    def complain(self) -> None:
        """Warn about APIs of the file that were never found."""
        if self._reasons:
            _logger.warning("'custom_apis': never found, so not recorded: %s", self._missing())
            self._reasons.clear()

    def _missing(self) -> str:
        return "; ".join(f"{api.module}.{api.name} ({reason})" for api, reason in self._reasons.items())

    def _resolve(self) -> None:
        is_first = not self._reasons
        for api in tuple(self._pending):
            reason = self._try_to_register(api)
            if reason is None:
                self._pending.remove(api)
                self._reasons.pop(api, None)
            else:
                self._reasons[api] = reason
        if is_first and self._reasons:
            _logger.warning("'custom_apis': not found yet, will be looked for at each start: %s", self._missing())

    def _try_to_register(self, api: ListedApi) -> str | None:
        """Return the reason of a failure, or ``None`` if the API is registered."""
        try:
            owner = find_owner(api.module)
            self.register(owner, api.name, api.module)
            self._found[api] = owner
        except Exception as error:  # noqa: BLE001  # importing a user's module may raise anything
            return " ".join(f"{type(error).__name__}: {error}".split())
        return None

    def _check(self, registration: _Registration, where: str) -> None:
        """Raise if the attribute cannot be replaced, by replacing it once."""
        patch = FunctionPatch(registration.owner, registration.attribute, _call)
        try:
            patch.install()
        except (AttributeError, TypeError) as error:
            raise ConfigError(f"{where} cannot be replaced ({error}); register a function that calls it") from error
        patch.remove()

    def _install(self, registration: _Registration) -> None:
        # Reuse the patches: searching all modules that imported the function is expensive, and each step may open a
        # window.
        patches = self._made.get(registration)
        if patches is None:
            patches = self._made[registration] = self._patches(registration)
        patches.install()
        self._installed[registration] = patches

    def _patches(self, registration: _Registration) -> Patches:
        prefix, name = registration.prefix, registration.attribute

        def handle(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            attachment = self._attachment
            if attachment is None:
                return function(*args, **kwargs)
            return attachment.call(prefix, name, function, args, kwargs)

        def steps_aside() -> bool:
            attachment = self._attachment
            return attachment is not None and attachment.is_compiling()

        return Patches([FunctionPatch(registration.owner, name, handle, steps_aside)])

    def _forget(self, owner: Any, attribute: str) -> bool:
        found = next((each for each in self._registered if each.is_for(owner, attribute)), None)
        if found is None:
            return False
        self._registered.remove(found)
        self._made.pop(found, None)
        patches = self._installed.pop(found, None)
        if patches is not None:
            patches.remove()
        return True


def find_owner(path: str) -> Any:
    """Return the module ``path``, or the class or object inside a module that it names.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such attribute.
    """
    module, _, rest = path, "", ""
    while True:
        try:
            found: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            shorter, _, last = module.rpartition(".")
            if not shorter:
                raise
            module, rest = shorter, f"{last}.{rest}" if rest else last
    for part in rest.split(".") if rest else ():
        found = getattr(found, part)
    return found


def _call(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return function(*args, **kwargs)


def _name_of(owner: Any) -> str:
    name = getattr(owner, "__name__", None)
    return name if isinstance(name, str) and name else DEFAULT_PREFIX
