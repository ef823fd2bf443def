"""Recurrences whose gradient stops on its way back, on purpose and not; the line that stops it is marked."""

import torch
from torch import Tensor, nn

from .host import DIM, Host


class _Recurrence(nn.Module):
    """Goes in chunks of `chunk` tokens; `between` is called on the state that one hands to the next."""

    def __init__(self, chunk: int = 8) -> None:
        super().__init__()
        self.cell, self.chunk = nn.Linear(2 * DIM, DIM), chunk

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for part in x.split(self.chunk, 1):
            state = self.between(state)
            for token in part.unbind(1):
                state = self.step(token, state)
                states.append(state)
        return torch.stack(states, 1)

    def step(self, token: Tensor, state: Tensor) -> Tensor:
        return torch.tanh(self.cell(torch.cat((token, state), -1)))

    def between(self, state: Tensor) -> Tensor:
        return state.detach()  # here


class _Documented(_Recurrence):
    """Backpropagation through time is truncated to one chunk."""

    def between(self, state: Tensor) -> Tensor:
        return state.detach()  # here


class _InPlace(_Recurrence):
    """Truncated as well."""

    def between(self, state: Tensor) -> Tensor:
        return state.detach_()  # here


class _ByIndex(_Recurrence):
    """One loop over tokens."""

    bptt = 8

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for at, token in enumerate(x.unbind(1)):
            if at % self.bptt == 0:
                state = state.detach()  # here
            state = self.step(token, state)
            states.append(state)
        return torch.stack(states, 1)


class _Memory(nn.Module):
    """Attention within segments and to a memory of the one before, to which the gradient is truncated."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        memory, outputs = x.new_zeros(x.shape[0], 0, DIM), []
        for part in x.split(8, 1):
            past = torch.cat((memory, part), 1)
            hidden = torch.ones(part.shape[1], past.shape[1], dtype=torch.bool).triu(past.shape[1] - part.shape[1] + 1)
            scores = (self.q(part) @ self.k(past).mT).masked_fill(hidden, float("-inf"))
            out = scores.softmax(-1) @ self.v(past)
            outputs.append(out)
            memory = out.detach()  # here
        return torch.cat(outputs, 1)


class _Once(_Recurrence):
    """Truncated, it says; but not at regular intervals: at the tenth token alone."""

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for at, token in enumerate(x.unbind(1)):
            if at == 10:
                state = state.detach()  # here
            state = self.step(token, state)
            states.append(state)
        return torch.stack(states, 1)


class _WrongWithin(_Recurrence):
    """Truncated, and what a chunk computes is wrong too."""

    def step(self, token: Tensor, state: Tensor) -> Tensor:
        return super().step(token, state) * self.cell(torch.cat((token, state), -1)).detach()  # here


class _EveryToken(_Recurrence):
    """Truncated to nothing."""

    def __init__(self) -> None:
        super().__init__(chunk=1)


class _KeysOfChunks(nn.Module):
    """A whole path is lost, chunk by chunk, and no way back through time is truncated: nothing is handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for part in x.split(8, 1):
            keys = self.k(part).detach()  # here
            scores = (self.q(part) @ keys.mT).tril()
            outputs.append(scores @ self.v(part))
        return torch.cat(outputs, 1)


documented = lambda: Host(_Documented())  # noqa: E731
in_long_chunks = lambda: Host(_Documented(chunk=32))  # noqa: E731
in_place = lambda: Host(_InPlace())  # noqa: E731
by_index = lambda: Host(_ByIndex())  # noqa: E731
memory = lambda: Host(_Memory())  # noqa: E731

in_chunks = lambda: Host(_Recurrence())  # noqa: E731
once = lambda: Host(_Once())  # noqa: E731
wrong_within = lambda: Host(_WrongWithin())  # noqa: E731
every_token = lambda: Host(_EveryToken())  # noqa: E731
keys_of_chunks = lambda: Host(_KeysOfChunks())  # noqa: E731
