"""FWD231 dropout-never-applied

Detects: a module with a dropout of its own, a module or a share, whose forward draws no random number in training
    mode; a share that its constructor is given and does not read, likewise; a dropout that nothing calls, which no
    method of its holder names; and a part named after dropping that holds a share and gives back what it is given,
    call after call.
Matters: the model trains without the regularisation that its configuration states, and another run with another share
    is the same run.
Fix: hand the share on to what attends (`dropout_p=self.dropout if self.training else 0.0`), or call the dropout.

Example:
    # faulty
    y = scaled_dot_product_attention(q, k, v, dropout_p=0.0)  # beside self.dropout = nn.Dropout(0.1)
    # correct
    y = scaled_dot_product_attention(q, k, v, dropout_p=self.dropout.p if self.training else 0.0)
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.dropouts import LENGTH, idle_shares, is_share, place_of_holder, shares_given, shares_in
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.dropping_parts import is_dropping, share_of
from nsa_doctor.probes.behaviour.idle_drops import IdleDrop, idle_drops
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.probes.hooks.unread_arguments import unread_arguments
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    if "train" not in subject.modes:
        raise NotApplicableError("it does not run in training mode")
    with unread_arguments(is_share) as unread:
        sp = built(subject, mode="train")
    shares = [*shares_in(sp.module), *shares_given(sp.module, unread)]
    length = min(LENGTH, subject.max_length)
    unchanging = list(idle_drops(sp, length))
    if not (shares or unchanging or any(map(share_of, filter(is_dropping, sp.module.modules())))):
        raise NotApplicableError("it holds no share of dropout above zero")
    found = idle_shares(sp, shares)
    yield from _unchanging(sp, [each for each in unchanging if each.module not in [one.share.holder for one in found]])
    kinds = [(type(each.share.holder), each.share.name, each.share.share) for each in found]
    for kind in dict.fromkeys(kinds):
        first, others = found[kinds.index(kind)], kinds.count(kind) - 1
        path, name, share = first.share.path, first.share.name, first.share.share
        held = f"is given as {name}, and does not read," if first.share.is_given else f"holds as {name}"
        more = f" (and {others} more of its class)" if others else ""
        draws = "" if first.is_holder_drawing else "; its forward draws no random number"
        yield Finding(
            message=(
                f"the dropout of {share:g} that {path or 'the module'}{more} {held} is not applied in training "
                f"mode{draws}"
            ),
            where=place_of_holder(sp.module, path),
            evidence={"length": length, "mode": "train", "share": share, "attribute": name},
            repro=command_for(subject, "FWD231"),
        )


def _unchanging(sp: BuiltModule, found: list[IdleDrop]) -> Iterator[Finding]:
    """One finding for each class."""
    kinds = [type(each.module) for each in found]
    for kind in dict.fromkeys(kinds):
        first, others = found[kinds.index(kind)], kinds.count(kind) - 1
        more = f" (and {others} more of its class)" if others else ""
        yield Finding(
            message=(
                f"the dropout of {first.share:g} that {first.path}{more} holds as {first.attribute} is not applied in "
                f"training mode: {first.num_calls} calls give back what they are given"
            ),
            where=in_subject(replace(definition_place(first.module), module=first.path), sp.module),
            evidence={"mode": "train", "share": first.share, "attribute": first.attribute, "calls": first.num_calls},
            repro=command_for(sp.subject, "FWD231"),
        )


def planted(subject: Subject) -> Subject:
    class Undropped(nn.Module):
        """A dropout whose share is handed on to nothing."""

        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            return x

    class Before(nn.Module):
        """The subject behind it."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.before = subject.build(subject.seed), Undropped()

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, self.before(x))
            return output

    return replace(subject, build=lambda _seed: Before(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
