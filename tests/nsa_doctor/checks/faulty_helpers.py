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
    return values.amax(-1) * mask.any(-1)


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


def logprobs_from_logits(logits: Tensor, labels: Tensor) -> Tensor:  # here
    return logits.log_softmax(1).gather(-1, labels[..., None])[..., 0]


def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:  # here
    return logits.softmax(-1).gather(-1, index[..., None])[..., 0]
