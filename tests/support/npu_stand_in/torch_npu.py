"""Kernels under the name of torch_npu that run on the CPU; scripts import them by its name."""

import torch
from torch.nn import functional


class RmsNorm(torch.autograd.Function):
    """Kernels as a device has them: no function that PyTorch dispatches, and a backward of its own."""

    epsilon_factor = 1.0

    @staticmethod
    def forward(ctx, x, gamma, epsilon):
        wide = x.float()
        rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon * RmsNorm.epsilon_factor)
        ctx.save_for_backward(x, gamma)
        ctx.epsilon = epsilon
        return (wide * rstd * gamma.float()).to(x.dtype), rstd

    @staticmethod
    def backward(ctx, gradient, _):
        x, gamma = (each.detach().float().requires_grad_() for each in ctx.saved_tensors)
        with torch.enable_grad():
            result = functional.rms_norm(x, gamma.shape, gamma, ctx.epsilon)
        found = torch.autograd.grad(result, (x, gamma), gradient.float())
        return *(one.to(each.dtype) for one, each in zip(found, ctx.saved_tensors, strict=True)), None


class Attention(torch.autograd.Function):
    drops_last_key = False

    @staticmethod
    def forward(ctx, q, k, v, mask, scale):
        ctx.save_for_backward(q, k, v, mask)
        ctx.scale = scale
        with torch.enable_grad():
            scores, result = Attention.compute(q, k, v, mask, scale)
        largest = scores.amax(-1, keepdim=True)
        total = (scores - largest).exp().sum(-1, keepdim=True)
        statistics = [each.detach().expand(*each.shape[:-1], 8).contiguous() for each in (largest, total)]
        return result.detach(), *statistics, q.new_empty(0)

    @staticmethod
    def compute(q, k, v, mask, scale):
        scores = (q.float() @ k.float().transpose(-1, -2) * scale).masked_fill(mask, -torch.inf)
        if Attention.drops_last_key:
            scores = torch.cat((scores[..., :-1], torch.full_like(scores[..., -1:], -torch.inf)), -1)
        bias = torch.zeros_like(scores).masked_fill(scores == -torch.inf, -torch.inf).to(q.dtype)
        return scores, functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)

    @staticmethod
    def backward(ctx, gradient, *_):
        *inputs, mask = ctx.saved_tensors
        leaves = [each.detach().requires_grad_() for each in inputs]
        with torch.enable_grad():
            result = Attention.compute(*leaves, mask, ctx.scale)[1]
        return *torch.autograd.grad(result, leaves, gradient), None, None


def npu_rms_norm(self, gamma, epsilon=1e-6):
    return RmsNorm.apply(self, gamma, epsilon)


def npu_swiglu(x, dim=-1):
    return functional.silu(x.narrow(dim, 0, x.shape[dim] // 2)) * x.chunk(2, dim)[1]


def npu_rotary_mul(x, r1, r2):
    half = x.shape[-1] // 2
    return x * r1 + x.roll(half, -1) * r2 * torch.cat((-torch.ones(half), torch.ones(half))).to(x.dtype)


def npu_fusion_attention(query, key, value, head_num, input_layout, *, atten_mask, scale, pre_tockens, sparse_mode):
    rows, columns = query.shape[1], key.shape[1]
    mask = torch.ones(rows, columns, dtype=torch.bool).triu(1 + columns - rows)
    q, k, v = (each.unflatten(-1, (head_num, -1)).transpose(1, 2) for each in (query, key, value))
    result, *others = Attention.apply(q, k, v, mask, scale)
    return result.transpose(1, 2).flatten(2), *others, 0, 0, 0
