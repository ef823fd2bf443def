"""A small foreign mixer that hosts a bug: projection in, the part under test, projection out."""

from torch import Tensor, nn

DIM = 16


class Host(nn.Module):
    """[B, S, DIM] -> [B, S, DIM] with the part under test at `part`."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.before = nn.Linear(DIM, DIM)
        self.part = part
        self.after = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.part(self.before(x)))


class Part(nn.Module):
    """Applies a function; its name is all that tells it from another."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def hosting(function):
    """A factory for a host of that function."""
    return lambda: Host(Part(function))
