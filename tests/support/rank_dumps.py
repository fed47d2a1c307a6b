"""Dumps of jobs of several ranks, written call by call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dumps import tensor, write_dump

BAD = {"Max": "NaN", "Min": "NaN", "Mean": "NaN", "Norm": "NaN"}
INFINITE = {"Max": "Infinity", "Mean": "Infinity", "Norm": "Infinity"}


def bad(**fields: Any) -> dict:
    """Return the record of a tensor with NaN."""
    return tensor(1.0, **BAD, **fields)


def infinite(**fields: Any) -> dict:
    """Return the record of a tensor with Inf."""
    return tensor(1.0, **INFINITE, **fields)


def value(number: Any) -> dict:
    """Return the record of an argument that is no tensor."""
    return {"type": type(number).__name__, "value": number}


def group(*ranks: int) -> dict:
    """Return the record of a process group."""
    return {"type": "torch.ProcessGroup", "group_ranks": list(ranks), "group_id": "77849d8c"}


class Rank:
    """The dump of one rank, as far as it is written."""

    def __init__(self) -> None:
        self.data: dict[str, dict] = {}
        self.parents: dict[str, str | None] = {}
        self.stacks: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}

    def __getitem__(self, number: int) -> str:
        return list(self.data)[number]

    def call(self, api: str, *inputs: Any, output: Any = None, parent: str | None = None, **kwargs: Any) -> str:
        """Add the forward record of a call, whose output is finite if none is given, and return its name."""
        number = self._counts.get(api, 0)
        self._counts[api] = number + 1
        entry = f"{api}.{number}.forward"
        outputs = output if isinstance(output, list) else [tensor() if output is None else output]
        self.data[entry] = {"input_args": list(inputs) or [tensor()], "input_kwargs": kwargs, "output": outputs}
        self.parents[entry] = parent
        return entry

    def backward(self, forward: str, input: Any = None, output: Any = None) -> str:  # noqa: A002
        """Add the backward record of an API call."""
        entry = forward.removesuffix("forward") + "backward"
        self.data[entry] = {"input": [input or tensor()], "output": [output or tensor()]}
        self.parents[entry] = self.parents.get(forward)
        return entry

    def module(self, path: str, *inputs: Any, output: Any = None, parameters: Any = None) -> str:
        """Add the forward record of a module."""
        number = self._counts.get(path, 0)
        self._counts[path] = number + 1
        entry = f"Module.{path}.forward.{number}"
        self.data[entry] = {
            "input_args": list(inputs) or [tensor()],
            "input_kwargs": {},
            "output": [output or tensor()],
            "parameters": parameters or {},
        }
        self.parents[entry] = None
        return entry

    def collective(self, name: str, members: dict | None = None, *, given: Any = None, got: Any = None, **kwargs: Any):
        """Add a collective; of ``members`` none stands for all ranks."""
        if members is not None:
            kwargs["group"] = members
        return self.call(f"Distributed.{name}", given or tensor(), output=got, **kwargs)

    def send(self, peer: int, given: Any = None, *, name: str = "send", **kwargs: Any) -> str:
        return self.call(f"Distributed.{name}", given or tensor(), value(peer), output=[None, value(peer)], **kwargs)

    def receive(self, peer: int, got: Any = None, *, name: str = "recv", **kwargs: Any) -> str:
        return self.call(f"Distributed.{name}", None, value(peer), output=[got or tensor(), value(peer)], **kwargs)

    def batch(self, *operations: tuple[str, int], got: Any = None) -> str:
        """Add a batch of ``(op, peer)``."""

        def listed(kept: str) -> list[dict]:
            return [
                {
                    "class_type": "torch.distributed.P2POp",
                    "tensor": (got or tensor() if op == "irecv" else tensor()) if op == kept else None,
                    "op": op,
                    "peer": peer,
                    "tag": 0,
                    "group": group(0, 1, 2, 3),
                }
                for op, peer in operations
            ]

        return self.call("Distributed.batch_isend_irecv", listed("isend"), output=[listed("irecv")])


def write_ranks(directory: Path, ranks: dict[int, Rank], **header: Any) -> Path:
    """Write the dumps of one step, and return its directory."""
    for number, rank in ranks.items():
        stacks = {str(i): [[entry], frames] for i, (entry, frames) in enumerate(rank.stacks.items())}
        write_dump(directory / f"rank{number}", rank.data, parents=rank.parents, stacks=stacks, **header)
    return directory


def make_ranks(world: int, work: Callable[[int, Rank], object]) -> dict[int, Rank]:
    """Return the ranks of a job in which all of them do ``work(number, rank)``."""
    ranks = {number: Rank() for number in range(world)}
    for number, rank in ranks.items():
        work(number, rank)
    return ranks
