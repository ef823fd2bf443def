"""Linear maps as every module here makes them: no bias unless asked for, weights small and random."""

import torch
from torch import Tensor, nn
from torch.nn import functional

INITIAL_STD = 0.02
_ALIGNED = 8  # outputs: matrix units take rows of 16 bytes


def linear(in_features: int, out_features: int, *, bias: bool = False, std: float = INITIAL_STD) -> nn.Linear:
    """An `nn.Linear` whose weight starts as N(0, std²) and whose bias, if it has one, starts at zero."""
    layer = nn.Linear(in_features, out_features, bias=bias)
    nn.init.normal_(layer.weight, std=std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def aligned_product(x: Tensor, weight: Tensor) -> Tensor:
    """As `functional.linear` of x [..., in] and weight [out, in], at full speed on a GPU for every `out`.

    A vocabulary such as gpt2's 50,257 is no multiple of 8, and products with it run several times slower there: the
    weight is filled up with rows of zeros, whose products are dropped.
    """
    missing = -weight.shape[0] % _ALIGNED if x.is_cuda else 0
    if not missing:
        return functional.linear(x, weight)
    if torch.is_autocast_enabled("cuda"):
        weight = weight.to(torch.get_autocast_dtype("cuda"))  # before it is copied, not after
    return functional.linear(x, functional.pad(weight, (0, 0, 0, missing)))[..., : weight.shape[0]]


class Head(nn.Linear):
    """[..., dim] -> [..., vocab_size], without bias; its weight starts as N(0, 0.02²)."""

    def __init__(self, dim: int, vocab_size: int) -> None:
        super().__init__(dim, vocab_size, bias=False)
        nn.init.normal_(self.weight, std=INITIAL_STD)

    def forward(self, input: Tensor) -> Tensor:
        return aligned_product(input, self.weight)
