"""Pairs of queries and keys in words: which query reads which key, from where to where."""

import torch
from torch import Tensor

from nsa_doctor.subject.function import Problem

_MOST_OFFSETS = 3


def pairs_text(wrong: Tensor, problem: Problem) -> str:
    """`query 5 key 6 (the one after it), and 62 more pairs …`, of wrong [B, H, Sq, Sk] that holds at least one."""
    batch, heads = (sorted({int(i) for i in found}) for found in wrong.nonzero()[:, :2].T)
    pairs = wrong.any(0).any(0).nonzero()
    query, key = (int(x) for x in pairs[0])
    text = f"query {query} and key {key}{_sequences(query, key, problem)}"
    offsets = (pairs[:, 1] - pairs[:, 0] - _diagonal(problem)).unique()
    if len(pairs) > 1:
        last_query, last_key = (int(x) for x in pairs[-1])
        text += f" are the first of {len(pairs)} pairs, query {last_query} and key {last_key} the last"
    if len(offsets) == 1:
        text += f"; the key is always {_offset(int(offsets[0]))}"
    elif (keys := pairs[:, 1].unique()).numel() <= _MOST_OFFSETS:
        text += f"; it is always key {', '.join(str(int(each)) for each in keys)}"
    elif len(offsets) <= _MOST_OFFSETS:
        text += f"; the key is {' or '.join(_offset(int(each)) for each in offsets)}"
    elif bool((offsets > 0).all()):
        text += f"; all keys lie after the query, by {int(offsets.min())} to {int(offsets.max())}"
    elif bool((offsets < 0).all()):
        text += f"; all keys lie before the query, by {int(-offsets.max())} to {int(-offsets.min())}"
    shape = problem.shape
    if len(heads) < shape.heads:
        text += f"; in heads {', '.join(map(str, heads))} alone"
    if len(batch) < shape.batch:
        text += f"; in rows {', '.join(map(str, batch))} of the batch alone"
    return text


def _diagonal(problem: Problem) -> int:
    """How far the declared diagonal is from the top left corner."""
    shape, seen = problem.shape, problem.seen
    if shape.parts or shape.filled or not problem.spec.is_causal:
        return 0
    last = int(seen[0, 0, -1].nonzero().max()) if bool(seen[0, 0, -1].any()) else shape.keys - 1
    return last - (shape.queries - 1)


def _offset(offset: int) -> str:
    if offset == 0:
        return "the query's own position"
    return f"{abs(offset)} {'after' if offset > 0 else 'before'} the query's own position"


def _sequences(query: int, key: int, problem: Problem) -> str:
    if not problem.shape.parts:
        return ""
    queries = torch.tensor([part[0] for part in problem.shape.parts]).cumsum(0)
    keys = torch.tensor([part[1] for part in problem.shape.parts]).cumsum(0)
    own, other = int((queries <= query).sum()), int((keys <= key).sum())
    return f" (of sequence {own})" if own == other else f" (of sequences {own} and {other})"
