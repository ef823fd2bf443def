"""NAN107 saturating-logits

Detects: selected attention whose result or gradient is not finite, or not right, when logits come near -1e4 and +1e4.
Matters: some heads reach such logits after long training; what overflows there ends the run.
Fix: subtract the largest visible logit of a row before exp, in the dtype that holds the scores.

Example:
    # faulty
    weights = scores.exp()
    weights = weights / weights.sum(-1, keepdim=True)
    # correct
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    weights = weights / weights.sum(-1, keepdim=True)
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.agreement import worst_token
from nsa_doctor.probes.attention.equations import masked_attention, readable_mask
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.heads import heads
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of

_SCALE = 100.0  # of queries and keys: logits grow with its square
_LENGTHS = (64, 192, 320)  # 64 and 128k + 64


def run(subject: Subject) -> Iterator[Finding]:
    attend, rules, module = subject.attend, rules_of(subject), subject.build(subject.seed)
    assert attend is not None
    for length in _LENGTHS:
        q, k, v = (value.requires_grad_() for value in heads(subject.seed, length, _SCALE))
        slots = torch.full((1, length, k.shape[2], rules.n_sel), -1)
        slots[..., 0] = 0
        slots[..., 1] = torch.arange(length)[None, :, None] // rules.l_sel
        slots[..., 1].masked_fill_(slots[..., 1] == 0, -1)
        call: Callable[[], Tensor] = lambda q=q, k=k, v=v, slots=slots: attend(q, k, v, slots)  # noqa: E731
        output = ask("attend", call, module)
        due = masked_attention(q, k, v, readable_mask(slots, length, rules)).detach()
        # A logit errs by a unit in its last place for each product it sums, and a weight by as much, relatively.
        rounding = _SCALE**2 * q.shape[-1] * torch.finfo(output.dtype).eps
        floor = torch.full(output.shape[:2], 8 * rounding) * due.abs().amax()
        worst = worst_token(output, due, floor)
        gradients = torch.autograd.grad(output.sum(), (q, k, v)) if output.requires_grad else ()
        lost = sum(int((~isfinite(gradient)).sum()) for gradient in gradients)
        if worst is None and not lost:
            continue
        what = (
            f"{lost} values of the gradient are not finite"
            if worst is None
            else (
                f"{worst.num_tokens} tokens differ by up to {worst.error:.2g} where rounding explains {worst.bound:.1g}"
            )
        )
        yield Finding(
            message=f"attend with logits up to {_SCALE**2:g} at S={length}: {what}",
            where=origin(subject, module, call),
            evidence={"length": length, "gradient values": lost, "error": 0.0 if worst is None else worst.error},
            repro=command_for(subject, "NAN107"),
        )
        return


def planted(subject: Subject) -> Subject:
    attend = subject.attend
    assert attend is not None

    def faulty(q: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> Tensor:
        largest = q.square().sum((-1, -2), keepdim=True).exp()
        return attend(q, k, v, slots) * (largest / largest)

    return replace(subject, attend=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("attend",), profile="smoke")
