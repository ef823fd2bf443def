"""Linear maps as every module here makes them: no bias unless asked for, weights small and random."""

from torch import nn

INITIAL_STD = 0.02


def linear(in_features: int, out_features: int, *, bias: bool = False, std: float = INITIAL_STD) -> nn.Linear:
    """An `nn.Linear` whose weight starts as N(0, std²) and whose bias, if it has one, starts at zero."""
    layer = nn.Linear(in_features, out_features, bias=bias)
    nn.init.normal_(layer.weight, std=std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
