"""Functions that write into what they are given, through what is no copy of it, at the lines marked `here`."""

import numpy as np
import torch
from torch import Tensor


def blanked(rows: Tensor, keep: Tensor) -> Tensor:
    rows = rows.contiguous()  # here
    rows[~keep] = 0
    return rows


def shifted(ids: Tensor, steps: Tensor) -> Tensor:
    out = ids  # here
    out += steps[:, None]
    return out


def clamped(values: Tensor) -> Tensor:
    values = values.float()  # here
    return values.clamp_(-1, 1)


def cast(values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    values = values.to(dtype)  # here
    values[..., 0] = 0
    return values.mean(-1)


def scaled(x: Tensor) -> Tensor:
    flat = x.reshape(-1)  # here
    flat *= 2
    return flat.view(x.shape)


def without_gradient(scores: Tensor) -> Tensor:
    scores = scores.detach()  # here
    scores.masked_fill_(scores < 0, 0)
    return scores / scores.sum(-1, keepdim=True)


def first_half(x: Tensor) -> Tensor:
    head = x[:, : x.shape[1] // 2]  # here
    head.zero_()
    return head.sum() + 1


def by_a_chain(x: Tensor) -> Tensor:
    y = x.contiguous().transpose(0, 1)  # here
    for row in range(y.shape[0]):
        y[row] = y[row] - y[row].mean()
    return y


def of_an_array(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values)  # here
    values[values < 0] = 0
    return values


def as_array(x: Tensor) -> float:
    values = x.detach().cpu().numpy()  # here
    values[0] = 0
    return float(values.sum())


def by_its_output(x: Tensor) -> Tensor:
    y = torch.as_tensor(x)  # here
    torch.exp(y, out=y)
    return y


class Sampler:
    def drawn(self, rows: Tensor) -> Tensor:
        """One sample; the rows are not changed."""
        rows = rows.contiguous()  # here
        rows[:, 0] = 1
        return rows


class Trainer:
    def step(self, batch: Tensor) -> Tensor:
        noisy = self.corrupt(batch)
        return (noisy - batch).square().mean()

    def corrupt(self, x: Tensor) -> Tensor:
        x = x.contiguous()  # here
        x[:, ::2] = 0
        return x


def _halved(x: Tensor) -> Tensor:
    x = x.view(-1)  # here
    x /= 2
    return x


def prepared(x: Tensor) -> Tensor:
    return _halved(x).cos()
