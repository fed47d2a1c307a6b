"""Read pickles without executing them: calls are only noted, and nothing is imported, hashed or compared.

Python's own unpickler is a C program that does what the file says. A few hundred bytes are enough to make it build a
table of 2 GB, or hash a tuple of 2 to the power of 60 elements, which no signal interrupts. Here each operation takes
time proportional to its bytes, or to the values it combines. `pickletools` of the standard library decodes the
operations.

A value may refer to one part many times. Callers traverse the result step by step, and display or compare only text and
numbers.

`read_pickle` accepts only what describes one tensor. `read_objects` accepts any names, because nothing is imported, and
keeps what is done to objects: their state, and what is added to them.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple, TypeAlias, cast

from msprobe_core.untrusted.malformed import MalformedError


class Named(NamedTuple):
    """A name that the pickle refers to."""

    module: str
    name: str


class Called(NamedTuple):
    """A call in the pickle, which was not made."""

    function: Named
    args: tuple[Any, ...]


class Outside(NamedTuple):
    """A reference to data outside of the pickle."""

    id: Any


class Entries(list[tuple[Any, Any]]):
    """A dictionary of a pickle: keys and values in their order. Keys are not hashed; they may be any values."""

    __slots__ = ()


class Built:
    """An object of a pickle, which was not made.

    Attributes:
        function: What would be called: a `Named`, or another object.
        args: Its arguments.
        state: What would be given to the object then; ``None`` if nothing.
        items: What would be appended or added to it.
        entries: What would be set as its items by key.
        position: Byte position in the pickle of the operation that would make it.
    """

    __slots__ = ("args", "entries", "function", "items", "position", "state")

    def __init__(self, function: Any, args: tuple[Any, ...], position: int = 0) -> None:
        self.function = function
        self.position = position
        self.args = args
        self.state: Any = None
        self.items: list[Any] | None = None
        self.entries: Entries | None = None

    @property
    def name(self) -> Named | None:
        """Name of the function; ``None`` if it is another object."""
        return self.function if isinstance(self.function, Named) else None


def read_pickle(content: bytes, check: Callable[[Named], None]) -> Any:
    """Return the value that a pickle describes, as plain containers, `Named`, `Called` and `Outside`.

    Args:
        content: Protocol 2 to 5, restricted to operations that describe values and calls.
        check: Called with each name; raises if the name is not allowed.

    Raises:
        MalformedError: it is not a pickle, or has other operations.
    """
    return _run(content, _Machine(check), _ACTIONS)


def read_objects(content: bytes | IO[bytes]) -> Any:
    """Return the value that a pickle describes, with all names: also `Built`, and `Entries` for dictionaries.

    Args:
        content: Protocol 2 to 5; a buffered file is read to the end of the pickle that begins at its position.

    Raises:
        MalformedError: it is not a pickle, or has operations of earlier protocols.
    """
    return _run(content, _ObjectMachine(), _OBJECT_ACTIONS)


def _run(content: bytes | IO[bytes], machine: _Machine, actions: _Actions) -> Any:
    try:
        for operation, argument, position in pickletools.genops(content):
            machine.position = position or 0
            _action(operation.name, actions)(machine, argument)
        return machine.stack.pop()
    except MalformedError as error:
        error.position = machine.position
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError, Warning) as error:
        raise MalformedError("is no pickle, or a damaged one", position=machine.position) from error


def _action(operation: str, actions: _Actions) -> Callable[[_Machine, Any], None]:
    if operation not in actions:
        raise MalformedError(f"has the operation {operation}, which no tensor needs; it was not run")
    return actions[operation]


class _Machine:
    """The stack of values, and the memo.

    Attributes:
        stack: Values since the last mark.
        memo: Stored values by the pickle's number for them. A table indexed by number could have any size.
        position: Byte position of the present operation.
    """

    def __init__(self, check: Callable[[Named], None]) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.position = 0
        self._below: list[list[Any]] = []
        self._check = check

    def mark(self) -> None:
        """Begin a new list of values."""
        self._below.append(self.stack)
        self.stack = []

    def push(self, value: Any) -> None:
        """Push a value onto the stack."""
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        """Return the values since the mark, and return to those before it."""
        found, self.stack = self.stack, self._below.pop()
        return found

    def name(self, module: Any, name: Any) -> None:
        """Push a reference to a name."""
        if not (isinstance(module, str) and isinstance(name, str)):
            raise MalformedError("refers to something that has no name")
        named = Named(module, name)
        self._check(named)
        self.stack.append(named)

    def call(self) -> None:
        """Note a call."""
        args, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Named) or type(args) is not tuple:
            raise MalformedError("calls what is no function")
        self.stack.append(Called(function, args))

    def drop(self) -> None:
        """Discard a value: attributes of objects are not kept."""
        self.stack.pop()

    def drop_top(self) -> None:
        """Discard the last value, or the last mark if there is none after it."""
        if self.stack:
            self.stack.pop()
        else:
            self.since_mark()

    def drop_marked(self) -> None:
        """Discard the values since the mark."""
        self.since_mark()

    def fill_list(self, values: list[Any]) -> None:
        """Append values to the list before them."""
        target = self.stack[-1]
        if type(target) is not list:
            raise MalformedError("adds to what is no list")
        cast("list[Any]", target).extend(values)

    def fill_set(self, values: list[Any]) -> None:
        """Add values to the set before them."""
        target = self.stack[-1]
        if type(target) is not set:
            raise MalformedError("adds to what is no set")
        cast("set[Any]", target).update(map(_plain, values))

    def fill_dict(self, values: list[Any]) -> None:
        """Add keys and values to the dictionary before them; those of a call, such as an ordered one, are not kept."""
        target = self.stack[-1]
        if type(target) is dict:
            keys = map(_plain, values[::2])
            cast("dict[Any, Any]", target).update(zip(keys, values[1::2], strict=True))
        elif not isinstance(target, Called):
            raise MalformedError("adds to what is no dictionary")


class _ObjectMachine(_Machine):
    """A machine that accepts all names, and keeps objects with what is done to them."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)

    def call(self) -> None:
        """Note a call of anything."""
        args, function = self.stack.pop(), self.stack.pop()
        if type(args) is not tuple:
            raise MalformedError("calls something with arguments that are no tuple")
        self.stack.append(Built(function, cast("tuple[Any, ...]", args), self.position))

    def call_with_names(self) -> None:
        """Note a call with arguments by name, which are kept as one more argument."""
        names, args, function = self.stack.pop(), self.stack.pop(), self.stack.pop()
        if type(args) is not tuple:
            raise MalformedError("calls something with arguments that are no tuple")
        self.stack.append(Built(function, (*cast("tuple[Any, ...]", args), names), self.position))

    def drop(self) -> None:
        """Keep the state of an object."""
        state = self.stack.pop()
        if isinstance(self.stack[-1], Built):
            self.stack[-1].state = state

    def fill_list(self, values: list[Any]) -> None:
        """Append values to the list or object before them."""
        target = self.stack[-1]
        if isinstance(target, Built):
            if target.items is None:
                target.items = []
            target.items.extend(values)
        else:
            super().fill_list(values)

    def fill_set(self, values: list[Any]) -> None:
        """Add values to the set before them, which is a list here."""
        self.fill_list(values)

    def fill_dict(self, values: list[Any]) -> None:
        """Add keys and values to the dictionary or object before them."""
        target = self.stack[-1]
        if isinstance(target, Built):
            if target.entries is None:
                target.entries = Entries()
            target = target.entries
        if not isinstance(target, Entries):
            raise MalformedError("adds to what is no dictionary")
        target.extend(zip(values[::2], values[1::2], strict=True))


def _plain(key: Any) -> Any:
    """Return a key whose hash takes time proportional to its size: a tuple may contain one element many times over."""
    if key is None or type(key) in (str, bytes, int, bool, float):
        return key
    raise MalformedError("has keys that are neither text nor numbers")


def _tuple(size: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, _: Any) -> None:
        if len(machine.stack) < size:
            raise MalformedError("takes more values together than there are")
        machine.stack[len(machine.stack) - size :] = [tuple(machine.stack[len(machine.stack) - size :])]

    return act


def _pop(machine: _Machine, count: int) -> list[Any]:
    found = machine.stack[-count:]
    del machine.stack[-count:]
    return found


def _put(machine: _Machine, number: int) -> None:
    machine.memo[number] = machine.stack[-1]


def _constant(make: Callable[[], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(make())


_Actions: TypeAlias = Mapping[str, Callable[[_Machine, Any], None]]

_ACTIONS: _Actions = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda _machine, _: None),
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "SHORT_BINSTRING", "BINSTRING", "BINUNICODE",
         "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        lambda machine, argument: machine.push(argument),
    ),
    "NONE": _constant(lambda: None),
    "NEWTRUE": _constant(lambda: True),
    "NEWFALSE": _constant(lambda: False),
    "EMPTY_TUPLE": _constant(tuple),
    "EMPTY_LIST": _constant(list),
    "EMPTY_DICT": _constant(dict),
    "EMPTY_SET": _constant(set),
    "MARK": lambda machine, _: machine.mark(),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "APPEND": lambda machine, _: machine.fill_list(_pop(machine, 1)),
    "APPENDS": lambda machine, _: machine.fill_list(machine.since_mark()),
    "ADDITEMS": lambda machine, _: machine.fill_set(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.fill_dict(_pop(machine, 2)),
    "SETITEMS": lambda machine, _: machine.fill_dict(machine.since_mark()),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _put),
    "MEMOIZE": lambda machine, _: _put(machine, len(machine.memo)),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda machine, number: machine.push(machine.memo[number])),
    "GLOBAL": lambda machine, names: machine.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*_pop(machine, 2)),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda machine, _: machine.call()),
    "BUILD": lambda machine, _: machine.drop(),
    "BINPERSID": lambda machine, _: machine.push(Outside(machine.stack.pop())),
}  # fmt: skip
"""Effect of each operation."""

_OBJECT_ACTIONS: _Actions = {
    **_ACTIONS,
    "BYTEARRAY8": lambda machine, argument: machine.push(argument),
    "EMPTY_DICT": _constant(Entries),
    "EMPTY_SET": _constant(list),
    "FROZENSET": lambda machine, _: machine.push(machine.since_mark()),
    "NEWOBJ_EX": lambda machine, _: cast("_ObjectMachine", machine).call_with_names(),
    "POP": lambda machine, _: machine.drop_top(),
    "POP_MARK": lambda machine, _: machine.drop_marked(),
}
"""Effect of each operation that describes objects; sets are lists."""
