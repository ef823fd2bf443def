"""Odd but right: nothing here may be reported."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from .host import DIM, Host, hosting


def _masked_before_it_matters(x: Tensor) -> Tensor:
    with torch.no_grad():
        bad = x / (x - x)
    return torch.where(torch.ones_like(x, dtype=torch.bool), x, bad)


def _causal(x: Tensor) -> Tensor:
    scores = x @ x.mT
    scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return softmax(scores, -1) @ x


class _TokenModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, DIM)
        self.mixer = hosting(_causal)()
        self.head = nn.Linear(DIM, 11)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.mixer(self.embedding(ids)))


@dataclass
class _Answer:
    loss: None
    logits: Tensor


class _Wrapped(nn.Module):
    def __init__(self, wrap) -> None:
        super().__init__()
        self.model, self.wrap = _TokenModel(), wrap

    def forward(self, input_ids: Tensor):
        return self.wrap(self.model(input_ids))


class _Rude(nn.Module):
    """Prints, reseeds and leaves the process other than it found it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        print("hello from the subject", flush=True)
        torch.manual_seed(x.shape[1])
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(1)
        return self.linear(x)


def _moves_the_default(x: Tensor) -> Tensor:
    torch.set_default_device("meta")
    return x


class _NoParameters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _causal(x)


def _convolved(x: Tensor) -> Tensor:
    """A depthwise convolution as long as the sequence, which sees nothing later."""
    kernel = torch.linspace(1.0, 0.1, x.shape[1]).to(x).expand(x.shape[2], 1, -1)
    return torch.nn.functional.conv1d(x.mT, kernel, padding=x.shape[1] - 1, groups=x.shape[2])[..., : x.shape[1]].mT


masked = hosting(_masked_before_it_matters)
convolved = hosting(_convolved)
causal = hosting(_causal)
moves_the_default = hosting(_moves_the_default)
token_model = _TokenModel
no_parameters = _NoParameters


def tuple_output() -> nn.Module:
    return _Wrapped(lambda logits: (logits, None))


def object_output() -> nn.Module:
    return _Wrapped(lambda logits: _Answer(None, logits))


def dict_output() -> nn.Module:
    return _Wrapped(lambda logits: {"loss": None, "logits": logits})


def rude() -> nn.Module:
    return Host(_Rude())


def frozen() -> nn.Module:
    return hosting(_causal)().requires_grad_(False)
