"""Forward passes that are finite and wrong: seen only by comparing two runs. The faulty line is marked."""

import torch
from torch import Tensor, nn

from .host import Host, Part, hosting


def _sees_the_next_token(x: Tensor) -> Tensor:
    scores = x @ x.mT / 4
    hidden = torch.ones_like(scores[0], dtype=torch.bool).triu(2)  # here
    return scores.masked_fill(hidden, -1e9).softmax(-1) @ x


def _mixes_rows(x: Tensor) -> Tensor:
    return x - 0.1 * x.mean(0)  # here


def _noisy_in_eval(x: Tensor) -> Tensor:
    return nn.functional.dropout(x, 0.2)  # here


def _hangs_at_67(x: Tensor) -> Tensor:
    while x.shape[1] == 67:  # here
        pass  # here
    return x


class _CountsCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = None

    def forward(self, x: Tensor) -> Tensor:
        last, self.last = self.last, x.detach()
        if last is not None and last.shape == x.shape:
            x = x + 0.1 * last  # here
        return x


def _drops_a_ragged_tail(x: Tensor) -> Tensor:
    whole = x.shape[1] // 8 * 8
    head, tail = x[:, :whole], x[:, whole:]
    mixed = head.unflatten(1, (-1, 8)).cumsum(2).flatten(1, 2)
    return torch.cat((mixed, tail * 0), 1)


def _reads_raw_memory(x: Tensor) -> Tensor:
    return x.as_strided(x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1)) * 2  # here


class _OtherInTraining(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 1.1 if self.training else x  # here


def _scaled_by_the_batch(x: Tensor) -> Tensor:
    return x / x.shape[0]  # here


sees_the_next_token = hosting(_sees_the_next_token)
mixes_rows = hosting(_mixes_rows)
noisy_in_eval = hosting(_noisy_in_eval)
hangs_at_67 = hosting(_hangs_at_67)
drops_a_ragged_tail = hosting(_drops_a_ragged_tail)
scaled_by_the_batch = hosting(_scaled_by_the_batch)


def counts_calls() -> nn.Module:
    return Host(_CountsCalls())


def other_in_training() -> nn.Module:
    return Host(_OtherInTraining())


def reads_raw_memory() -> nn.Module:
    return Part(_reads_raw_memory)


def writes_into_its_input() -> nn.Module:
    return Part(lambda x: x.mul_(2))
