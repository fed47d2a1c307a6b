"""What recording could leave in a model of PyTorch, and in PyTorch itself."""

import torch
from torch.autograd import Variable

HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks",
)  # fmt: skip
CALL = "_compiled_call_impl"


def traces_in(model: torch.nn.Module) -> object:
    """Return what is equal before a window and after it."""
    modules = [
        (
            sorted(vars(module)),
            [len(getattr(module, name, ())) for name in HOOKS],
            vars(module).get("_compiled_call_impl"),
        )
        for module in model.modules()
    ]
    parameters = [
        (len(parameter._backward_hooks or ()), len(parameter._post_accumulate_grad_hooks or ()))
        for parameter in model.parameters()
    ]
    replaced = [Variable._execution_engine, torch.overrides.has_torch_function, torch.utils.swap_tensors]
    return modules, parameters, torch._C._len_torch_function_stack(), list(map(id, replaced))
