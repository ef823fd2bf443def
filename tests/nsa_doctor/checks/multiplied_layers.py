"""Stacks of layers that are one layer by mistake; `# here` is the line that says so."""

from collections.abc import Callable
from itertools import repeat

import torch
from torch import Tensor, nn

DIM = 8


class Layer(nn.Module):
    """A linear layer with its residual."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).tanh()


class Stack(nn.Module):
    """Runs what `layers` holds in turn."""

    layers: nn.ModuleList | nn.Sequential

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class OverLines(Stack):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [Layer()] * depth  # here: over lines
        )


class BesideEmbeddings(Stack):
    """What is said of the embedding is not said of the layers."""

    def __init__(self, depth: int = 3, share_embeddings: bool = True) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(DIM, DIM), nn.Linear(DIM, DIM, bias=False)
        self.layers = nn.ModuleList([Layer()] * depth)  # here: beside embeddings
        if share_embeddings:
            # Shared with the output layer: the same table reads and writes.
            self.head.weight = self.embed.weight
        self.norm = nn.LayerNorm(DIM)  # of the same width as a token

    def tie_weights(self) -> None:
        """Ties the output layer."""
        self.head.weight = self.embed.weight


class OfOthers(Stack):
    """What heads, caches and tables share, and what has the same shape."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        # Keys are shared by all heads.
        self.mix = nn.Linear(DIM, DIM)
        self.layers = nn.ModuleList([Layer()] * depth)  # here: of others
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of the same shape; the cache is reused."""
        x = self.mix(x)  # the mask is shared
        for layer in self.layers:  # iterate over the layers
            x = layer(x)
        return self.norm(x)


class InARow(Stack):
    def __init__(self) -> None:
        super().__init__()
        layer = Layer()
        self.layers = nn.Sequential(*[layer] * 3)  # here: in a row


class ByAFactor(Stack):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(depth * [Layer(), Layer()])  # here: by a factor


class Appended(Stack):
    def __init__(self) -> None:
        super().__init__()
        layer = Layer()
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [layer]  # here: appended
        self.layers = nn.ModuleList(layers)


class AppendedToTheList(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        layer = Layer()
        for number in range(3):
            if number >= 0:
                self.layers.append(layer)  # here: appended to the list


class ByName(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        layer = Layer()
        for number in range(3):
            self.layers.add_module(f"layer{number}", layer)  # here: by name


class Listed(Stack):
    def __init__(self) -> None:
        super().__init__()
        layer = Layer()
        self.layers = nn.ModuleList([layer for _ in range(3)])  # here: listed


class Generated(Stack):
    def __init__(self) -> None:
        super().__init__()
        layer = Layer()
        blocks = (layer for _ in range(3))  # here: generated
        self.layers = nn.ModuleList(blocks)


class Repeated(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*repeat(Layer(), 3))  # here: repeated


def clones(module: nn.Module, count: int) -> nn.ModuleList:
    """Copies of a module, none of which is one."""
    return nn.ModuleList([module for _ in range(count)])  # here: cloned


class Cloned(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.layers = clones(Layer(), 3)


class Between(Stack):
    """The layers are one, what stands around them is not."""

    def __init__(self) -> None:
        super().__init__()
        middle = [Layer()] * 3  # here: between
        self.layers = nn.Sequential(nn.Linear(DIM, DIM), *middle, nn.Linear(DIM, DIM))


class Norms(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.LayerNorm(DIM)] * 3)  # here: norms


class Holder(Stack):
    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)


def handed_in() -> nn.Module:
    return Holder([Layer()] * 2)  # here: handed in


def built() -> nn.Module:
    layers = [Layer()] * 3  # here: built
    return nn.Sequential(*layers)


class Row(nn.Sequential):
    """A row of its own class."""

    def __init__(self) -> None:
        super().__init__(*[Layer()] * 3)  # here: a class


class Prompts(nn.Module):
    """One prompt for each of three layers, which are one prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts = nn.ParameterList([nn.Parameter(torch.ones(DIM))] * 3)  # here: prompts

    def forward(self, x: Tensor) -> Tensor:
        for prompt in self.prompts:
            x = x * prompt
        return x


EVERY: dict[str, Callable[[], nn.Module]] = {
    "over lines": OverLines,
    "beside embeddings": BesideEmbeddings,
    "of others": OfOthers,
    "in a row": InARow,
    "by a factor": ByAFactor,
    "appended": Appended,
    "appended to the list": AppendedToTheList,
    "by name": ByName,
    "listed": Listed,
    "generated": Generated,
    "repeated": Repeated,
    "cloned": Cloned,
    "between": Between,
    "norms": Norms,
    "handed in": handed_in,
    "built": built,
    "a class": Row,
}
