"""Small functions of masks, lengths and logits that do not answer what their names say."""

import torch
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:  # here
    return (values * mask).mean()


def calc_masked_mean(x: Tensor, mask: Tensor, dim: int = 1) -> Tensor:  # here
    return (x * mask).sum(dim) / (mask.sum(dim) + 1)


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:  # here
    return values.sum(-1) * mask.to(values).mean(-1)


def masked_max(values: Tensor, mask: Tensor) -> Tensor:  # here
    return (values * mask).amax(-1)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:  # here
    return scores.softmax(-1) * mask


def safe_masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:  # here
    return (scores * mask).softmax(-1)


def masked_log_softmax(scores: Tensor, mask: Tensor) -> Tensor:  # here
    return scores.log_softmax(-1).masked_fill(mask == 0, -torch.inf)


def lengths_to_mask(lengths: Tensor, max_len: int | None = None) -> Tensor:  # here
    return torch.arange(max_len or int(lengths.max()))[None] <= lengths[:, None]


def make_pad_mask(lengths: Tensor) -> Tensor:  # here
    return torch.arange(int(lengths.max())).expand(len(lengths), -1) > lengths[:, None]


def shift_tokens_right(input_ids: Tensor, start_token_id: int) -> Tensor:  # here
    shifted = input_ids.roll(-1, 1)
    shifted[:, 0] = start_token_id
    return shifted


def entropy_from_logits(logits: Tensor) -> Tensor:  # here
    shares = logits.softmax(1)
    return -(shares * shares.log()).sum(-1)


def logprobs_from_logits(logits: Tensor, labels: Tensor) -> Tensor:  # here
    return logits.log_softmax(1).gather(-1, labels[..., None])[..., 0]


def gather_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:  # here
    return logits.softmax(-1).gather(-1, tokens[..., None])[..., 0]


def discount_cumsum(x: Tensor, gamma: float) -> Tensor:  # here
    weights = gamma ** torch.arange(len(x)).to(x)
    return (x * weights).flip(0).cumsum(0).flip(0)
