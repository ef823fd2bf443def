"""Functions that copy before they write, or write where they say so."""

from typing import Any

import torch
from torch import Tensor


def blanked(rows: Tensor, keep: Tensor) -> Tensor:
    rows = rows.clone()
    rows[~keep] = 0
    return rows


def cloned_on_the_way(rows: Tensor) -> Tensor:
    rows = rows.contiguous().clone()
    rows[:, 0] = 0
    return rows


def to_a_copy(rows: Tensor) -> Tensor:
    rows = rows.to(torch.float32, copy=True)
    rows[:, 0] = 0
    return rows


def written_straight(logits: Tensor, most: int) -> Tensor:
    logits[logits < logits.topk(most).values[..., -1:]] = float("-inf")
    return logits


def divided(logits: Tensor, temperature: float) -> Tensor:
    logits = logits / temperature
    logits = logits.contiguous()
    logits[..., 0] = 0
    return logits


def blank_(rows: Tensor) -> Tensor:
    rows = rows.contiguous()
    rows[:, 0] = 0
    return rows


def said_to(rows: Tensor) -> Tensor:
    """Blanks the first column in place."""
    rows = rows.view(-1)
    rows[0] = 0
    return rows


def asked_to(rows: Tensor, inplace: bool = False) -> Tensor:
    out = rows if inplace else rows.clone()
    out = out.contiguous()
    out[0] = 0
    return out


def remarked(scores: Tensor) -> Tensor:
    scores = scores.view(scores.shape)
    scores.relu_()  # written in place, for memory
    return scores


def kept(cache: Tensor, x: Tensor) -> Tensor:
    rows = cache.view(-1)
    rows[: x.numel()] = x.flatten()
    return rows


def without_a_value(x: Tensor) -> None:
    x.view(-1)[0] = 0
    flat = x.view(-1)
    flat[1] = 0


def through_a_view(x: Tensor) -> Tensor:
    flat = x.view(-1)
    flat[0] = 0
    return x


def in_one_branch(x: Tensor, is_own: bool) -> Tensor:
    if not is_own:
        x = x.clone()
    x = x.contiguous()
    x[0] = 0
    return x


def laid_out_again(x: Tensor) -> Tensor:
    y = x.transpose(0, 1).contiguous()
    for row in range(y.shape[0]):
        y[row] = y[row] - y[row].mean()
    return y


def of_another_dtype(mask: Tensor) -> Tensor:
    mask = mask.float()
    mask[0] = 0
    return mask


def of_bytes(image: Tensor) -> Tensor:
    image = image.to(torch.float32)
    image /= 255
    return image


def of_numbers(counts: Tensor) -> Tensor:
    shares = counts.float()
    shares /= shares.sum(-1, keepdim=True)
    return shares


def of_flags(near: Tensor, dtype: torch.dtype) -> Tensor:
    far, bias = ~near, near.to(dtype)
    bias *= 2
    return bias - far.to(dtype)


def of_times(t: Tensor) -> Tensor:
    t = t.float()
    t *= 1000
    return t.cos()


def of_a_list(sizes: list[int]) -> list[int]:
    rest = sizes[1:]
    rest[0] = 2
    return rest


def of_a_mapping(config: dict[str, Any]) -> dict[str, Any]:
    found = config
    found["size"] = 2
    return found


def counted(number: int) -> int:
    total = number
    total += 1
    return total


def gathered(x: Tensor, places: Tensor) -> Tensor:
    rows = x[places]
    rows[0] = 0
    return rows


def rebound(x: Tensor) -> Tensor:
    y = x.contiguous()
    y = y + 1
    y[0] = 0
    return y


def _masked(scores: Tensor) -> Tensor:
    scores = scores.reshape(scores.shape)
    scores[..., 0] = 0
    return scores


def weighed(q: Tensor, k: Tensor) -> Tensor:
    return _masked(q @ k.mT).softmax(-1)


def replaced(x: Tensor) -> Tensor:
    x = _masked(x + 1)
    y = x * 2
    y = _masked(y)
    return y + x


class Layer:
    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        x[:, 0] = 0
        return self.finished(x)

    def finished(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        x[:, 1] = 0
        return x
