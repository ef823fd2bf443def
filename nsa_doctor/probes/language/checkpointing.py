"""Gradients with gradient checkpointing are those without it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.probes.language.trial import LENGTH, ROWS, Pair, Trial, drawn, plain_call
from nsa_doctor.subject.language_model import LanguageModel

_REENTRANT = {"use_reentrant": False}
_SAFETY = 8.0


def grad(model: LanguageModel) -> Iterator[Trial]:
    """Gradients of every parameter in training, with and without."""
    module: Any = model.module
    if not getattr(module, "supports_gradient_checkpointing", False):
        raise NotApplicableError("it has no gradient checkpointing")

    def pair() -> Pair:
        expected = gradients(model)
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs=_REENTRANT)
        try:
            return gradients(model), expected
        finally:
            module.gradient_checkpointing_disable()

    yield Trial(
        what="gradients with gradient checkpointing and without",
        pair=pair,
        rounding=lambda: _rounding(model),
        lines=(
            drawn(LENGTH, ROWS, 0, model),
            "def gradients():",
            "    model.train().zero_grad(); torch.manual_seed(0)",
            "    with torch.enable_grad():",
            f"        logits = {plain_call(model, 'ids')}",
            "        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())",
            "    loss.backward()",
            "    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])",
            "expected = gradients()",
            f"model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={_REENTRANT!r})",
            "got = gradients()",
        ),
    )


def gradients(model: LanguageModel) -> Tensor:
    """Gradients of the usual loss by every parameter that has one, one behind the other."""
    module, was_training = model.module, model.module.training
    ids = model.ids(LENGTH, ROWS)
    module.train()
    module.zero_grad()
    torch.manual_seed(0)  # what training draws, it draws each time
    try:
        with torch.enable_grad():
            logits = model.logits(ids)
            cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        return torch.cat([each.grad.flatten().double() for each in _trained(module) if each.grad is not None])
    finally:
        module.zero_grad()
        module.train(was_training)


def _rounding(model: LanguageModel) -> float:
    """How far gradients move when every parameter moves by a rounding of float32, in which parts may be computed."""
    generator = torch.Generator().manual_seed(0)
    eps = torch.finfo(torch.float32).eps
    before = gradients(model)
    kept = [(each, each.detach().clone()) for each in _trained(model.module)]
    with torch.no_grad():
        for each, value in kept:
            sign = torch.randint(2, value.shape, generator=generator).to(value) * 2 - 1
            each.copy_(value * (1 + eps * sign))
    try:
        after = gradients(model)
    finally:
        with torch.no_grad():
            for each, value in kept:
                each.copy_(value)
    return _SAFETY * float((after - before).abs().max() + eps * before.abs().max())


def _trained(module: nn.Module) -> list[Tensor]:
    return [each for each in module.parameters() if each.is_floating_point()]
