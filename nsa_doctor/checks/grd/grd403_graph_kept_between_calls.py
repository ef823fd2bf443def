"""GRD403 graph-kept-between-calls

Detects: a module that keeps a tensor with its graph from one call to the next: a state, a cache, keys made once.
Matters: the second training step raises in backward, or learns from values of parameters that have since moved.
Fix: detach what is carried over where it is stored; compute again in each call what is made of parameters.

Example:
    # faulty
    self.state = self.update(self.state, x)  # holds the graph of every call before
    # correct
    self.state = self.update(self.state.detach(), x)
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import lengths_for
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.retained_graph import Graphs, Kept, two_calls, two_steps
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    ways: list[tuple[Mode, str, Mode]] = [
        ("train", "call", "train"),
        ("eval", "call", "eval"),
        ("train", "call", "eval"),
    ]
    if subject.train_step is not None:  # the loop may well clear what it carries
        ways = [("train", "training step", "train")]
    for mode, what, then in ways:
        if not {mode, then}.issubset(subject.modes):
            continue
        sp = built(subject, mode=mode)
        length = lengths_for(subject)[0]
        stepping = two_steps(sp, length) if what == "training step" else two_calls(sp, length, then)
        try:
            kept = Graphs(subject, sp.module).compare(stepping)
        except SubjectFailedError as failure:
            raise NotComparableError(f"the subject raises in {failure.phase} at S={length}: {failure}") from failure
        if kept is not None and (kept.raised or then == "train"):
            yield _finding(subject, kept, length, mode if mode == then else f"{mode}, then {then}", what)
            return


def _finding(subject: Subject, kept: Kept, length: int, mode: str, what: str) -> Finding:
    others = f" and {len(kept.ways) - 1} more" if len(kept.ways) > 1 else ""
    held = f"{kept.ways[0]}{others}" if kept.ways else "what no attribute of a module holds"
    came = "whose backward raises that it is gone through a second time" if kept.raised else "and backward follows it"
    return Finding(
        message=f"{held} keep{'' if others else 's'} the graph of the {what} before: at S={length} the second {what}'s "
        f"leads into it at {kept.num_nodes} place{'' if kept.num_nodes == 1 else 's'}, {came} ({mode})",
        where=kept.place,
        evidence={"length": length, "mode": mode, "held_in": ",".join(kept.ways), "raised": kept.raised},
        control=f"the first {what} runs forward and backward",
        repro=command_for(subject, "GRD403"),
    )


def planted(subject: Subject) -> Subject:
    kept: list[Any] = []

    def carries_its_mean(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        carried = kept.pop() if kept else output.mean().tanh()
        kept.append((output.mean() + carried).tanh())
        return output + carried

    return replace(subject, forward=carries_its_mean)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    blocked_by=("FWD101",),
    priority=230,
    explains=("graph freed",),
)
