"""Which keys a query reads, forward and backward, against which it may: values of a single 1 show the weights."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from nsa.ops.api import NSAOutput
from nsa_doctor.core.facts import Violation
from nsa_doctor.fuzz import plain_rules as rules
from nsa_doctor.fuzz.cases import Reads, Sizes
from nsa_doctor.fuzz.outcome import Failure
from nsa_doctor.fuzz.properties.operators import (
    BRANCHES,
    SHORT,
    attend,
    branch_place,
    choice_place,
    differentiate,
    geometry_of,
)
from nsa_doctor.fuzz.properties.tensors import listed, normal

_HEAD_SIZE = 4
# A row of weights is a sum of at most S numbers below 1, each rounded a few times.
_ROUNDINGS = 16


def examine(case: Reads, device: str) -> Iterator[Failure]:
    """What does not hold for this case."""
    queries = _positions(case)
    leaves = {name: x.to(device).requires_grad_() for name, x in _tensors(case, len(queries)).items()}
    packed = torch.tensor([0, *accumulate(case.lengths)], dtype=torch.int32) if len(case.lengths) > 1 else None
    output = attend(leaves, geometry_of(case.sizes), case.impl, case.tile_budget, cu_seqlens=packed)
    allowed = _allowed(case, queries, output)
    yield from _choices(case, queries, output)
    yield from _forward(case, queries, output, allowed)
    yield from _backward(case, queries, output, allowed, leaves)


_Query = tuple[int, int, int]
"""(position in its sequence, where that sequence's tokens start, where its compressed blocks start)"""


def _positions(case: Reads) -> list[_Query]:
    found: list[_Query] = []
    first_token = first_block = 0
    for length in case.lengths:
        found += [(position, first_token, first_block) for position in range(length)]
        first_token += length
        first_block += len(rules.compressed_blocks(length, case.sizes.l, case.sizes.d))
    return found if len(case.lengths) > 1 else found[-min(case.num_queries, len(found)) :]


def _tensors(case: Reads, num_queries: int) -> dict[str, Tensor]:
    """Random queries and keys; the value of token or block i is the i-th unit vector."""
    num_tokens, dtype = sum(case.lengths), getattr(torch, case.dtype)
    num_blocks = sum(len(rules.compressed_blocks(length, case.sizes.l, case.sizes.d)) for length in case.lengths)
    rows = case.rows if len(case.lengths) == 1 else 1
    tensors = {
        "q": normal((rows, num_queries, case.groups * case.heads, _HEAD_SIZE), case.seed, 1.0, dtype),
        "gates": normal((rows, num_queries, case.groups, 3), case.seed + 1, 1.0, dtype),
    }
    for index, branch in enumerate(BRANCHES):
        size = num_blocks if branch == "compressed" else num_tokens
        shape = rows, size, case.groups, _HEAD_SIZE
        tensors[f"k_{SHORT[branch]}"] = normal(shape, case.seed + 2 + index, 1.0, dtype)
        units = torch.eye(num_tokens, dtype=dtype)[:size]
        tensors[f"v_{SHORT[branch]}"] = units[None, :, None].expand(rows, -1, case.groups, -1).contiguous()
    return tensors


def _allowed(case: Reads, queries: Sequence[_Query], output: NSAOutput) -> dict[str, Tensor]:
    """Per branch, whether a query may read a key: [B, T, G, S]."""
    rows, num_tokens = output.out.shape[0], output.out.shape[-1]
    shape = rows, len(queries), case.groups, num_tokens
    allowed = {branch: torch.zeros(shape, dtype=torch.bool) for branch in BRANCHES}
    slots = listed(output.slots)
    for index, (position, first_token, first_block) in enumerate(queries):
        seen = rules.visible_compressed(position, case.sizes.l, case.sizes.d)
        allowed["compressed"][:, index, :, [first_block + block for block in seen]] = True
        window = rules.window(position, case.sizes.w)
        allowed["sliding"][:, index, :, [first_token + token for token in window]] = True
        for row in range(rows):
            for group in range(case.groups):
                tokens = rules.tokens_of_slots(slots[row][index][group], position + 1, case.sizes.l_sel) or set()
                allowed["selected"][row, index, group, [first_token + token for token in tokens]] = True
    return allowed


def _choices(case: Reads, queries: Sequence[_Query], output: NSAOutput) -> Iterator[Failure]:
    for row in listed(output.slots):
        for (position, _, _), groups in zip(queries, row, strict=True):
            for slots in groups:
                complaint = rules.choice_complaint(slots, position, case.sizes.l_sel, case.sizes.n_sel)
                if complaint is not None:
                    message = f"{complaint[1]} by token {position}: slots {slots}"
                    yield Failure(violation=complaint[0], message=message, where=choice_place(case.impl))
                    return


def _forward(
    case: Reads, queries: Sequence[_Query], output: NSAOutput, allowed: dict[str, Tensor]
) -> Iterator[Failure]:
    for branch in BRANCHES:
        weights = getattr(output, branch).detach().cpu().unflatten(2, (case.groups, -1))  # [B, T, G, h, S]
        may = allowed[branch][:, :, :, None].expand_as(weights)
        place = branch_place(branch, case.impl, output.out)
        for verb, what, wrong in (
            ("reads", "what it may not", (weights != 0) & ~may),
            ("does not read", "what it may", (weights == 0) & may),
        ):
            if bool(wrong.any()):
                _, query, _, _, key = (int(index) for index in wrong.nonzero()[0])
                message = f"token {_position(queries[query])} {verb} {_key(branch, key, case.sizes)} in {branch}"
                name = f"{branch}: {verb} {what}"
                yield Failure(violation=Violation.READS_OTHER_KEYS, name=name, message=message, where=place)
        sums, expected = weights.double().sum(-1), may.any(-1).double()
        error = (sums - expected).abs().max()
        bound = _ROUNDINGS * weights.shape[-1] * torch.finfo(weights.dtype).eps
        if not bool(error <= bound):
            message = f"weights in {branch} sum to {float(sums.flatten()[0]):.6g} or so, {float(error):.2g} from 1 or 0"
            name = f"{branch}: weights do not sum to one"
            yield Failure(violation=Violation.WEIGHTS_DO_NOT_SUM, name=name, message=message, where=place)


def _backward(
    case: Reads, queries: Sequence[_Query], output: NSAOutput, allowed: dict[str, Tensor], leaves: dict[str, Tensor]
) -> Iterator[Failure]:
    """Gradients of one query's output: they reach what it reads, and nothing else."""
    probed = case.probed % len(queries)
    direction = normal(output.out[:, probed].shape, case.seed + 9, 1.0, output.out.dtype, output.out.device)
    losses = {branch: (getattr(output, branch)[:, probed] * direction).sum() for branch in BRANCHES}
    grads = differentiate(
        torch.stack(list(losses.values())).sum(), {name: x for name, x in leaves.items() if name != "gates"}
    )
    others = torch.arange(len(queries)) != probed
    if bool((grads["q"].cpu()[:, others] != 0).any()):
        message = f"the gradient of token {_position(queries[probed])} reaches another query"
        place = branch_place(_leaking(losses, leaves["q"], others), case.impl, output.out)
        name = "gradient reaches another query"
        yield Failure(violation=Violation.GRADIENT_REACHES_OTHERS, name=name, message=message, where=place)
    for branch in BRANCHES:
        may = allowed[branch][:, probed].transpose(1, 2)  # [B, S, G]
        place = branch_place(branch, case.impl, output.out)
        for kind in ("k", "v"):
            grad = grads[f"{kind}_{SHORT[branch]}"].cpu()
            reached = (grad != 0).any(-1)  # NaN counts
            may_here = may[:, : reached.shape[1]]
            wrong = reached & ~may_here
            if kind == "v":
                wrong = reached != may_here
            if bool(wrong.any()):
                key = int(wrong.nonzero()[0, 1])
                is_reached = bool(reached[wrong][0])
                verb = "reaches" if is_reached else "does not reach"
                violation = Violation.GRADIENT_REACHES_OTHERS if is_reached else Violation.READS_OTHER_KEYS
                message = f"the gradient of token {_position(queries[probed])} {verb} the {kind} of "
                message += f"{_key(branch, key, case.sizes)} in {branch}"
                yield Failure(violation=violation, name=f"{branch}: gradient {verb}", message=message, where=place)


def _leaking(losses: dict[str, Tensor], q: Tensor, others: Tensor) -> str:
    """The branch whose output of one query depends on another query."""
    for branch, loss in losses.items():
        (grad,) = torch.autograd.grad(loss, q, retain_graph=True, allow_unused=True, materialize_grads=True)
        if bool((grad.cpu()[:, others] != 0).any()):
            return branch
    return "out"


def _position(query: _Query) -> str:
    return f"{query[0]}" if not query[1] else f"{query[0]} of the sequence that starts at {query[1]}"


def _key(branch: str, key: int, sizes: Sizes) -> str:
    return f"compressed block {key}" if branch == "compressed" else f"token {key}"
