"""Trainings over several processes: data, tensor and pipeline parallel, and faults in communication between ranks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F  # noqa: N812

from bench.faults.kernels import OtherKernels
from bench.faults.planting import BARE, change_parameter, inside, same
from bench.faults.recording import DTYPES, MODES, STEPS
from bench.faults.truth import Kind, Phase, Registry, Truth

WORLDS = {"ddp": 2, "dp": 2, "dp8": 8, "fsdp": 2, "tp": 2, "sp": 2, "cp": 2, "ep": 2, "tp-dp": 4, "pp": 4}
"""Programs, and their number of ranks."""
SPLIT = "report"
NUM_TOKENS, WIDTH, HEADS, LENGTH, BATCH, NUM_BLOCKS, NUM_MICRO_BATCHES = 64, 32, 4, 8, 4, 4, 2


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0].clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, op: Any) -> torch.Tensor:
        del ctx
        x = x.clone()
        dist.all_reduce(x, op=op, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        del ctx
        return grads[0], None, None


def _gathered(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Return [batch, sequence, ...] from parts along the sequence."""
    own = x.transpose(0, 1).contiguous()
    whole = own.new_empty(own.shape[0] * dist.get_world_size(group), *own.shape[1:])
    dist.all_gather_into_tensor(whole, own, group=group)
    return whole.transpose(0, 1).contiguous()


def _reduced_part(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Return this rank's part along the sequence of the sum over ranks."""
    whole = x.transpose(0, 1).contiguous()
    part = whole.new_empty(whole.shape[0] // dist.get_world_size(group), *whole.shape[1:])
    dist.reduce_scatter_tensor(part, whole, group=group)
    return part.transpose(0, 1).contiguous()


class _Gather(torch.autograd.Function):
    """Gathers a sequence; the gradients of its parts are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _reduced_part(grads[0], ctx.group), None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _reduced_part(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _gathered(grads[0], ctx.group), None


class _Deal(torch.autograd.Function):
    """Sends each rank its part of the first dimension."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        given = x.contiguous()
        dealt = torch.empty_like(given)
        dist.all_to_all_single(dealt, given, group=group)
        return dealt

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Deal.apply(grads[0], ctx.group), None


class Experts(nn.Module):
    """A layer that is another one on each rank; a token goes to the rank of its place in the batch."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        every = [Mlp(None) for _ in range(dist.get_world_size(group))]
        self.group, self.own = group, every[dist.get_rank(group)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dealt = _Deal.apply(x.flatten(0, 1), self.group)
        return _Deal.apply(self.own(dealt), self.group).view_as(x)  # pyright: ignore[reportAttributeAccessIssue]


class ColumnParallelLinear(nn.Module):
    """A linear layer whose outputs are sharded over the ranks of a group."""

    def __init__(self, num_inputs: int, num_outputs: int, group: Any) -> None:
        super().__init__()
        self.group, self.is_sequence_parallel = group, False
        self.whole = nn.Linear(num_inputs, num_outputs)
        self.weight, self.bias = _share(self.whole.weight, 0, group), _share(self.whole.bias, 0, group)
        del self.whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.group is not None:
            enter = _Gather if self.is_sequence_parallel else _Copy
            x = enter.apply(x, self.group)  # pyright: ignore[reportAssignmentType]
        return F.linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear layer whose inputs are sharded over the ranks of a group, which sum their results."""

    def __init__(self, num_inputs: int, num_outputs: int, group: Any) -> None:
        super().__init__()
        self.group = group
        self.reduces, self.op, self.is_sequence_parallel = True, dist.ReduceOp.SUM, False
        whole = nn.Linear(num_inputs, num_outputs)
        self.weight, self.bias = _share(whole.weight, 1, group), nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.linear(x, self.weight)
        if self.group is not None and self.is_sequence_parallel:
            x = _ReduceScatter.apply(x, self.group)  # pyright: ignore[reportAssignmentType]
        elif self.group is not None and self.reduces:
            x = _Reduce.apply(x, self.group, self.op)  # pyright: ignore[reportAssignmentType]
        return x + self.bias


def _share(whole: torch.Tensor, dim: int, group: Any) -> nn.Parameter:
    if group is None:
        return nn.Parameter(whole.detach().clone())
    part = whole.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]
    return nn.Parameter(part.detach().clone())


class Attention(nn.Module):
    def __init__(self, group: Any) -> None:
        super().__init__()
        self.query = ColumnParallelLinear(WIDTH, WIDTH, group)
        self.key = ColumnParallelLinear(WIDTH, WIDTH, group)
        self.value = ColumnParallelLinear(WIDTH, WIDTH, group)
        self.out = RowParallelLinear(WIDTH, WIDTH, group)
        self.context: Any = None
        self.offset = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [one(x) for one in (self.query, self.key, self.value)]
        if self.context is not None:
            made[1:] = [_Gather.apply(one, self.context) for one in made[1:]]
        heads = [one.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for one in made]
        if self.context is None:
            mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        else:
            own, every = (torch.arange(one.shape[1]) for one in made[:2])
            mask = every[None] <= own[:, None] + self.offset
            mixed = F.scaled_dot_product_attention(*heads, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, group: Any) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(WIDTH, 2 * WIDTH, group)
        self.down = RowParallelLinear(2 * WIDTH, WIDTH, group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, group: Any) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention(group)
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), Mlp(group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Net(nn.Module):
    """A small transformer, or one of ``num_stages`` stages of it."""

    def __init__(self, group: Any = None, stage: int = 0, num_stages: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        embed, blocks = nn.Embedding(NUM_TOKENS, WIDTH), [Block(group) for _ in range(NUM_BLOCKS)]
        head = nn.Linear(WIDTH, NUM_TOKENS)
        self.embed = embed if stage == 0 else nn.Identity()
        share = NUM_BLOCKS // num_stages
        self.blocks = nn.ModuleDict({str(i): block for i, block in enumerate(blocks) if i // share == stage})
        self.head = head if stage == num_stages - 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        return self.head(x)


class ParallelTraining:
    """One rank's part of a training.

    Attributes:
        reduce: Averages the gradients over the ranks with other data.
        change_tokens: Called with a step's tokens of all replicas [replicas, batch, length]; returns this rank's.
        received: Inputs of a stage, the latest last.
    """

    def __init__(self, program: str, dtype: str, groups: dict[str, Any]) -> None:
        self.program, self.dtype, self.groups = program, dtype, groups
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        tensor = groups["tensor"] if program in ("tp", "tp-dp", "sp") else None
        self.num_replicas = {"ddp": 2, "dp": 2, "tp-dp": 2, "dp8": 8, "fsdp": 2, "ep": 2}.get(program, 1)
        self.replica = self.rank // 2 if program == "tp-dp" else self.rank if self.num_replicas > 1 else 0
        stages = (self.rank, self.world) if program == "pp" else (0, 1)
        self.net = Net(tensor, *stages)
        self.has_parts = program in ("sp", "cp")  # of the sequence
        self._arrange()
        self.net = self.net.to(DTYPES[dtype])
        self.model: nn.Module = nn.parallel.DistributedDataParallel(self.net) if program == "ddp" else self.net
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2, foreach=False)
        self.reduce: Callable[[], object] = self.average
        self.data_group = groups["data"]
        self.choose: Callable[[torch.Tensor, int], torch.Tensor] = lambda tokens, _: tokens[self.replica]
        self.received: list[torch.Tensor] = []
        self.use_received: Callable[[int], torch.Tensor] = lambda i: self.received[i]
        self.sent_gradient: Callable[[torch.Tensor], torch.Tensor] = lambda gradient: gradient
        self.undo: list[Callable[[], None]] = []

    def _arrange(self) -> None:
        """Arrange the network over the ranks, as far as its layers do not do that themselves."""
        for block in self.net.blocks.values():
            for module in block.modules():
                if self.program == "sp" and isinstance(module, (ColumnParallelLinear, RowParallelLinear)):
                    module.is_sequence_parallel = True
                if self.program == "cp" and isinstance(module, Attention):
                    module.context, module.offset = self.groups["tensor"], self.rank * LENGTH // self.world
            if self.program == "ep":
                block.mlp = Experts(self.groups["tensor"])  # pyright: ignore[reportArgumentType]
            if self.program == "fsdp":
                fully_shard(block)
        if self.program == "fsdp":
            fully_shard(self.net)

    def module(self, path: str) -> Any:
        return self.net.get_submodule(path)

    def average(self) -> None:
        """Average the gradients one by one."""
        if self.program not in ("dp", "dp8", "tp-dp", "sp", "cp", "ep"):
            return
        for name, parameter in self.net.named_parameters():
            if self.is_replicated(name):
                self.reduce_one(parameter, divides=not self.has_parts)

    def is_replicated(self, name: str) -> bool:
        """Whether all ranks have a parameter, so that its gradients are put together."""
        if self.program == "sp":
            return "norm" in name or "embed" in name or "head" in name or name.endswith(("out.bias", "down.bias"))
        return self.program != "ep" or ".own." not in name

    def reduce_one(self, parameter: nn.Parameter, *, divides: bool = True, **options: Any) -> None:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, **{"group": self.data_group, **options})
        if divides:
            parameter.grad.div_(self.num_replicas)

    def tokens(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(50 + step)
        every = torch.randint(0, NUM_TOKENS, (self.num_replicas, BATCH, LENGTH), generator=generator)
        return self.choose(every, step)

    def _losses(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        if self.program == "pp":
            return self._pipeline(tokens)
        if not self.has_parts:
            return [self.loss(self.model(tokens), tokens)]
        parts = [each.chunk(self.world, 1)[self.rank] for each in (tokens, F.pad(tokens[:, 1:], (0, 1), value=-100))]
        logits = self.model(parts[0].contiguous())
        total = F.cross_entropy(logits.flatten(0, 1).float(), parts[1].flatten(), reduction="sum")
        return [total / (tokens.numel() - len(tokens))]

    def loss(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())

    def step(self, step: int) -> list[torch.Tensor]:
        """Train one step, and return tensors that differ if two trainings differ."""
        torch.manual_seed(step)
        tokens = self.tokens(step)
        losses = self._losses(tokens)
        if self.program != "pp":
            losses[0].backward()
        self.reduce()
        seen = [loss.detach() for loss in losses] + [
            p.grad.clone() for p in self.net.parameters() if p.grad is not None
        ]
        self.optimizer.step()
        self.optimizer.zero_grad()
        seen += [p.detach().clone() for p in self.net.parameters()]
        return [one.to_local() if isinstance(one, DTensor) else one for one in seen]

    def _pipeline(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """Run all micro-batches forward, then backward."""
        is_first, is_last = self.rank == 0, self.rank == self.world - 1
        parts = tokens.chunk(NUM_MICRO_BATCHES)
        self.received = []
        inputs: list[torch.Tensor] = []
        results: list[torch.Tensor] = []
        for i, part in enumerate(parts):
            given = part
            if not is_first:
                buffer = torch.empty(*part.shape, WIDTH, dtype=DTYPES[self.dtype])
                dist.recv(buffer, self.rank - 1)
                self.received.append(buffer)
                given = self.use_received(i).detach().clone().requires_grad_()
            inputs.append(given)
            results.append(self.model(given))
            if not is_last:
                dist.send(results[-1].detach().contiguous(), self.rank + 1)
        losses = [self.loss(r, p) / len(parts) for r, p in zip(results, parts, strict=True)] if is_last else results
        for given, loss in zip(inputs, losses, strict=True):
            if is_last:
                loss.backward()
            else:
                gradient = torch.empty_like(loss)
                dist.recv(gradient, self.rank + 1)
                loss.backward(gradient)
            if not is_first:
                assert given.grad is not None
                dist.send(self.sent_gradient(given.grad).contiguous(), self.rank - 1)
        return losses

    def fingerprint(self) -> str:
        """Train, and return a digest of this rank's results."""
        digest = hashlib.sha256()
        for step in range(STEPS):
            for tensor in self.step(step):
                digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def record(self, directory: Path, mode: str, *, other_kernels: bool, seed: int) -> None:
        """Train and record each step into ``directory``; a seed other than 0 perturbs last digits."""
        from msprobe.pytorch import PrecisionDebugger

        directory.mkdir(parents=True, exist_ok=True)
        config = directory / f"config{self.rank}.json"
        more = {"perturb": {"seed": seed}} if seed else {}
        config.write_text(json.dumps({"level": "mix", "dump_path": str(directory), **MODES[mode], **more}))
        debugger = PrecisionDebugger(str(config))
        for step in range(STEPS):
            debugger.start(self.model)
            with OtherKernels() if other_kernels else nullcontext():
                self.step(step)
            debugger.stop()
            debugger.step()
        debugger.close()
        config.unlink()


# --- faults -----------------------------------------------------------------------------------------------------------

PARALLEL_FAULTS = Registry()
_communication = Phase.COMMUNICATION
_GRADIENTS = ("Distributed.all_reduce", "Tensor.div_")


def _add(name: str, *programs: str, kinds: Sequence[Kind], phase: Phase = _communication):
    return PARALLEL_FAULTS.add(name, phase, *kinds, only=programs)


@_add("gradients not averaged on one rank", "dp", "dp8", "tp-dp", kinds=(Kind.MISSING_CALL, Kind.COMMUNICATION))
def _(training: ParallelTraining) -> Truth:
    if training.rank == 1:
        training.reduce = lambda: [training.reduce_one(p, divides=False) for p in training.net.parameters()]
    return Truth(calls=_GRADIENTS, steps=(0,), ranks=(1,))


@_add("gradient of one parameter not reduced on any rank", "dp", "dp8", "tp-dp", "sp", "cp", "ep",
      kinds=(Kind.MISSING_CALL, Kind.COMMUNICATION))  # fmt: skip
def _(training: ParallelTraining) -> Truth:
    left_out = training.net.get_parameter("blocks.1.norm2.weight")
    own = training.is_replicated
    names = {id(parameter): name for name, parameter in training.net.named_parameters()}
    training.is_replicated = lambda name: own(name) and name != names[id(left_out)]
    return Truth(calls=_GRADIENTS, steps=(0,))


@_add("one rank left out of a reduction", "dp", kinds=(Kind.COMMUNICATION, Kind.ARGUMENT))
def _(training: ParallelTraining) -> Truth:
    alone = training.net.get_parameter("blocks.1.mlp.up.weight")

    def reduce() -> None:
        for parameter in training.net.parameters():
            training.reduce_one(parameter, group=training.groups["alone" if parameter is alone else "data"])

    training.reduce = reduce
    return Truth(calls=_GRADIENTS, steps=(0,))


@_add("maximum for sum", "dp", kinds=(Kind.COMMUNICATION, Kind.ARGUMENT))
def _(training: ParallelTraining) -> Truth:
    one = training.net.get_parameter("blocks.2.mlp.up.weight")

    def reduce() -> None:
        for parameter in training.net.parameters():
            training.reduce_one(parameter, op=dist.ReduceOp.MAX if parameter is one else dist.ReduceOp.SUM)

    training.reduce = reduce
    return Truth(calls=_GRADIENTS, steps=(0,))


@_add("gradients reduced in the wrong group", "tp-dp", kinds=(Kind.COMMUNICATION, Kind.ARGUMENT))
def _(training: ParallelTraining) -> Truth:
    training.data_group = training.groups["tensor"]
    return Truth(calls=_GRADIENTS, steps=(0,))


class _Done:
    def wait(self, *_: Any) -> bool:
        return True


def _wrong_result(training: ParallelTraining, name: str, change: Callable[[int, torch.Tensor], object]) -> None:
    """Change the results of a process group's operation, inside each call of it, where no recorder sees it.

    Args:
        training: The training.
        name: Name of the operation, a method of process groups.
        change: Called with the number of the call, from 0, and the tensor that it has filled.
    """
    # As the class holds it: what getattr returns has lost that it is a method, and would be put back without its group.
    held = vars(dist.ProcessGroup)[name]
    own, calls = getattr(dist.ProcessGroup, name), [0]

    def operate(group: Any, tensors: Any, *args: Any) -> Any:
        work = own(group, tensors, *args)
        work.wait()
        with torch._C.DisableTorchFunction(), torch.no_grad():
            change(calls[0], tensors if isinstance(tensors, torch.Tensor) else tensors[0])
        calls[0] += 1
        return _Done()  # gloo waits for another message if it is asked to wait again

    setattr(dist.ProcessGroup, name, operate)
    training.undo.append(lambda: setattr(dist.ProcessGroup, name, held))


def _wrong_all_reduce(
    training: ParallelTraining, change: Callable[[torch.Tensor], Any], number: int, rank: int
) -> None:
    """Change the result of one call of a reduction on one rank."""
    if training.rank == rank:
        _wrong_result(training, "allreduce", lambda i, tensor: change(tensor) if i == number - 1 else None)


@_add("a reduction gives one rank x 1.1", "dp", kinds=(Kind.COMMUNICATION,))
def _(training: ParallelTraining) -> Truth:
    _wrong_all_reduce(training, lambda tensor: BARE.mul_(tensor, 1.1), 8, 1)
    return Truth(calls=("Distributed.all_reduce",), steps=(0,), ranks=(1,))


@_add("a scattered sum gives one rank x 1.1", "sp", kinds=(Kind.COMMUNICATION,))
def _(training: ParallelTraining) -> Truth:
    if training.rank == 1:
        _wrong_result(training, "_reduce_scatter_base", lambda i, tensor: BARE.mul_(tensor, 1.1) if i == 3 else None)
    # What a scattered sum gives differs on all ranks, so that the ranks' sum of it is wrong, and not which rank.
    return Truth(modules=("blocks.1.mlp.down",), directions=("forward",), steps=(0,))


@_add("a rank gathers one part twice", "sp", "cp", kinds=(Kind.COMMUNICATION,))
def _(training: ParallelTraining) -> Truth:
    def change(number: int, tensor: torch.Tensor) -> None:
        if number == 2:
            half = len(tensor) // 2
            BARE.copy_(tensor[half:], BARE.clone(tensor[:half]))

    if training.rank == 1:
        _wrong_result(training, "_allgather_base", change)
    modules = ("blocks.0.mlp.up", "blocks.0.attention.value") if training.program == "sp" else ("blocks.1.attention",)
    return Truth(modules=modules, directions=("forward",), steps=(0,), ranks=(1,))


@_add("tokens come back to other places", "ep", kinds=(Kind.COMMUNICATION,))
def _(training: ParallelTraining) -> Truth:
    if training.rank == 1:
        _wrong_result(
            training,
            "alltoall_base",
            lambda i, tensor: BARE.copy_(tensor, BARE.roll(tensor, 4, 0)) if i == 3 else None,
        )
    # Statistics of the tokens together are unchanged; what follows shows it.
    modules = ("blocks.1.mlp", "blocks.1", "blocks.2.norm1", "blocks.2.attention", "blocks.2.attention.query")
    return Truth(modules=modules, directions=("forward",), steps=(0,), ranks=(1,))


@_add("experts of one rank x 1.05", "ep", kinds=(Kind.SCALE,), phase=Phase.FORWARD)
def _(training: ParallelTraining) -> Truth:
    if training.rank == 1:
        inside(training.module("blocks.1.mlp.own.up"), lambda value: BARE.mul(value, 1.05))
    return Truth(modules=("blocks.1.mlp.own.up",), directions=("forward",), steps=(0,), ranks=(1,))


@_add("a part of the sequence begins at the wrong place", "cp", kinds=(Kind.MASK, Kind.COMPUTATION, Kind.ARGUMENT),
      phase=Phase.FORWARD)  # fmt: skip
def _(training: ParallelTraining) -> Truth:
    if training.rank == 1:
        training.module("blocks.1.attention").offset -= 1
    return Truth(modules=("blocks.1.attention",), directions=("forward",), steps=(0,), ranks=(1,))


@_add("gradient x 1.1 before it is scattered", "fsdp", kinds=(Kind.GRADIENT, Kind.SCALE), phase=Phase.BACKWARD)
def _(training: ParallelTraining) -> Truth:
    if training.rank == 1:
        inside(training.module("blocks.2.mlp.up"), same, lambda g: BARE.mul(g, 1.1))
    return Truth(modules=("blocks.2.mlp.up",), directions=("backward",), steps=(0,), ranks=(1,))


@_add("a reduction leaves a part of its buffer stale", "tp", kinds=(Kind.COMMUNICATION,))
def _(training: ParallelTraining) -> Truth:
    _wrong_all_reduce(training, lambda tensor: BARE.mul_(tensor.flatten()[:64], 0.5), 4, 1)
    return Truth(modules=("blocks.1.mlp.down",), steps=(0,), ranks=(1,))


@_add("missing all_reduce", "tp", "tp-dp", kinds=(Kind.MISSING_CALL, Kind.COMMUNICATION))
def _(training: ParallelTraining) -> Truth:
    training.module("blocks.1.mlp.down").reduces = False
    return Truth(modules=("blocks.1.mlp.down",), directions=("forward",), steps=(0,))


@_add("maximum for sum of a row parallel layer", "tp", kinds=(Kind.COMMUNICATION, Kind.ARGUMENT))
def _(training: ParallelTraining) -> Truth:
    training.module("blocks.2.attention.out").op = dist.ReduceOp.MAX
    return Truth(modules=("blocks.2.attention.out",), directions=("forward",), steps=(0,))


@_add("shards in the wrong order", "tp", kinds=(Kind.PARAMETER,), phase=Phase.CONFIGURATION)
def _(training: ParallelTraining) -> Truth:
    module = training.module("blocks.1.mlp.up")
    own = module.weight.detach().contiguous()
    both = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(both, own)
    change_parameter(module, "weight", lambda _: both[1 - training.rank])
    return Truth(modules=("blocks.1.mlp.up",), directions=("forward",), steps=(0,))


@_add("bias added on every rank before the sum", "tp", kinds=(Kind.COMPUTATION, Kind.EXTRA_CALL, Kind.MISSING_CALL))
def _(training: ParallelTraining) -> Truth:
    module = training.module("blocks.2.mlp.down")
    module.forward = lambda x: _Reduce.apply(F.linear(x, module.weight) + module.bias, module.group, module.op)
    return Truth(modules=("blocks.2.mlp.down",), directions=("forward",), steps=(0,))


@_add(
    "output x 1.05 on one rank", "ddp", "dp8", "fsdp", "tp", "sp", "cp", "pp", kinds=(Kind.SCALE,), phase=Phase.FORWARD
)
def _(training: ParallelTraining) -> Truth:
    if training.rank == 1:
        inside(training.module("blocks.1.mlp.up"), lambda value: BARE.mul(value, 1.05))
    return Truth(modules=("blocks.1.mlp.up",), directions=("forward",), steps=(0,), ranks=(1,))


@_add("output x 1.05 on the third stage", "pp", kinds=(Kind.SCALE,), phase=Phase.FORWARD)
def _(training: ParallelTraining) -> Truth:
    if training.rank == 2:
        inside(training.module("blocks.2.attention.query"), lambda value: BARE.mul(value, 1.05))
    return Truth(modules=("blocks.2.attention.query",), directions=("forward",), steps=(0,), ranks=(2,))


@_add("gradient x 1.1 on the third stage", "pp", kinds=(Kind.GRADIENT, Kind.SCALE), phase=Phase.BACKWARD)
def _(training: ParallelTraining) -> Truth:
    if training.rank == 2:
        inside(training.module("blocks.2.mlp.up"), same, lambda g: BARE.mul(g, 1.1))
    return Truth(modules=("blocks.2.mlp.up",), directions=("backward",), steps=(0,), ranks=(2,))


@_add("stale buffer used", "pp", kinds=(Kind.COMMUNICATION, Kind.OUTSIDE, Kind.INPUT_DATA))
def _(training: ParallelTraining) -> Truth:
    if training.rank == 2:
        training.use_received = lambda _: training.received[0]
    # The received tensor is right; the calls that use it get a wrong input.
    modules = ("", "embed", "blocks.2", "blocks.2.norm1")
    return Truth(
        modules=modules, calls=("Distributed.recv", "Tensor."), directions=("forward",), steps=(0,), ranks=(2,)
    )


@_add("stale data received", "pp", kinds=(Kind.COMMUNICATION,))
def _(training: ParallelTraining) -> Truth:
    kept: list[torch.Tensor] = []

    def change(number: int, tensor: torch.Tensor) -> None:
        kept.append(BARE.clone(tensor))
        if training.rank == 1 and number == 1:
            BARE.copy_(tensor, kept[0])

    _wrong_result(training, "recv", change)
    return Truth(calls=("Distributed.recv",), directions=("forward",), steps=(0,), ranks=(1,))


@_add("gradient sent x 1.2", "pp", kinds=(Kind.COMMUNICATION, Kind.GRADIENT, Kind.SCALE, Kind.EXTRA_CALL,
                                          Kind.OUTSIDE, Kind.ARGUMENT))  # fmt: skip
def _(training: ParallelTraining) -> Truth:
    if training.rank == 2:
        training.sent_gradient = lambda gradient: BARE.mul(gradient, 1.2)
    return Truth(calls=("Distributed.send", "Tensor."), steps=(0,), ranks=(2,))


@_add("weights of one replica differ", "ddp", "dp", "dp8", "cp", "ep", "tp-dp", kinds=(Kind.PARAMETER, Kind.REPLICAS),
      phase=Phase.CONFIGURATION)  # fmt: skip
def _(training: ParallelTraining) -> Truth:
    if training.rank == 1:
        change_parameter(training.module("blocks.1.norm2"), "weight", lambda weight: weight * 1.1)
    return Truth(modules=("blocks.1.norm2",), directions=("forward",), steps=(0,), ranks=(1,))


@_add("one replica not updated", "dp", kinds=(Kind.OPTIMIZER, Kind.REPLICAS, Kind.PARAMETER), phase=Phase.OPTIMIZER)
def _(training: ParallelTraining) -> Truth:
    if training.rank == 1:
        for group in training.optimizer.param_groups:
            group["lr"] = 0.0
    return Truth(groups=("optimizer",), ranks=(1,))


@_add("learning rate of one replica x 1.1", "ddp", "dp", "dp8", "cp", "ep",
      kinds=(Kind.OPTIMIZER, Kind.REPLICAS, Kind.ARGUMENT), phase=Phase.OPTIMIZER)  # fmt: skip
def _(training: ParallelTraining) -> Truth:
    if training.rank == 1:
        for group in training.optimizer.param_groups:
            group["lr"] *= 1.1
    return Truth(groups=("optimizer",), ranks=(1,))


_INPUT = ("", "embed")


@_add("data of two ranks swapped", "ddp", "dp", kinds=(Kind.INPUT_DATA,), phase=Phase.CONFIGURATION)
def _(training: ParallelTraining) -> Truth:
    training.choose = lambda tokens, _: tokens[1 - training.replica]
    return Truth(modules=_INPUT, directions=("forward",), steps=(0,))


@_add(
    "one rank gets the data of another",
    "ddp",
    "dp",
    "dp8",
    "fsdp",
    "ep",
    kinds=(Kind.INPUT_DATA,),
    phase=Phase.CONFIGURATION,
)
def _(training: ParallelTraining) -> Truth:
    training.choose = lambda tokens, _: tokens[0]
    return Truth(modules=_INPUT, directions=("forward",), steps=(0,), ranks=(1,))


@_add("tokens shuffled on one rank", "ddp", "dp", kinds=(Kind.INPUT_DATA,), phase=Phase.CONFIGURATION)
def _(training: ParallelTraining) -> Truth:
    if training.rank == 1:
        training.choose = lambda tokens, _: tokens[training.replica].flatten().flip(0).view(BATCH, LENGTH)
    # Statistics of the tokens and of their embeddings are unchanged; those of attention and loss are not.
    modules = (*_INPUT, "blocks.0.attention")
    return Truth(modules=modules, directions=("forward",), steps=(0,), ranks=(1,))


# --- processes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One recording of a job of several processes.

    Attributes:
        program: Name of the program.
        dtype: Dtype of the model.
        place: Directory of the recording; fingerprints and truth are written next to it.
        mode: Configuration of the recording.
        fault: Name of the fault; empty for none.
        seed: Seed of a perturbation of last digits; 0 for none.
        other_kernels: Whether it runs on alternative kernels.
    """

    program: str
    dtype: str
    place: Path
    mode: str
    fault: str = ""
    seed: int = 0
    other_kernels: bool = False


def run_jobs(jobs: Sequence[Job], scratch: Path) -> None:
    """Record jobs; those with the same number of processes share the processes."""
    for world in sorted({WORLDS[job.program] for job in jobs}):
        own = [job for job in jobs if WORLDS[job.program] == world]
        scratch.mkdir(parents=True, exist_ok=True)
        meeting = scratch / f"rendezvous{world}"
        meeting.unlink(missing_ok=True)
        torch.multiprocessing.spawn(_rank_main, (own, world, meeting), world)


def _rank_main(rank: int, jobs: Sequence[Job], world: int, meeting: Path) -> None:
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=120)
    )
    groups: dict[str, Any] = {"tensor": dist.group.WORLD, "data": dist.group.WORLD}
    alone = [dist.new_group([i]) for i in range(world)]
    groups["alone"] = alone[rank]
    quads: dict[str, Any] = {}
    if world == 4:
        tensor, data = [dist.new_group(g) for g in ([0, 1], [2, 3])], [dist.new_group(g) for g in ([0, 2], [1, 3])]
        quads = {"tensor": tensor[rank // 2], "data": data[rank % 2]}
    for job in jobs:
        _run_one(job, {**groups, **(quads if job.program == "tp-dp" else {})}, rank)
        dist.barrier()
    dist.destroy_process_group()


def _run_one(job: Job, groups: dict[str, Any], rank: int) -> None:
    training = _planted(job, groups)[0]
    print_of = training.fingerprint()
    _undo(training)
    training, truth = _planted(job, groups)
    training.record(job.place, job.mode, other_kernels=job.other_kernels, seed=job.seed)
    _undo(training)
    if not job.seed:
        note = {"fingerprint": print_of, "truth": None if truth is None else vars(truth)}
        job.place.with_name(f"{job.place.name}.rank{rank}.json").write_text(json.dumps(note))


def notes_of(job: Job) -> tuple[list[str], list[Truth]]:
    """Return the fingerprint of each rank, and the location of the fault from each rank, which are all equal."""
    paths = [job.place.with_name(f"{job.place.name}.rank{rank}.json") for rank in range(WORLDS[job.program])]
    notes = [json.loads(path.read_text()) for path in paths]
    return [note["fingerprint"] for note in notes], [Truth(**note["truth"]) for note in notes if note["truth"]]


def _planted(job: Job, groups: dict[str, Any]) -> tuple[ParallelTraining, Truth | None]:
    training = ParallelTraining(job.program, job.dtype, groups)
    truth = PARALLEL_FAULTS.faults[job.fault].plant(training) if job.fault else None
    return training, truth


def _undo(training: ParallelTraining) -> None:
    for undo in training.undo:
        undo()
