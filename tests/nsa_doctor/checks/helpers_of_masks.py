"""Small functions of masks, lengths and logits, as they are written in many places."""

import torch
from torch import Tensor
from torch.nn import functional


def masked_mean(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    if axis is not None:
        return (values * mask).sum(axis=axis) / mask.sum(axis=axis)
    return (values * mask).sum() / (mask.sum() + 1e-8)


def masked_avg(mask: Tensor, x: Tensor) -> Tensor:
    """Of each row, where nothing is hidden."""
    return x.masked_fill(mask.bool(), 0).sum(-1) / (~mask.bool()).sum(-1)


def masked_sum(hidden: Tensor, mask: Tensor) -> Tensor:
    return torch.einsum("bs,bs->b", hidden, mask.to(hidden.dtype))


def masked_max(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask == 0, torch.finfo(x.dtype).min).max(-1).values


def masked_softmax(vector: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Zero where it is hidden, and once more shares of one."""
    result = (vector * mask).softmax(dim) * mask
    return result / (result.sum(dim, keepdim=True) + 1e-13)


def safe_masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """By a mask that is added."""
    return torch.softmax(scores + mask, -1)


def masked_log_softmax(vector: Tensor, mask: Tensor) -> Tensor:
    return (vector + (mask + 1e-45).log()).log_softmax(-1)


def lengths_to_mask(lengths: Tensor, max_len: int | None = None) -> Tensor:
    max_len = max_len or int(lengths.max())
    return torch.arange(max_len, device=lengths.device)[None] < lengths[:, None]


def sequence_mask(lens: Tensor, max_len: int | None = None) -> Tensor:
    """Hides, as a number that is added."""
    size = int(lens.max()) if max_len is None else max_len
    return (torch.arange(size) >= lens[:, None]).float().mul(-1e9)[:, None]


def make_pad_mask(lengths: Tensor, xs: Tensor | None = None) -> Tensor:
    steps = torch.arange(int(lengths.max()) if xs is None else xs.shape[1])
    return steps.unsqueeze(0).expand(len(lengths), -1) >= lengths.unsqueeze(-1)


def shift_tokens_right(input_ids: Tensor, pad_token_id: int, decoder_start_token_id: int) -> Tensor:
    shifted = input_ids.new_zeros(input_ids.shape)
    shifted[:, 1:] = input_ids[:, :-1].clone()
    shifted[:, 0] = decoder_start_token_id
    return shifted.masked_fill(shifted == -100, pad_token_id)


def shift_right(x: Tensor, amount: int = 1) -> Tensor:
    return functional.pad(x, (amount, -amount))


def logprobs_from_logits(logits: Tensor, labels: Tensor, gather: bool = True) -> Tensor:
    logs = logits.log_softmax(2)
    return logs.gather(2, labels.unsqueeze(2)).squeeze(-1) if gather else logs


def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    chosen = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.stack([each.logsumexp(-1) for each in logits])


def masked_mean_of_states(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def get_masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """States [B, S, D], and a mask [B, S]."""
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def get_masked_sum(masked_x: Tensor, mask: Tensor) -> Tensor:
    """Of values that are zero where they are hidden, by contract."""
    return masked_x.sum(1)


def batch_masked_max(features: Tensor, mask: Tensor) -> Tensor:
    """Of what a relu gave."""
    return (features * mask).amax(1)


def batch_masked_mean(x: Tensor, mask: Tensor, dim: int = 0) -> Tensor:
    return ((x * mask).sum(dim) / mask.sum(dim)).mean()


def compute_masked_mean(x: Tensor, mask_value: float = 0.0) -> Tensor:
    """Another function: its mask is a number."""
    return x[x != mask_value].mean() * 2


def batch_masked_softmax(scores: Tensor, mask: Tensor, temperature: float = 0.5) -> Tensor:
    return (scores / temperature).masked_fill(mask == 0, -torch.inf).softmax(-1)


def get_masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """With a place beside all others that takes what is left."""
    hidden = scores.masked_fill(mask == 0, -torch.inf)
    return functional.pad(hidden, (1, 0)).softmax(-1)[..., 1:]


def get_masked_log_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Zero where it is hidden, so that nothing comes of it."""
    return scores.masked_fill(mask == 0, -torch.inf).log_softmax(-1).masked_fill(mask == 0, 0.0)


def seq_len_to_mask(seq_len: Tensor, max_len: int | None = None) -> Tensor:
    """Padding stands on the left."""
    size = max_len or int(seq_len.max())
    return torch.arange(size) >= size - seq_len[:, None]


def get_mask_from_lengths(wav_lens: Tensor) -> Tensor:
    """Lengths are shares of the longest."""
    return torch.arange(4) < wav_lens[:, None] * 400


def batch_shift_right(ids: Tensor) -> Tensor:
    return functional.pad(ids[:, :-1], (1, 0), value=50256)


def get_shift_right(x: Tensor) -> Tensor:
    """Time stands first."""
    return torch.cat((torch.zeros_like(x[:1]), x[:-1]))


def get_log_probs_from_logits(logits: Tensor, input_ids: Tensor) -> Tensor:
    """Of the tokens behind each, and nothing for the first."""
    logs = logits[:, :-1].log_softmax(-1)
    return functional.pad(logs.gather(-1, input_ids[:, 1:, None])[..., 0], (1, 0))


def get_lengths_to_mask(lengths: Tensor) -> Tensor:
    print(lengths)
    return lengths > 2
