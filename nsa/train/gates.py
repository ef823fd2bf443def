"""How much of each branch the layers take, seen on a fixed row; looking changes nothing."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Int
from torch import Tensor

from nsa.nn.gate import Gate
from nsa.train.objective import Objective
from nsa.train.record import GateRecord
from nsa.train.spread import gathered


@torch.no_grad()
def look_at_gates(objective: Objective, row: Int[Tensor, "B longer"], step: int) -> list[GateRecord]:
    """One record for each layer, from one forward pass of its own."""
    seen: list[tuple[Gate, Tensor]] = []
    gates = [module for module in objective.modules() if isinstance(module, Gate)]
    norms = {gate: _norm(gate) for gate in gates}  # before the pass, which may hold them in another precision
    with _recording(gates, seen):
        objective(row, torch.zeros_like(row))
    if objective.context is not None:
        seen = [(gate, objective.context.whole(weights)[0]) for gate, weights in seen]
    return [
        _record(step, layer, weights.flatten(0, -2).double(), norms[gate]) for layer, (gate, weights) in enumerate(seen)
    ]


@contextmanager
def _recording(gates: Sequence[Gate], seen: list[tuple[Gate, Tensor]]) -> Iterator[None]:
    def note(gate: Gate, _inputs: tuple[Tensor, ...], weights: Tensor) -> None:
        seen.append((gate, weights.detach()))

    handles = [gate.register_forward_hook(note) for gate in gates]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _record(step: int, layer: int, weights: Tensor, norm: float) -> GateRecord:
    """From weights [tokens · groups, 3]."""
    means = weights.mean(0).tolist()
    spread = weights.std(0, correction=0).max().item()
    return GateRecord(
        step=step,
        layer=layer,
        compressed=means[0],
        selected=means[1],
        sliding=means[2],
        spread=float(spread),
        norm=norm,
    )


def _norm(gate: Gate) -> float:
    """In float64, where the least step that an optimizer makes in float32 shows."""
    parameters = [gathered(parameter.detach()).double().flatten() for parameter in gate.parameters()]
    return float(torch.cat(parameters).norm())
