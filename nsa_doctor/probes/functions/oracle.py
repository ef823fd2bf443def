"""Attention from its definition, in any dtype: the float64 truth, and what plain torch makes of it in half precision.

Whole matrices of scores, no tiles; another order of keys and another split of the sums are for measuring what
reassociation costs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.probes.functions.by_heads import by_heads
from nsa_doctor.subject.function import Branch, Problem

HIDDEN = -torch.inf
_QUERY_PARTS = 6
_MOST_PARTS = 64


@dataclass(frozen=True)
class Arithmetic:
    """How the same sums are taken: in which dtype, keys in which order, in parts of how many (0: at once).

    A sum over many keys is taken in no more than 64 parts, which are longer.
    """

    dtype: torch.dtype = torch.float64
    order: int = 0
    part: int = 0
    is_matmul_rounded: bool = False


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Output, log of the sum of exponentials and gradients, by name: out, lse, dq, dk, dv, dsinks."""

    tensors: Mapping[str, Tensor]


def solve(problem: Problem, how: Arithmetic, wants_gradients: bool = True) -> Solution:
    """What the problem's answer is in that arithmetic; rows that see no key are zero."""
    if how.part:  # in small parts already
        return Solution(tensors=_solved(problem, how, wants_gradients))
    return Solution(tensors=by_heads(problem, lambda few: _solved(few, how, wants_gradients)))


def _solved(problem: Problem, how: Arithmetic, wants_gradients: bool) -> dict[str, Tensor]:
    inputs = {
        name: value.detach().to(device="cpu", dtype=how.dtype).requires_grad_(wants_gradients)
        for name, value in problem.inputs.items()
    }
    out, lse = _attend(problem, inputs, how)
    tensors = {"out": out.detach()} if len(problem.branches) > 1 else {"out": out.detach(), "lse": lse.detach()}
    if wants_gradients:
        given = [(out, problem.dout), *([] if problem.dlse is None else [(lse, problem.dlse)])]
        outputs, onto = [each for each, _ in given], [each.to(device="cpu", dtype=how.dtype) for _, each in given]
        gradients = torch.autograd.grad(outputs, list(inputs.values()), onto, allow_unused=True)
        tensors |= {
            f"d{name}": torch.zeros_like(value) if gradient is None else gradient
            for (name, value), gradient in zip(inputs.items(), gradients, strict=True)
        }
    return tensors


def _attend(problem: Problem, inputs: Mapping[str, Tensor], how: Arithmetic) -> tuple[Tensor, Tensor]:
    total, log_sum = None, None
    for branch in problem.branches:
        out, log_sum = _branch(problem, inputs, branch, how)
        if branch.gate is not None:
            out = out * branch.gating(inputs, problem.shape.heads)[..., None]
        total = out if total is None else total + out
    assert total is not None
    assert log_sum is not None
    return total, log_sum


def _branch(problem: Problem, inputs: Mapping[str, Tensor], branch: Branch, how: Arithmetic) -> tuple[Tensor, Tensor]:
    """[B, Sq, H, Dv] and [B, H, Sq]; where sums are split, gradients of keys are added up over parts of the queries."""
    q, k, v = (inputs[name].transpose(1, 2) for name in ("q", branch.keys, branch.values))  # [B, H, S, D]
    seen = branch.seen.to("cpu")
    if not k.shape[2]:
        empty = q.new_full(q.shape[:3], HIDDEN)
        return (q[..., :1] * 0).expand(*q.shape[:3], v.shape[-1]).transpose(1, 2), empty
    repeats = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
    bias = added(problem, inputs, q.dtype)
    bias = bias if bias is None else bias.expand(*bias.shape[:2], q.shape[2], k.shape[2])
    if how.order:
        order = torch.randperm(k.shape[2], generator=torch.Generator().manual_seed(how.order))
        k, v, seen = k[:, :, order], v[:, :, order], seen[..., order]
        bias = bias if bias is None else bias[..., order]
    count = q.shape[2]
    size = max(1, count // _QUERY_PARTS) if how.part else max(1, count)
    outs, logs = [], []
    for start in range(0, count, size):
        rows = slice(start, start + size)
        scores = _rounded(q[:, :, rows], how) @ _rounded(k, how).mT * problem.scale
        if problem.spec.softcap:
            scores = problem.spec.softcap * torch.tanh(scores / problem.spec.softcap)
        scores = scores if bias is None else scores + bias[..., rows, :]
        out, lse = _mixed(scores.masked_fill(~seen[..., rows, :], HIDDEN), v, inputs.get("sinks"), how)
        outs.append(out)
        logs.append(lse)
    return torch.cat(outs, 2).transpose(1, 2), torch.cat(logs, 2)


def _mixed(scores: Tensor, v: Tensor, sinks: Tensor | None, how: Arithmetic) -> tuple[Tensor, Tensor]:
    peak = scores.detach().amax(-1, keepdim=True)
    peak = peak if sinks is None else torch.maximum(peak, sinks.detach()[:, None, None])
    peak = peak.masked_fill(peak == HIDDEN, 0.0)
    weights = torch.exp(scores - peak)
    total = _summed(weights, how)
    total = total if sinks is None else total + torch.exp(sinks[:, None, None] - peak)
    is_empty = total == 0
    weights = weights / total.masked_fill(is_empty, 1.0)
    lse = (peak + torch.log(total.masked_fill(is_empty, 1.0))).masked_fill(is_empty, HIDDEN)[..., 0]
    return _product(_rounded(weights, how), _rounded(v, how), how), lse


def added(problem: Problem, inputs: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores: minus slope times distance, the bias; [B or 1, H or 1, Sq or 1, Sk or 1]."""
    bias = inputs["bias"].transpose(1, 2).to(dtype) if "bias" in inputs else None
    if problem.slopes is None:
        return bias
    slopes = problem.slopes.to(dtype)
    by_distance = -slopes.reshape(-1, slopes.shape[-1])[..., None, None] * distances(problem).to(dtype)
    return by_distance if bias is None else by_distance + bias


def distances(problem: Problem) -> Tensor:
    """How many positions lie between a query and a key, the last of both at one position: [B or 1, 1, Sq, Sk]."""
    shape = problem.shape
    if shape.filled:
        return torch.stack([_distance(shape.queries, filled, shape.keys) for filled in shape.filled])[:, None]
    if not shape.parts:
        return _distance(shape.queries, shape.keys, shape.keys)[None, None]
    whole, query, key = torch.zeros(shape.queries, shape.keys, dtype=torch.long), 0, 0
    for queries, keys in shape.parts:
        whole[query : query + queries, key : key + keys] = _distance(queries, keys, keys)
        query, key = query + queries, key + keys
    return whole[None, None]


def _distance(queries: int, keys: int, columns: int) -> Tensor:
    """[Sq, columns], where the last query is at the last of so many keys."""
    return (torch.arange(queries)[:, None] + keys - queries - torch.arange(columns)).abs()


def _rounded(x: Tensor, how: Arithmetic) -> Tensor:
    """With the ten bits of mantissa that tensor cores keep of float32, where those are used."""
    if not how.is_matmul_rounded:
        return x
    with torch.no_grad():
        bits = x.detach().view(torch.int32)
        rest = ((bits + 0x1000) & ~0x1FFF).view(torch.float32) - x.detach()
    return x + rest


def _summed(x: Tensor, how: Arithmetic) -> Tensor:
    if not how.part:
        return x.sum(-1, keepdim=True)
    total = torch.zeros_like(x[..., :1])
    for part in x.split(_part(x.shape[-1], how), -1):
        total = total + part.sum(-1, keepdim=True)
    return total


def _product(weights: Tensor, v: Tensor, how: Arithmetic) -> Tensor:
    if not how.part:
        return weights @ v
    total = torch.zeros_like(weights[..., :1] * v[..., :1, :])
    size = _part(weights.shape[-1], how)
    for part, values in zip(weights.split(size, -1), v.split(size, -2), strict=True):
        total = total + part @ values
    return total


def _part(keys: int, how: Arithmetic) -> int:
    return max(how.part, -(-keys // _MOST_PARTS))
