"""FWD220 copy-gives-another-output

Detects: a copy that gives another output in eval(): its state_dict() loaded into a module built from another seed,
`copy.deepcopy`, pickle; and a module that changes when the trainable parameters of its deepcopy do.
Matters: a model that is loaded from its checkpoint, averaged or sent to another process is not the one trained.
Fix: what is drawn when a module is built goes into a parameter or a buffer that is saved; a copy shares no weights.

Example:
    # faulty
    self.register_buffer("projection", torch.randn(D, C), persistent=False)
    # correct
    self.register_buffer("projection", torch.randn(D, C))
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import joined
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module, randomise
from nsa_doctor.probes.model.copies import Copied, by_deepcopy, by_pickle, copying_place, from_state_dict, unsaved
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS, _MOST_NAMED = 19, 2, 3
_WAYS: dict[str, Callable[[BuiltModule], Copied]] = {
    "its state_dict() loaded into a module built from another seed": from_state_dict,
    "copy.deepcopy": by_deepcopy,
    "a copy by pickle": by_pickle,
}


def run(subject: Subject) -> Iterator[Finding | Note]:
    for words, way in _WAYS.items():
        sp = comparable_module(subject)
        x = sp.input(min(_LENGTH, subject.max_length), _ROWS)
        base = baseline(sp, x)
        try:
            copied = way(sp)
            found = None if isinstance(copied, str) else base.departure(_output(copied, x))
        except SubjectFailedError as failure:
            yield Note(message=f"{words} could not be called: {failure.caught.sentence}")
            continue
        if isinstance(copied, str):
            if way is from_state_dict:  # what is neither copied nor pickled need not be
                yield Note(message=f"{words} could not be compared: {copied}")
        elif found is not None:
            yield _finding(sp, copied, x, f"{words} gives another output at S={x.shape[1]}", found)
            return
        elif way is by_deepcopy:
            randomise(copied.module, subject.seed + 1)
            if (shared := base.departure(_output(sp, x))) is not None:
                yield _finding(sp, None, x, "the output changes when the parameters of its deepcopy do", shared)
                return


def _output(sp: BuiltModule, x: Tensor) -> Tensor:
    with torch.no_grad(), unobserved():
        return sp(x)


def _finding(sp: BuiltModule, copied: BuiltModule | None, x: Tensor, message: str, found: Departure) -> Finding:
    place, because = _origin(sp, copied, x)
    return Finding(
        message=f"{message}: {found.text}{because}",
        where=place,
        evidence={"length": x.shape[1], "error": found.error, "floor": found.floor},
        repro=command_for(sp.subject, "FWD220"),
    )


def _origin(sp: BuiltModule, copied: BuiltModule | None, x: Tensor) -> tuple[Place, str]:
    """The value that no checkpoint holds, where one is seen, and else where the two diverge."""
    if copied is None:
        return copying_place(sp.module), ""
    divergence = first_divergence(copied, lambda: _output(sp, x), lambda: _output(copied, x), {})
    if values := unsaved(sp):
        place = next((each.place for each in values if each.place.file), divergence.place)
        return place, f"; not in its state_dict(): {joined([str(each) for each in values[:_MOST_NAMED]])}"
    return divergence.place, f"; outputs first diverge at {divergence.operation}" if divergence.operation else ""


def planted(subject: Subject) -> Subject:
    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        module.drawn = torch.rand(())
        return module

    def scaled_by_what_is_not_saved(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output * (1 + float(vars(module)["drawn"]))

    return replace(subject, build=build, forward=scaled_by_what_is_not_saved)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "FWD210", "NAN101"),
    explained_by=("FWD206", "FWD210"),
    priority=435,
)
