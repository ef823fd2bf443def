"""Stacks of layers of which each is its own, or which are one on purpose."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from tests.nsa_doctor.checks.multiplied_layers import DIM, Layer, Stack


class Given(Stack):
    """Whatever layers it is given."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)


class Each(Stack):
    """Layers of their own, among them lists that are multiplied and hold none."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        sizes = [DIM] * depth
        first = Layer()
        self.layers = nn.ModuleList([Layer() for _ in sizes] + [copy.deepcopy(first) for _ in range(2)] + [first])
        self.acts = nn.ModuleList([nn.Tanh()] * depth)
        self.gates = nn.ModuleList([None] * depth)  # type: ignore[list-item]


class Over(Stack):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        # One block applied again at each level, which refines its answer.
        self.layers = nn.ModuleList([Layer()] * depth)


class Beside(Stack):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer()] * depth)  # the same one at each depth


class ByFlag(Stack):
    def __init__(self, depth: int = 3, share: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer()] * depth if share else [Layer() for _ in range(depth)])


class TiedAsEmbeddings(Stack):
    """Layers are tied as the embedding is to the output layer."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(DIM, DIM)
        self.layers = nn.ModuleList([Layer()] * depth)


class ByPosition(Stack):
    """A universal encoder, with embeddings of the position and of the level."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer()] * depth)


class OneBlock(Stack):
    """A shared block behind the input embedding."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer()] * depth)


class Kept(Stack):
    """One head, kept by its name, for what each level gives."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.head = Layer()
        self.layers = nn.ModuleList([self.head for _ in range(depth)])


class EmbedHeads(Stack):
    def __init__(self, depth: int = 3, embed_share: bool = True) -> None:
        super().__init__()
        box_embed = Layer()
        if embed_share:
            self.layers = nn.ModuleList([box_embed for _ in range(depth)])
        else:
            self.layers = nn.ModuleList([Layer() for _ in range(depth)])


class SaidElsewhere(Stack):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer()] * depth)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)  # every step reuses what the one before learns
        return x


def shared_layers() -> nn.Module:
    layers = [Layer()] * 3
    return nn.Sequential(*layers)


def of_a_function() -> nn.Module:
    """A row of three that have their parameters in common: they share one layer."""
    return nn.Sequential(*[Layer()] * 3)


class Hybrid(Stack):
    """Attention in every other place, which is one, beside layers of their own."""

    def __init__(self) -> None:
        super().__init__()
        attention = Layer()
        layers: list[nn.Module] = []
        for _ in range(3):
            layers.append(Layer())
            layers.append(attention)
        self.layers = nn.ModuleList(layers)


class InALoop(nn.Module):
    """One layer, several times, by a loop of the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layer(x)
        return x


class Part(nn.Module):
    """A layer that is given a table of positions."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.layer = table, Layer()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(self.table(x))
        return output


class OneTable(Stack):
    """One table of positions, which each layer is given."""

    def __init__(self) -> None:
        super().__init__()
        table = nn.Linear(DIM, DIM)
        self.layers = nn.ModuleList([Part(table) for _ in range(3)])


class Activations(Stack):
    def __init__(self) -> None:
        super().__init__()
        act: Any = nn.PReLU()
        self.layers = nn.Sequential(Layer(), act, Layer(), act)


EVERY: list[Callable[[], nn.Module]] = [
    *(Each, Over, Beside, ByFlag, TiedAsEmbeddings, SaidElsewhere, shared_layers, of_a_function, Hybrid, InALoop),
    *(ByPosition, OneBlock, Kept, EmbedHeads, OneTable, Activations),
]
