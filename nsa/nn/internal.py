"""What the modules take from torch that torch does not promise: its private names are used here alone."""

from torch import nn


def runs_forward_alone(module: nn.Module) -> bool:
    """Whether a call of the module is its `forward` and nothing else: no hook, not compiled.

    `_forward_hooks`, `_forward_pre_hooks`, `_compiled_call_impl` and, among `_modules`, the `_orig_mod` of what
    torch.compile returns; nothing public tells.
    """
    has_hooks = bool(module._forward_hooks or module._forward_pre_hooks)
    return not has_hooks and module._compiled_call_impl is None and "_orig_mod" not in module._modules
