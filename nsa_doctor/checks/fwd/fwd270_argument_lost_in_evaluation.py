"""FWD270 argument-lost-in-evaluation

Detects: an optional argument of forward whose value is lost in `eval()`: by chance, where two equal calls with it
differ and two without do not, as of labels that are to be dropped in training alone; and by rounding, where every
fraction gives the same and whole numbers others, as of a time in [0, 1] that is cast to integers. A forward that is
given how much is drawn (`cond_drop_prob`, `generator`), and a time that counts steps, are left alone.
Matters: samples lose their class now and then, and a sampler that goes from time 1 to 0 asks for one time alone; a pass
without the argument shows nothing.
Fix: draw where `self.training` is true alone; keep a time a floating-point number.

Example:
    # faulty
    angle = t.long()[:, None] * self.scale * self.freqs  # each t in [0, 1) is 0
    # correct
    angle = t.float()[:, None] * self.scale * self.freqs
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.chosen_by_chance import chosen_by_chance
from nsa_doctor.probes.behaviour.whole_times import whole_times
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 19, 13  # neither of which is a number of heads or channels


def run(subject: Subject) -> Iterator[Finding]:
    if "eval" not in subject.modes:
        raise NotApplicableError("it does not run in evaluation")
    sp = comparable_module(subject)
    x = sp.input(min(_LENGTH, subject.max_length), _ROWS)
    taken: list[str] = []
    with torch.no_grad(), unobserved():  # what it raises for values that it does not take is none of its faults
        drawn, whole = (attempt(lambda find=find: list(find(sp, x, taken))) for find in (chosen_by_chance, whole_times))
    if not taken:
        raise NotApplicableError("its forward takes no optional argument of which a value was found")
    for chance in drawn[:1] if isinstance(drawn, list) else []:
        divergence = chance.divergence
        first = f"; outputs first diverge at {divergence.operation}" if divergence.operation else ""
        yield Finding(
            message=(
                f"with the argument {chance.name} two equal calls in eval() differ in {chance.num_rows} of "
                f"{chance.rows} rows by the random seed, and without it they do not, at S={x.shape[1]}{first}"
            ),
            where=in_subject(divergence.place, sp.module),
            evidence={"argument": chance.name, "length": x.shape[1], "num_rows": chance.num_rows},
            repro=command_for(subject, "FWD270"),
        )
    for time in whole[:1] if isinstance(whole, list) else []:
        yield Finding(
            message=(
                f"every value of the argument {time.name} between 0 and 1 gives the same output, at S={x.shape[1]}: "
                f"it is made a whole number in {time.operation}, and {time.reason}"
            ),
            where=in_subject(time.place, sp.module),
            evidence={"argument": time.name, "length": x.shape[1], "operation": time.operation},
            repro=command_for(subject, "FWD270"),
        )


def planted(subject: Subject) -> Subject:
    class Timed(nn.Module):
        """The subject, whose answer is scaled by a time that it makes a whole number."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)

        def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output if t is None else output * (2 + (t.long() * 1000.0).sin()).to(output)[:, None, None]

    return replace(subject, build=lambda _seed: Timed(), forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "FWD206", "FWD210"),
    unless=("stochastic",),
)
