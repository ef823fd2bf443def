"""Which keys a branch reads for a query: by the gradient of what it gives with respect to what it read."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from nsa_doctor.probes.perform import ask
from nsa_doctor.probes.specimen import Specimen
from nsa_doctor.runner import NotComparableError


def anatomy(sp: Specimen, x: Tensor) -> Mapping[str, Tensor]:
    """The inner tensors of one call, connected by autograd to each other and to the leaf x."""
    take = sp.subject.anatomy
    if take is None:
        raise NotComparableError(f"{sp.subject.name} offers no anatomy")
    with torch.enable_grad():
        return ask("forward", lambda: take(sp.module, x), sp.module)


def values_read(output: Tensor, values: Tensor, positions: Sequence[int]) -> Tensor:
    """With what weight each of these queries of row 0 reads each value, per head: [P, H, K].

    An attention's output is linear in its values, channel by channel. So each head and query gets a channel of its own
    to be differentiated in, and the gradient at a value's channel is the weight: one backward pass for many of them.
    """
    heads, groups, width = output.shape[2], values.shape[2], values.shape[3]
    per_group = heads // groups
    weights = torch.zeros(len(positions), heads, values.shape[1], dtype=output.dtype)
    if not values.shape[1]:
        return weights
    asked = [(index, head) for index in range(len(positions)) for head in range(per_group)]
    for start in range(0, len(asked), width):
        part = asked[start : start + width]
        cotangent = torch.zeros_like(output)
        for channel, (index, head) in enumerate(part):
            cotangent[0, positions[index], head::per_group, channel] = 1
        gradient = _gradient(output, values, cotangent)
        if gradient is None:
            continue
        for channel, (index, head) in enumerate(part):
            weights[index, head::per_group] = gradient[0, :, :, channel].T.detach().cpu()
    return weights


def tokens_reached(sp: Specimen, x: Tensor, positions: Sequence[int], branch: str) -> Tensor:
    """Whether each token of x [1, S, width] has an influence on a branch at these positions: [P, S]."""
    take: Callable[..., Mapping[str, Tensor]] | None = sp.subject.branches
    if take is None or sp.subject.input != "embeddings":
        raise NotComparableError(f"{sp.subject.name} offers no branches of embeddings")
    rows = x.detach().repeat(len(positions), 1, 1).requires_grad_()
    branches = ask("forward", lambda: take(sp.module, rows), sp.module)
    if branch not in branches:
        raise NotComparableError(f"{sp.subject.name} has no branch called {branch}")
    output = branches[branch]
    generator = torch.Generator().manual_seed(sp.subject.seed)
    at = output[torch.arange(len(positions)), torch.tensor(positions)]
    direction = torch.randn(at.shape, generator=generator, dtype=torch.float64).to(at)
    gradient = _gradient((at * direction).sum(), rows, None)
    if gradient is None:
        return torch.zeros(len(positions), x.shape[1], dtype=torch.bool)
    return (gradient != 0).flatten(2).any(-1).cpu()


def _gradient(output: Tensor, source: Tensor, cotangent: Tensor | None) -> Tensor | None:
    """None where the output does not depend on the source."""
    if not output.requires_grad:
        return None
    gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
        output, source, cotangent, retain_graph=True, allow_unused=True
    )
    return gradients[0]
