"""Stand-ins for trainers that need accelerators to be used in earnest, written for these tests.

They keep gradients, moments and parameters where the trainers do, under the names that the trainers give them, and do
the same arithmetic over gloo. They are no copies: what they do not need, they lack.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Bucket(NamedTuple):
    """As Megatron's: parameters whose gradients are in one buffer."""

    params_list: list[nn.Parameter]
    grad_data: Tensor


class BucketGroup:
    """As Megatron's: reduces the buffers of its buckets."""

    def __init__(self, buckets: list[Bucket]) -> None:
        self.buckets = buckets
        self.grad_reduce_handle = None

    def start_grad_sync(self) -> None:
        for bucket in self.buckets:
            bucket.grad_data.div_(dist.get_world_size())
            dist.all_reduce(bucket.grad_data)


class MainGradients(nn.Module):
    """As Megatron's ``DistributedDataParallel``: gradients go to ``main_grad`` in float32, and ``grad`` is cleared."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        parameters = list(module.parameters())
        half = len(parameters) // 2
        self.bucket_groups = [BucketGroup([self._bucket(each)]) for each in (parameters[:half], parameters[half:])]
        self._nodes = [self._hook(each) for each in parameters]

    def _bucket(self, parameters: list[nn.Parameter]) -> Bucket:
        data, begin = torch.zeros(sum(each.numel() for each in parameters)), 0
        for each in parameters:
            each.main_grad = data[begin : begin + each.numel()].view_as(each)
            begin += each.numel()
        return Bucket(parameters, data)

    def _hook(self, parameter: nn.Parameter) -> Any:
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]

        def add(*_: Any) -> None:
            parameter.main_grad.add_(parameter.grad)
            parameter.grad = None

        node.register_hook(add)
        return node  # lives as long as it is held

    def forward(self, *args: Any) -> Any:
        return self.module(*args)

    def finish_grad_sync(self) -> None:
        for group in self.bucket_groups:
            group.start_grad_sync()

    def zero_grad_buffer(self) -> None:
        for group in self.bucket_groups:
            for bucket in group.buckets:
                bucket.grad_data.zero_()


class Range(NamedTuple):
    """Elements of a flattened tensor."""

    start: int
    end: int


class DistributedMain:
    """As Megatron's distributed optimizer: each rank updates its range of the buffers, and gathers the parameters."""

    def __init__(self, model: MainGradients, lr: float) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        self.buffers: list[Any] = []
        self.model_param_group_index_map: dict[nn.Parameter, tuple[int, int]] = {}
        self._ranges: dict[nn.Parameter, Range] = {}
        self._shards: dict[nn.Parameter, nn.Parameter] = {}
        for group in model.bucket_groups:
            for bucket in group.buckets:
                self.buffers.append(SimpleNamespace(param_index_map=dict.fromkeys(bucket.params_list)))
                size, begin = -(-bucket.grad_data.numel() // world), 0
                for each in bucket.params_list:
                    first, last = max(rank * size - begin, 0), min((rank + 1) * size - begin, each.numel())
                    begin += each.numel()
                    each.main_param_sharded = True
                    if first < last:
                        self._add(each, Range(first, last))
        self.optimizer = torch.optim.AdamW(self._shards.values(), lr=lr)

    def _add(self, parameter: nn.Parameter, own: Range) -> None:
        self.model_param_group_index_map[parameter] = (0, len(self._shards))
        self._ranges[parameter] = own
        shard = nn.Parameter(parameter.detach().view(-1)[own.start : own.end].clone().float())
        self._shards[parameter] = parameter.main_param = shard

    def _get_model_param_range_map(self, parameter: nn.Parameter) -> dict[str, Range]:
        return {"param": self._ranges[parameter]}

    @torch.no_grad()
    def step(self) -> tuple[bool, None, None]:
        for parameter, shard in self._shards.items():
            own = self._ranges[parameter]
            shard.grad = parameter.main_grad.view(-1)[own.start : own.end].float()
        self.optimizer.step()
        for buffer in self.buffers:
            for parameter in buffer.param_index_map:
                whole = torch.zeros(parameter.numel())
                if parameter in self._shards:
                    own = self._ranges[parameter]
                    whole[own.start : own.end] = self._shards[parameter]
                dist.all_reduce(whole)
                parameter.copy_(whole.view_as(parameter))
        return True, None, None


class ZeroPartitions:
    """As DeepSpeed's stages 1 and 2: one flat partition in float32 for each group of parameters, stepped in turn."""

    def __init__(self, groups: list[list[nn.Parameter]], lr: float) -> None:
        self._groups = groups
        self.single_partition_of_fp32_groups: list[nn.Parameter] = []
        self._sizes: list[int] = []
        for index, group in enumerate(groups):
            flat = torch.cat([each.detach().flatten() for each in group])
            size = -(-flat.numel() // dist.get_world_size())
            begin = dist.get_rank() * size
            self._sizes.append(size)
            self.single_partition_of_fp32_groups.append(nn.Parameter(flat[begin : begin + size].clone()))
            self._link(group, index, begin, begin + size)
        self.optimizer = torch.optim.AdamW([{"params": [each]} for each in self.single_partition_of_fp32_groups], lr=lr)

    def _link(self, group: list[nn.Parameter], index: int, begin: int, end: int) -> None:
        place = 0
        for each in group:
            first, last = max(begin, place), min(end, place + each.numel())
            each._hp_mapping = None
            if first < last:
                each._hp_mapping = SimpleNamespace(
                    param_group_index=index,
                    lp_fragment_address=SimpleNamespace(start=first - place, numel=last - first),
                    hp_fragment_address=SimpleNamespace(start=first - begin, numel=last - first),
                )
            place += each.numel()

    @torch.no_grad()
    def step(self) -> None:
        all_groups = self.optimizer.param_groups
        for index, group in enumerate(self._groups):
            gradient = torch.cat([each.grad.flatten() for each in group]) / dist.get_world_size()
            dist.all_reduce(gradient)
            partition, size = self.single_partition_of_fp32_groups[index], self._sizes[index]
            begin = dist.get_rank() * size
            partition.grad = gradient[begin : begin + size].clone()
            self.optimizer.param_groups = [all_groups[index]]
            self.optimizer.step()
            partition.grad = None
            whole = torch.zeros(gradient.numel())
            whole[begin : begin + size] = partition
            dist.all_reduce(whole)
            place = 0
            for each in group:
                each.copy_(whole[place : place + each.numel()].view_as(each))
                each.grad = None
                place += each.numel()
        self.optimizer.param_groups = all_groups
