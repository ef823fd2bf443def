"""FWD302 full-coverage-differs-from-dense

Detects: a selected or a sliding branch that covers the whole past and yet is not dense causal attention over its keys.
Matters: this is the one case with a known answer: what is wrong here is wrong at every length.
Fix: look at the scale, the mask at the query's own token, and how heads are matched with key and value groups.

Example:
    # faulty
    seen = key_positions < query_positions[:, None]  # a token does not see itself
    # correct
    seen = key_positions <= query_positions[:, None]
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.seams import offers_no
from nsa_doctor.probes.attention.agreement import worst_token
from nsa_doctor.probes.attention.reach import anatomy
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module, require_finite
from nsa_doctor.probes.model.heads import heads
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import Rules, rules_of

_LONGEST = 192
_FLOAT64 = 1e-12  # what the method's text promises; a hundred times less than any mistake of one key in a thousand


def run(subject: Subject) -> Iterator[Finding]:
    rules = rules_of(subject)
    if subject.attend is None and subject.anatomy is None:
        raise NotApplicableError(offers_no(("attend", "anatomy")))
    if subject.attend is not None:
        yield from _alone(subject, min(rules.n_sel * rules.l_sel, _LONGEST) - 1, rules)
    if subject.anatomy is not None:
        sp = comparable_module(subject)
        for branch, name, most in (("selected", "sel", rules.n_sel * rules.l_sel), ("sliding", "win", rules.w)):
            yield from _inside(sp, branch, name, min(most, _LONGEST))


def _alone(subject: Subject, length: int, rules: Rules) -> Iterator[Finding]:
    """`attend` with every block in its slots."""
    attend, module = subject.attend, subject.build(subject.seed)
    assert attend is not None
    q, k, v = heads(subject.seed, length)
    slots = torch.full((*q.shape[:2], k.shape[2], rules.n_sel), -1)
    slots[..., : rules.num_blocks(length)] = torch.arange(rules.num_blocks(length))
    call = lambda: attend(q, k, v, slots)  # noqa: E731
    output = ask("attend", call, module)
    yield from _judged(subject, "attend", output, _dense(q, k, v), lambda: origin(subject, module, call))


def _inside(sp: BuiltModule, branch: str, name: str, length: int) -> Iterator[Finding]:
    x = sp.input(length)
    with torch.no_grad():
        inner = anatomy(sp, x)
    output = require_finite(inner[branch], length)
    dense = _dense(inner["q"].double(), inner[f"k_{name}"].double(), inner[f"v_{name}"].double())
    place = lambda: origin(sp.subject, sp.module, lambda: anatomy(sp, x), branch)  # noqa: E731
    yield from _judged(sp.subject, f"the {branch} branch", output, dense, place)


def _dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.detach().transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def _judged(subject: Subject, what: str, output: Tensor, dense: Tensor, place: object) -> Iterator[Finding]:
    scale = dense.abs().flatten(2).amax(-1).clamp_min(1)
    eps = torch.finfo(output.dtype).eps
    floor = scale * (_FLOAT64 if output.dtype == torch.float64 else eps * output.shape[1])
    worst = worst_token(output, dense, floor)
    if worst is not None:
        assert callable(place)
        where: Place = place()
        yield Finding(
            message=f"{what} covers all {output.shape[1]} tokens and differs from dense attention by {worst.error:.2e} "
            f"at token {worst.token}, more than {worst.bound:.0e}, in {worst.num_tokens} tokens",
            where=where,
            evidence={"length": output.shape[1], "error": worst.error, "bound": worst.bound, "token": worst.token},
            repro=command_for(subject, "FWD302"),
        )


def planted(subject: Subject) -> Subject:
    attend = subject.attend
    assert attend is not None
    return replace(subject, attend=lambda q, k, v, slots: attend(1.1 * q, k, v, slots) + 0)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, profile="smoke", explained_by=("FWD301",), unless=("bidirectional",)
)
