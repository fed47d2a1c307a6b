"""Changes of what a module gives that no recorded call shows, as another kernel makes them."""

import torch


class InKernel(torch.autograd.Function):
    """Changes a value, and its gradient."""

    @staticmethod
    def forward(context, value, forward, backward):
        context.own = backward
        with torch._C.DisableTorchFunction():
            return forward(value)

    @staticmethod
    def backward(context, gradient):
        with torch._C.DisableTorchFunction():
            return context.own(gradient), None, None
