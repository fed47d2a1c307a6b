"""Rows of the data of a training: hashes of the inputs of its outermost modules, sample by sample."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from msprobe_core.capture.forward_window import ForwardWindow
from msprobe_core.fingerprint.rows import ordered_hash, unordered_hash
from msprobe_core.guard import UserCodeError, kept
from msprobe_core.interception.perturbation import named_tensors
from msprobe_core.manifest.facts import DataRows, Scalar
from msprobe_core.protocols.capabilities import DescribingFramework, ForwardDescribingFramework, PendingRows
from msprobe_core.protocols.framework import NamedModel

MOST_ROWS = 256
"""Rows of one input whose hashes are kept one by one."""

_MOST_INPUTS = 64
"""Inputs of one step whose rows are hashed: a window may last for thousands of forwards."""
_MAX_DEPTH = 4


@dataclass(frozen=True)
class _Pending:
    name: str
    micro_step: int
    rows: PendingRows


class RowWatcher:
    """Begins to hash the rows of the inputs of the outermost modules; implements `CallWatcher`."""

    def __init__(self, framework: DescribingFramework, note: Callable[[str, BaseException], None]) -> None:
        """Begin.

        Args:
            framework: Hashes rows.
            note: Told what failed, and why.
        """
        self._framework = framework
        self._is_tensor = cast("Any", framework).is_tensor
        self._note = note
        self._lock = threading.Lock()
        self._pending: list[_Pending] = []
        self._num_calls: dict[str, int] = {}
        self._num_inputs = 0
        self._switches: Mapping[str, Scalar] | None = None
        self._names: frozenset[str] = frozenset()
        self._forwards: ForwardWindow | None = None

    def begin(self, models: Sequence[NamedModel], forwards: ForwardWindow | None = None) -> None:
        """Begin a window."""
        self._names = frozenset(model.name for model in models)
        self._forwards = forwards

    def wants(self, path: str, type_name: str) -> bool:  # noqa: ARG002
        """Whether a module is one that was given to ``start``."""
        return path in self._names

    def before(self, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin to hash the rows of the arguments."""
        if self._forwards is not None and not self._forwards.is_inside:
            return
        try:
            self._read_switches()
            with self._lock:
                micro_step = self._num_calls.get(stem, 0)
                self._num_calls[stem] = micro_step + 1
            path = ".".join(stem.split(".")[1:-1])
            beginning = f"{path}." if path else ""
            named = [(f"args.{place}", value) for place, value in enumerate(args)]
            named += [(f"kwargs.{name}", value) for name, value in kwargs.items()]
            for name, value in named:
                for place, tensor in named_tensors(f"{beginning}{name}", value, self._is_tensor, _MAX_DEPTH):
                    self._hash(place, tensor, micro_step)
        except UserCodeError as error:
            raise error.error from None  # into the training, which it is of
        except BaseException as error:  # noqa: BLE001  # arguments are objects of the program
            kept(error)
            self._note("data", error)

    def after(self, stem: str) -> None:
        """Do nothing."""

    @property
    def switches(self) -> Mapping[str, Scalar]:
        """Switches that held for the first forward."""
        return self._switches or {}

    def _read_switches(self) -> None:
        if self._switches is None:
            self._switches = {}  # first: what fails once is not tried again
            if isinstance(self._framework, ForwardDescribingFramework):
                self._switches = self._framework.forward_switches()

    def _hash(self, name: str, tensor: Any, micro_step: int) -> None:
        if self._num_inputs >= _MOST_INPUTS:
            return
        rows = self._framework.row_hashes(tensor)
        if rows is not None:
            with self._lock:
                self._num_inputs += 1
                self._pending.append(_Pending(name, micro_step, rows))

    def fetch(self, step: int) -> list[DataRows]:
        """Return the rows that have been begun since the last call, as those of a step; may wait for a device."""
        with self._lock:
            pending, self._pending = self._pending, []
        found: list[DataRows] = []
        for each in pending:
            hashes = each.rows.hashes()
            if hashes is not None:
                found.append(
                    DataRows(
                        step=step,
                        name=each.name,
                        micro_step=each.micro_step,
                        count=len(hashes),
                        ordered=ordered_hash(hashes),
                        unordered=unordered_hash(hashes),
                        rows=tuple(f"{row:016x}" for row in hashes[:MOST_ROWS]),
                    )
                )
        return found
