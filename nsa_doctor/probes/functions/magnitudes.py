"""How large the terms are that add up to each element of an answer: what one rounding there is worth.

The formulas of attention and its gradients with magnitudes in place of values, in float64; a rounded score changes its
weight by as much as the score is large, so that each weight counts one and its score's terms.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.probes.functions.by_heads import by_heads
from nsa_doctor.probes.functions.oracle import HIDDEN, added
from nsa_doctor.subject.function import Branch, Problem


@dataclass(frozen=True)
class Magnitudes:
    """By the names of the truth, in its shapes; and how large the terms of a score get that is read."""

    tensors: Mapping[str, Tensor]
    largest_score: float


def magnitudes(problem: Problem, truth: Mapping[str, Tensor]) -> Magnitudes:
    """Those of the terms of each element of the truth."""
    largest: list[float] = []
    total = by_heads(problem, lambda few: _of_heads(few, largest))
    tensors = {
        name: torch.maximum(total.get(name, value.abs()), value.abs().masked_fill(value.isinf(), 0.0))
        for name, value in truth.items()
    }
    return Magnitudes(tensors, max(largest, default=0.0))


def _of_heads(problem: Problem, largest: list[float]) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for branch in (each for each in problem.branches if each.seen.shape[-1]):
        weights, terms = _weights(problem, branch)
        largest.append(float(terms.max()))
        for name, value in _of_branch(problem, branch, weights, terms).items():
            total[name] = value if name not in total or name == "lse" else total[name] + value
    return total


def _of_branch(problem: Problem, branch: Branch, weights: Tensor, terms: Tensor) -> dict[str, Tensor]:
    q, k, v, dout = (
        x.double().cpu().abs().transpose(1, 2)
        for x in (*(problem.inputs[n] for n in ("q", branch.keys, branch.values)), problem.dout)
    )
    repeats, groups = q.shape[1] // k.shape[1], k.shape[1]
    k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
    gate = branch.gating(problem.inputs, q.shape[1]).double().cpu().abs().transpose(1, 2) if branch.gate else None
    mean = (weights * terms).sum(-1, keepdim=True)
    noisy = weights * (1 + terms + mean)
    plain = noisy @ v
    gated = dout if gate is None else dout * gate[..., None]
    onto = gated @ v.mT
    onto_scores = onto + (weights * onto).sum(-1, keepdim=True)
    if problem.dlse is not None:
        onto_scores = onto_scores + problem.dlse.double().cpu().abs()[..., None]
    change = noisy * onto_scores * problem.scale
    found = {
        "out": plain if gate is None else plain * gate[..., None],
        "dq": change @ k,
        f"d{branch.keys}": _summed(change.mT @ q, groups),
        f"d{branch.values}": _summed(noisy.mT @ gated, groups),
    }
    tensors = {name: value.transpose(1, 2) for name, value in found.items()}
    tensors["lse"] = 1 + mean[..., 0] + terms.amax(-1).masked_fill(~branch.seen.cpu().any(-1), 0.0)
    if "sinks" in problem.inputs:
        tensors["dsinks"] = (change / problem.scale).sum((0, 2, 3))
    if "bias" in problem.inputs:
        tensors["dbias"] = _summed_to(change / problem.scale, problem.inputs["bias"].transpose(1, 2)).transpose(1, 2)
    if branch.gate is not None:
        onto_gate = (dout * plain).sum(-1).transpose(1, 2)
        tensors[f"d{branch.gate}"] = onto_gate if branch.place is None else _placed(onto_gate, branch, problem)
    return tensors


def _weights(problem: Problem, branch: Branch) -> tuple[Tensor, Tensor]:
    """The weights [B, H, Sq, Sk], and how large the terms of each score are that may be read."""
    q, k = (problem.inputs[name].double().cpu().transpose(1, 2) for name in ("q", branch.keys))
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores, terms = q @ k.mT * problem.scale, q.abs() @ k.abs().mT * problem.scale
    if problem.spec.softcap:
        scores = problem.spec.softcap * torch.tanh(scores / problem.spec.softcap)
        terms = terms.clamp_max(8 * problem.spec.softcap)
    bias = added(problem, {name: value.detach().cpu() for name, value in problem.inputs.items()}, torch.float64)
    if bias is not None:
        scores, terms = scores + bias, terms + bias.abs()
    seen = branch.seen.cpu()
    scores = scores.masked_fill(~seen, HIDDEN)
    peak = scores.amax(-1, keepdim=True)
    sinks = problem.inputs.get("sinks")
    if sinks is not None:
        peak = torch.maximum(peak, sinks.double().cpu()[:, None, None])
    peak = peak.masked_fill(peak == HIDDEN, 0.0)
    weights = torch.exp(scores - peak)
    total = weights.sum(-1, keepdim=True)
    total = total if sinks is None else total + torch.exp(sinks.double().cpu()[:, None, None] - peak)
    return weights / total.masked_fill(total == 0, 1.0), terms.masked_fill(~seen, 0.0)


def _summed(x: Tensor, groups: int) -> Tensor:
    """Over the query heads of each group."""
    return x.unflatten(1, (groups, -1)).sum(2)


def _summed_to(x: Tensor, like: Tensor) -> Tensor:
    """Over the sides along which the other one is broadcast."""
    sides = [side for side, size in enumerate(like.shape) if size == 1]
    return x.sum(sides, keepdim=True) if sides else x


def _placed(gate: Tensor, branch: Branch, problem: Problem) -> Tensor:
    """[B, Sq, H] at its place of [B, Sq, G, 3]."""
    assert branch.gate is not None
    whole = torch.zeros(problem.inputs[branch.gate].shape, dtype=gate.dtype)
    whole[..., branch.place] = gate.unflatten(2, (whole.shape[2], -1)).sum(3)
    return whole
