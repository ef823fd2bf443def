"""FWD259 choice-without-effect

Detects: a `topk` of some of several, as of blocks or experts, where the least few in place of the largest give the same
output, the same gradients, and leave the same in the module, at every length and with every input that was tried.
Matters: all of them are read, or none, whatever was chosen: what is to be sparse is not, or is not chosen.
Fix: follow the indices from there: a mask that begins with ones, a range that covers everything, a result that is
written over.

Example:
    # faulty
    chosen = torch.ones_like(scores, dtype=torch.bool).scatter(-1, ids, True)
    # correct
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, ids, True)
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.idle_choice import Choice, are_equal, choices
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTHS, _SEEDS, _ROWS = (67, 260), 2, 2
_MOST, _LOUD = 6, 100.0  # lines, and times an ordinary input, which a guard may let through


def run(subject: Subject) -> Iterator[Finding]:
    tried: dict[str, Choice] = {}
    moving = set[str]()
    for sp, x in _passes(subject):
        found, plain = choices(sp, x)
        tried = dict(list({**tried, **{line: found[line] for line in found if line not in tried}}.items())[:_MOST])
        for line in found.keys() & tried.keys() - moving:
            with unobserved():  # what comes of the least is none of its faults
                other = attempt(partial(choices, comparable_module(subject), x, line))
            if isinstance(other, Caught) or not are_equal(plain, other[1]):
                moving.add(line)
    if not tried:
        raise NotApplicableError("it chooses no largest few of several")
    for line, choice in tried.items():
        if line not in moving and choice.place.file:
            yield Finding(
                message=(
                    f"the {choice.count} of {choice.of} that are chosen here change nothing: with the least in place "
                    f"of the largest all that is returned, kept and learnt is the same"
                ),
                where=in_subject(choice.place, sp.module),
                evidence={"chosen": choice.count, "of": choice.of},
                repro=command_for(subject, "FWD259"),
            )
            return


def _passes(subject: Subject) -> Iterator[tuple[BuiltModule, Tensor]]:
    lengths = dict.fromkeys(min(length, subject.max_length) for length in _LENGTHS)
    for length in list(lengths)[: 1 if subject.is_slow else None]:
        for seed in range(_SEEDS):
            sp = comparable_module(subject)
            x = sp.input(length, _ROWS, seed=subject.seed + seed)
            yield sp, (_LOUD * x if seed and x.is_floating_point() else x)


def planted(subject: Subject) -> Subject:
    def chooses_all(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        scores = output.flatten(2).mean(-1)
        chosen = scores.new_ones(scores.shape)
        if x.shape[1] > 1:
            chosen = chosen.scatter(-1, scores.topk((x.shape[1] + 1) // 2, dim=-1).indices, 1.0)
        return output * chosen[..., None]

    return replace(subject, forward=chooses_all)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD206", "NAN101", "GRD401"))
