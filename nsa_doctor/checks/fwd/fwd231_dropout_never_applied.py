"""FWD231 dropout-never-applied

Detects: a module with a dropout of its own, a module or a share, whose forward draws no random number in training
    mode; a share that its constructor is given and does not read, likewise; and a dropout that nothing calls, which no
    method of its holder names.
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

from nsa_doctor.checks._shared.dropouts import LENGTH, idle_shares, is_share, shares_given, shares_in
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.probes.hooks.unread_arguments import unread_arguments
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    if "train" not in subject.modes:
        raise NotApplicableError("it does not run in training mode")
    with unread_arguments(is_share) as unread:
        sp = built(subject, mode="train")
    shares = [*shares_in(sp.module), *shares_given(sp.module, unread)]
    if not shares:
        raise NotApplicableError("it holds no share of dropout above zero")
    found = idle_shares(sp, shares)
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
            where=in_subject(replace(definition_place(first.share.holder), module=path), sp.module),
            evidence={"length": min(LENGTH, subject.max_length), "mode": "train", "share": share, "attribute": name},
            repro=command_for(subject, "FWD231"),
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
