"""NAN106 row-that-sees-nothing

Detects: a query with no key to read, before the first block is complete or with empty slots alone, whose result is not
exactly zero, or whose gradient is not; a tile of such queries at the front is among the cases. A row of a batch of
which a mask hides every token, and from which several queries that are no padding, as learned ones, read NaN, so that a
loss of the other rows alone has NaN gradients, or of which NaN is cleaned behind the softmax, though backward has it
still. Where its own tokens ask, one summary of it does, or lengths say that it has none, that is a note.
Matters: a softmax over nothing is NaN, or an average of what may not be seen; it is met at the start of every sequence,
and with every empty set, document or context of a batch.
Fix: fill hidden scores with a finite number, take the softmax, then fill hidden weights with zero.

Example:
    # faulty
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)  # a row that sees nothing reads all keys alike
    # correct
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1).masked_fill(hidden, 0)
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.checks._shared.padding_alone import of_padding_alone
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.seams import offers_no
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.heads import heads
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import Rules, rules_of

_TILE = 70  # queries, more than any tile of 64


def run(subject: Subject) -> Iterator[Finding | Note]:
    if subject.branches is None and subject.attend is None and subject.padded is None:
        raise NotApplicableError(offers_no(("branches", "attend", "padded")))
    if subject.branches is not None or subject.attend is not None:
        rules = rules_of(subject)
        found = [*_before_the_first_block(subject, rules), *_empty_slots(subject, rules)]
        yield from found[:1]
    if subject.padded is not None:
        yield from of_padding_alone(subject, "NAN106")


def _before_the_first_block(subject: Subject, rules: Rules) -> Iterator[Finding]:
    branches = subject.branches
    if branches is None or rules.l < 2:
        return
    sp = built(subject)
    for length in (rules.l - 1, 2 * rules.l):
        x = sp.input(length)
        x = x.requires_grad_() if x.is_floating_point() else x
        inner = ask("forward", lambda x=x: branches(sp.module, x), sp.module)
        if "compressed" not in inner:
            return
        rows = inner["compressed"][:, : rules.l - 1]
        place = lambda x=x: origin(subject, sp.module, lambda: branches(sp.module, x), "compressed")  # noqa: E731
        yield from _judged(subject, f"the compressed branch at S={length}", rows, [x], place, is_exact=True)


def _empty_slots(subject: Subject, rules: Rules) -> Iterator[Finding]:
    attend = subject.attend
    if attend is None:
        return
    module = subject.build(subject.seed)
    operands = [value.requires_grad_() for value in heads(subject.seed, _TILE + rules.l_sel)]
    slots = torch.full((1, _TILE + rules.l_sel, operands[1].shape[2], rules.n_sel), -1)
    slots[:, _TILE:, :, 0] = 0
    call = lambda: attend(*operands, slots)  # noqa: E731
    output = ask("attend", call, module)
    place = lambda: origin(subject, module, call)  # noqa: E731
    is_exact = subject.is_choice_canonical  # elsewhere a block is always chosen, and such a row need only be finite
    yield from _judged(subject, "attend with empty slots", output[:, :_TILE], operands, place, is_exact=is_exact)


def _judged(
    subject: Subject, what: str, rows: Tensor, sources: list[Tensor], place: Callable[[], Place], *, is_exact: bool
) -> Iterator[Finding]:
    """The rows, and the gradient that flows from them into what they were computed from."""
    leaves = [source for source in sources if source.requires_grad and rows.requires_grad]
    gradients = torch.autograd.grad((rows * rows.detach().cos()).sum(), leaves, allow_unused=True) if leaves else ()
    for name, values in (("result", rows), *(("gradient", value) for value in gradients if value is not None)):
        bad = (values != 0) | ~isfinite(values) if is_exact else ~isfinite(values)
        if bool(bad.any()):
            yield Finding(
                message=f"{what}: {int(bad.flatten(2).any(-1).sum())} rows of the {name} of queries without a key are "
                f"not {'zero' if is_exact else 'finite'}, such as {float(values.detach()[bad][0]):.3g}",
                where=place(),
                evidence={"in": name, "values": int(bad.sum())},
                repro=command_for(subject, "NAN106"),
            )
            return


def planted(subject: Subject) -> Subject:
    attend = subject.attend
    assert attend is not None
    return replace(subject, attend=lambda q, k, v, slots: attend(q, k, v, slots) + 1e-3)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke")
