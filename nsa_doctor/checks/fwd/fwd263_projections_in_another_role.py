"""FWD263 projections-in-another-role

Detects: a module with projections named after queries, keys and values (`q_proj`, `to_k`, `value`, …) that play
    other roles in its attention: what is named a key gives the values that the softmax weighs, or what is named a
    query the keys.
Matters: weights of another implementation give another output, initial sizes and learning rates that are set by name
    reach the wrong matrix, and what is cached or shared as keys is not keys.
Fix: mind the order: `attention(q, k, v)`, and `q, k, v = self.q(x), self.k(x), self.v(x)`.

Example:
    # faulty
    y = scaled_dot_product_attention(q, v, k)
    # correct
    y = scaled_dot_product_attention(q, k, v)
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.projection_names import ROLES
from nsa_doctor.probes.attention.projection_roles import PlayedRoles, played_roles
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH = 23


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    length = min(_LENGTH, subject.max_length)
    found = list(played_roles(sp, sp.input(length)))
    if not found:
        raise NotApplicableError("no softmax was seen over scores of projections named query, key and value")
    reported: set[tuple[str, int]] = set()
    for each in found:
        line = each.place.file, each.place.line
        if not each.is_as_named and line not in reported:
            reported.add(line)
            yield Finding(
                message=f"in the attention of {each.projections.holder or 'the module'} {_said(each)}, at S={length}",
                where=in_subject(each.place, sp.module),
                evidence={"length": length, **{role: _names(each, role) for role in ROLES}},
                repro=command_for(subject, "FWD263"),
            )


def _said(found: PlayedRoles) -> str:
    """Each projection that is not what its name says, and what it is."""
    does = {"query": "asks as queries", "key": "is scored as keys", "value": "is weighed as values"}
    wrong = [(_names(found, role), does[found.played[role]]) for role in ROLES if found.played[role] != role]
    parts = [f"the projection named {name} {what}" for name, what in wrong]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _names(found: PlayedRoles, role: str) -> str:
    return ", ".join(name for each, names in found.projections.names.items() if each == role for name in names)


def planted(subject: Subject) -> Subject:
    class Attention(nn.Module):
        """Attention beside the subject, which takes keys for values."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            tokens = output[..., :8].to(self.q.weight)
            q, v, k = self.q(tokens), self.k(tokens), self.v(tokens)
            read = (q @ k.mT).softmax(-1) @ v
            return output + read.mean(-1, keepdim=True).to(output)

    return replace(subject, build=lambda _seed: Attention(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD206", "NAN101"))
