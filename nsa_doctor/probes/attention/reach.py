"""Which keys a branch reads for a query: by the gradient of what it gives with respect to what it read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.seams import offers_no
from nsa_doctor.probes.attention.choice import chosen
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module
from nsa_doctor.probes.model.heads import heads
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import Rules

_BRANCHES = {"compressed": "v_cmp", "selected": "v_sel", "sliding": "v_win"}
_LONGEST, _LONGEST_BY_INPUT = 600, 160


@dataclass(frozen=True)
class Reach:
    """What one query of a branch reads and what it may read: tokens, or compressed blocks, as `what` says."""

    branch: str
    query: str
    length: int
    what: str
    read: Sequence[int]
    due: Sequence[int]
    place: Callable[[], Place]


def alone(subject: Subject, rules: Rules) -> Iterator[Reach]:
    """Reach of `attend` with slots in which some blocks are left out."""
    attend = subject.attend
    if attend is None:
        return
    length = 3 * rules.l_sel + rules.l_sel // 2 + 1
    module = subject.build(subject.seed)
    q, k, v = heads(subject.seed, length)
    slots = torch.full((*q.shape[:2], k.shape[2], rules.n_sel), -1)
    slots[:, :, 0, :2], slots[:, :, 1, :2] = torch.tensor([0, 3]), torch.tensor([1, 2])
    v = v.requires_grad_()
    output = ask("attend", lambda: attend(q, k, v, slots), module)
    positions = [0, rules.l_sel - 1, rules.l_sel, 2 * rules.l_sel + 1, length - 1]
    weights = values_read(output, v, positions).unflatten(1, (v.shape[2], -1))
    place = lambda: origin(subject, module, lambda: attend(q, k, v, slots))  # noqa: E731
    for index, t in enumerate(positions):
        for group in range(v.shape[2]):
            due = rules.readable([slot for slot in slots[0, t, group].tolist() if slot >= 0], t)
            read = _support(weights[index, group])
            yield Reach("attend", f"token {t}, group {group}", length, "tokens", read, due, place)


def inside(subject: Subject, rules: Rules) -> Iterator[Reach]:
    """Reach of every branch, and of the compressor, in a forward pass that shows its inner parts."""
    sp = built(subject)
    limit = subject.max_length if subject.profile == "full" else min(subject.max_length, _LONGEST)
    length = rules.telling_lengths(limit)[-1]
    x = sp.input(length).requires_grad_()
    inner = anatomy(sp, x)
    positions = _positions(rules, length)
    for branch, values in _BRANCHES.items():
        weights = values_read(inner[branch], inner[values], positions)
        place = lambda branch=branch: origin(subject, sp.module, lambda: anatomy(sp, x), branch)  # noqa: E731
        for index, t in enumerate(positions):
            per_group = weights[index].unflatten(0, (inner[values].shape[2], -1))
            for group, of_group in enumerate(per_group):
                due = _due(branch, rules, t, inner["slots"][0, t, group].tolist())
                what = "compressed blocks" if branch == "compressed" else "tokens"
                yield Reach(branch, f"token {t}, group {group}", length, what, _support(of_group), due, place)
    yield from _compressor(sp, x, inner, rules)


def outside(subject: Subject, rules: Rules) -> Iterator[Reach]:
    """Reach of every branch by its dependence on the input; the query's own token always has an influence."""
    sp = comparable_module(subject)
    length = min(rules.telling_lengths(subject.max_length)[-1], max(_LONGEST_BY_INPUT, rules.w + 2))
    x, positions = sp.input(length), _positions(rules, length)
    slots = None if subject.choose is None else chosen(sp, x)
    blocks = {} if slots is None else {(row.t, row.group): row.blocks for row in slots.rows()}
    for branch in _BRANCHES:
        if branch == "selected" and not blocks:
            continue
        reached = tokens_reached(sp, x, positions, branch)
        place = lambda branch=branch: origin(  # noqa: E731
            subject,
            sp.module,
            lambda: subject.branches(sp.module, x),
            branch,
        )
        for index, t in enumerate(positions):
            of_all = sorted({block for (query, _), found in blocks.items() if query == t for block in found})
            due = {token for block in rules.visible(t) for token in rules.compressed_tokens(block)}
            due = due if branch == "compressed" else set(_due(branch, rules, t, of_all))
            read = {int(token) for token in reached[index].nonzero().flatten()} | {t}
            yield Reach(branch, f"token {t}", length, "tokens", sorted(read), sorted(due | {t}), place)


def _compressor(sp: BuiltModule, x: Tensor, inner: Mapping[str, Tensor], rules: Rules) -> Iterator[Reach]:
    """The tokens each compressed value is made of."""
    count = inner["v_cmp"].shape[1]
    place = lambda: origin(sp.subject, sp.module, lambda: anatomy(sp, x), "v_cmp")  # noqa: E731
    for block in sorted({0, count // 2, count - 1} if count else ()):
        gradient = _gradient(inner["v_cmp"][:, block].sum(), x, None)
        read = [] if gradient is None else (gradient[0] != 0).any(-1).nonzero().flatten().tolist()
        due = list(rules.compressed_tokens(block))
        yield Reach("the compressor", f"compressed block {block}", x.shape[1], "tokens", read, due, place)
    blocks = rules.visible(x.shape[1] - 1)
    yield Reach("the compressor", "the sequence", x.shape[1], "compressed blocks", list(range(count)), blocks, place)


def _due(branch: str, rules: Rules, t: int, slots: Sequence[int]) -> list[int]:
    if branch == "compressed":
        return rules.visible(t)
    return list(rules.window(t)) if branch == "sliding" else rules.readable([j for j in slots if j >= 0], t)


def _support(heads: Tensor) -> list[int]:
    """Keys to which any head [h, K] gives a weight; one that rounding made nothing of in some head is no hole."""
    return (heads != 0).any(0).nonzero().flatten().tolist()


def _positions(rules: Rules, length: int) -> list[int]:
    """Queries at every kind of edge."""
    wanted = {0, rules.l - 2, rules.l - 1, rules.l + rules.d - 1, rules.l_sel - 1, rules.l_sel, rules.w - 1, rules.w}
    wanted |= {length - 1, length - 1 - rules.l_sel // 2, rules.l_sel * 2}
    return sorted(t for t in wanted if 0 <= t < length)


def anatomy(sp: BuiltModule, x: Tensor) -> Mapping[str, Tensor]:
    """The inner tensors of one call, connected by autograd to each other and to the leaf x."""
    take = sp.subject.anatomy
    if take is None:
        raise NotApplicableError(offers_no(("anatomy",)))
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


def tokens_reached(sp: BuiltModule, x: Tensor, positions: Sequence[int], branch: str) -> Tensor:
    """Whether each token of x [1, S, width] has an influence on a branch at these positions: [P, S]."""
    take: Callable[..., Mapping[str, Tensor]] | None = sp.subject.branches
    if take is None or sp.subject.input != "embeddings":
        raise NotApplicableError("it offers no branches of embeddings")
    rows = x.detach().repeat(len(positions), 1, 1).requires_grad_()
    branches = ask("forward", lambda: take(sp.module, rows), sp.module)
    if branch not in branches:
        raise NotApplicableError(f"it has no branch called {branch}")
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
