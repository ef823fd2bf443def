"""AdamW that decays matrices alone, and the norm of a gradient."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW

from nsa.config import TrainConfig


def make_optimizer(model: nn.Module, train: TrainConfig) -> AdamW:
    """AdamW over all parameters; `weight_decay` is for those with two dimensions or more, not for norms and biases."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in parameters if each.dim() >= 2], "weight_decay": train.weight_decay},
        {"params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0},
    ]
    is_on_gpu = any(parameter.is_cuda for parameter in parameters)
    return AdamW(
        [group for group in groups if group["params"]],
        lr=train.lr,
        betas=(train.beta1, train.beta2),
        fused=is_on_gpu,
    )


def set_learning_rate(optimizer: AdamW, rate: float) -> None:
    """For the next step, in all groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def learning_rate_of(optimizer: AdamW) -> float:
    """What it goes by; the largest of its groups, which is what monitors log, and not what was meant for it."""
    return max(float(group["lr"]) for group in optimizer.param_groups)


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The Euclidean norm of all gradients together, of all processes' shards."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float, norm: Tensor) -> None:
    """Scale gradients so that their norm, given, is at most `limit`; 0 leaves them alone."""
    if limit:
        clip_grads_with_norm_([each for each in parameters if each.grad is not None], limit, norm)


def not_finite_gradients(model: nn.Module) -> list[str]:
    """Names of the parameters whose gradient is not finite."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
    ]
