"""Training steps as users have them: step(module, optimizer, batch), which returns its loss; a fault is marked."""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

VOCABULARY, DIM = 61, 16


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, DIM)
        self.head = nn.Linear(DIM, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids).cumsum(1).tanh())


def loss_of(module: nn.Module, ids: Tensor, shift: int = 1) -> Tensor:
    logits = module(ids)[:, :-shift]
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, shift:].flatten())


def right(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> float:
    optimizer.zero_grad()
    loss = loss_of(module, ids)
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def in_float32(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor, sign: float = 1.0) -> Tensor:
    """Its targets have a dtype of their own, which matrices of another are not multiplied with."""
    optimizer.zero_grad()
    targets = torch.eye(VOCABULARY, DIM, dtype=torch.float32)[ids]
    loss = (module.embed(ids) @ targets.mT).square().mean()
    (sign * loss).backward()
    optimizer.step()
    return loss


def climbs_in_float32(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    return in_float32(module, optimizer, ids, -1.0)


def clips_too_late(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(module, ids)
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)  # here
    return loss


def clamps_too_late(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    loss = loss_of(module, ids)
    loss.backward()
    optimizer.step()
    for parameter in module.parameters():
        parameter.grad.clamp_(-1, 1)  # here
    optimizer.zero_grad(set_to_none=False)
    return loss


def shifts_twice(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(module, ids, 2)  # here
    loss.backward()
    optimizer.step()
    return loss


def logs_the_norm(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(module, ids)
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(module.parameters(), float("inf"))
    return loss


def clears_in_place_and_adds_up(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> float:
    total = 0.0
    for rows in (ids, ids.flip(0)):
        optimizer.zero_grad(set_to_none=False)
        for part in rows.chunk(2):
            loss = loss_of(module, part) / min(2, len(rows))
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
    return total / 2


def clips_each_part(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    optimizer.zero_grad()
    parts = ids.chunk(2)
    for part in parts:
        loss = loss_of(module, part) / len(parts)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)  # here
    optimizer.step()
    return loss


def clamps_each_part(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    optimizer.zero_grad(set_to_none=False)
    for part in ids.split(1):
        loss = loss_of(module, part)
        loss.backward()
        for parameter in module.parameters():
            parameter.grad.clamp_(-0.1, 0.1)  # here
    optimizer.step()
    return loss


def skips_and_goes_on(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """A step that is left out where its gradients are too large, between others; and one for each part."""
    for index, part in enumerate(ids.split(1)):
        loss = loss_of(module, part)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        if index % 2 and norm > 0:
            optimizer.step()
        optimizer.zero_grad(set_to_none=index > 1)
    return loss


def keeps_a_mean(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """Gradients are a mean over the parts at every moment."""
    optimizer.zero_grad()
    for index, part in enumerate(ids.split(1)):
        loss = loss_of(module, part) / (index + 1)
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(index / (index + 1))
        loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    return loss


def of_one_argument(module: nn.Module) -> float:
    return 0.0


def skips_what_is_finite(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(module, ids)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    if torch.isfinite(norm):
        return loss  # here
    optimizer.step()
    return loss


_OWN: WeakKeyDictionary[nn.Module, torch.optim.Optimizer] = WeakKeyDictionary()


def holds_matrices_alone(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    if module not in _OWN:
        matrices = [each for each in module.parameters() if each.dim() > 1]
        _OWN[module] = torch.optim.SGD(matrices, lr=0.1)  # here
    _OWN[module].zero_grad()
    loss = loss_of(module, ids)
    loss.backward()
    _OWN[module].step()
    return loss
