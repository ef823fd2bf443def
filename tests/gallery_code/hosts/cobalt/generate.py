"""Sampling."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .model import CobaltLM


def filter_top_k(logits: Tensor, top_k: int) -> Tensor:
    """Everything below the k-th largest logit is ruled out; those equal to it stay."""
    if top_k <= 0 or top_k >= logits.shape[-1]:
        return logits
    least = logits.topk(top_k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, -torch.inf)


def pick(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator | None) -> Tensor:
    """[B, vocab] -> [B]; a temperature of zero is greedy."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = filter_top_k(logits.float() / temperature, top_k)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)


@torch.no_grad()
def generate(
    model: CobaltLM,
    ids: Tensor,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int = 0,
    eos: int | None = None,
    seed: int | None = None,
) -> Tensor:
    """Continue prompts of one length, [B, S] -> [B, S + new]; after `eos` a row goes on with it."""
    was_training = model.training
    model.eval()
    try:
        generator = None if seed is None else torch.Generator(device=ids.device).manual_seed(seed)
        logits, cache = model.prefill(ids)
        finished = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        out = [ids]
        for i in range(max_new_tokens):
            token = pick(logits[:, -1], temperature, top_k, generator)
            if eos is not None:
                token = token.masked_fill(finished, eos)
                finished = finished | (token == eos)
            out.append(token[:, None])
            if i + 1 == max_new_tokens or (eos is not None and bool(finished.all())):
                break
            logits, cache = model.decode_step(token[:, None], cache)
        return torch.cat(out, dim=1)
    finally:
        model.train(was_training)


def generate_ragged(model: CobaltLM, prompts: Sequence[Tensor], max_new_tokens: int, **options) -> list[Tensor]:
    """Prompts of any lengths: those of one length are continued together."""
    answers: dict[int, Tensor] = {}
    for length in sorted({len(prompt) for prompt in prompts}):
        which = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
        rows = generate(model, torch.stack([prompts[i] for i in which]), max_new_tokens, **options)
        answers.update(zip(which, rows, strict=True))
    return [answers[i] for i in range(len(prompts))]
