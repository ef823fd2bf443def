"""FWD306 packed-differs-from-separate

Detects: sequences packed into one row that give other results than each by itself.
Matters: documents read each other, or positions and blocks are counted from the wrong start.
Fix: every mask, position, block and window restarts where a sequence does.

Example:
    # faulty
    positions = torch.arange(num_tokens)  # goes on from one sequence to the next
    # correct
    starts = offsets[:-1].repeat_interleave(offsets.diff())
    positions = torch.arange(num_tokens) - starts
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.own_nsa import is_ours
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.agreement import worst_token
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module, require_finite
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.probes.numerics.precision import finest_precision, noise_floor
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of

_LENGTHS = (7, 1, 33, 64, 18)
_LONGEST = 200
_Packed = Callable[[nn.Module, Tensor, Tensor], Tensor]


def run(subject: Subject) -> Iterator[Finding]:
    packed, sp = subject.packed, comparable_module(subject)
    assert packed is not None
    lengths = _lengths(subject)
    parts = [sp.input(length, seed=subject.seed + index) for index, length in enumerate(lengths)]
    cu_seqlens = torch.tensor(_offsets(subject, lengths), dtype=torch.int32, device=subject.device)
    x = torch.cat(parts, dim=1)
    call = lambda: packed(sp.module, x.clone(), cu_seqlens.clone())  # noqa: E731
    eps = finest_precision(sp, max(parts, key=lambda part: part.shape[1])).eps
    with torch.no_grad():
        together = ask("forward of packed sequences", call, sp.module)
        for index, (part, got) in enumerate(zip(parts, together.split(lengths, dim=1), strict=True)):
            alone = require_finite(sp(part), part.shape[1])
            worst = worst_token(got, alone, noise_floor(sp, part, eps))
            if worst is not None:
                yield Finding(
                    message=f"sequence {index} of {len(lengths)}, packed, differs by {worst.error:.2e} from itself "
                    f"alone, where rounding explains {worst.bound:.2e}, at {worst.num_tokens} of {part.shape[1]} "
                    f"tokens, most at {worst.token}",
                    where=_place(sp, packed, x, cu_seqlens, sum(lengths[:index])),
                    evidence={"lengths": str(lengths), "sequence": index, "token": worst.token, "error": worst.error},
                    repro=command_for(subject, "FWD306"),
                )
                return


def _place(sp: BuiltModule, packed: _Packed, x: Tensor, cu_seqlens: Tensor, start: int) -> Place:
    """Where a sequence comes to depend on those before its start; where the output is made if it is not by them."""
    other = torch.cat((sp.input(max(1, start), seed=sp.subject.seed + len(cu_seqlens))[:, :start], x[:, start:]), dim=1)
    ways = (lambda x=each: packed(sp.module, x.clone(), cu_seqlens.clone()) for each in (x, other))
    first, second = ways
    found = attempt(lambda: first_divergence(sp, first, second, {x.shape[1]: start - x.shape[1]}, cu_seqlens))
    if not isinstance(found, Caught) and found.operation:
        return found.mask or found.place
    made = origin(sp.subject, sp.module, first)
    return replace(made, module="", module_class=type(sp.module).__name__)


def _offsets(subject: Subject, lengths: list[int]) -> list[int]:
    """Where the sequences start; with `nsa`, which takes them, empty ones stand before, between and after the rest."""
    starts = [0, *accumulate(lengths)]
    return sorted([*starts, starts[0], starts[2], starts[-1]]) if is_ours(subject.packages) else starts


def _lengths(subject: Subject) -> list[int]:
    """Sequences that end inside blocks of every kind, one of a single token, one that outgrows all windows."""
    try:
        rules = rules_of(subject)
    except NotApplicableError:
        ends = accumulate(_LENGTHS)
        fitting = [length for length, end in zip(_LENGTHS, ends, strict=True) if end <= subject.max_length]
        return fitting if len(fitting) > 1 else [1] * min(2, subject.max_length)
    longest = [length for length in rules.telling_lengths(subject.max_length) if length <= _LONGEST]
    return [rules.l + rules.d - 1, 1, *longest[-1:], rules.l_sel + 3, rules.l - 1 or 1]


def planted(subject: Subject) -> Subject:
    packed = subject.packed
    assert packed is not None

    def reads_the_first_sequence_in_the_last(module: nn.Module, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        output = packed(module, x, cu_seqlens)
        return torch.cat((output[:, :-1], output[:, -1:] + output[:, :1]), dim=1)

    return replace(subject, packed=reads_the_first_sequence_in_the_last)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, needs=("packed",), profile="smoke", blocked_by=("NAN101", "FWD206")
)
