"""FWD221 earlier-weights-used

Detects: a call that computes with weights of before: after a training step, load_state_dict() or weights that are set,
its output or gradients are not those of a module that had the new weights before its first call.
Matters: a model is evaluated between training steps, and a server loads the next checkpoint: it answers with the last.
Fix: compute from the parameter in every call, or keep its `_version` beside what is made of it and look at that first.

Example:
    # faulty
    if self.folded is None:
        self.folded = (self.up.weight * self.scale).detach()
    # correct
    folded = self.up.weight * self.scale
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.torch_errors import error_evidence
from nsa_doctor.probes.hooks.lines_apart import in_its_file
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.model.call_history import Call
from nsa_doctor.probes.model.new_weights import CHANGES, Change, called_before, called_with_them, calls_of, load
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.probes.numerics.earlier_calls import Judge, Symptom, differs_by
from nsa_doctor.probes.numerics.precision import finest_precision
from nsa_doctor.subject.contract import Subject

_LENGTH = 17


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp = comparable_module(subject)
    judge = differs_by(finest_precision(sp, sp.input(min(_LENGTH, subject.max_length))).eps)
    for words, change in CHANGES.items():
        for call in calls_of(subject):
            symptom = _symptom(subject, sp.dtype, change, call, judge)
            if symptom is None:
                continue
            if change is load and _folds_in_eval(sp.module):
                yield Note(
                    message=f"load_state_dict() in eval() has no effect before train() and eval(): {symptom.words}"
                )
                return
            yield _finding(subject, sp.dtype, words, call, symptom)
            return


def _symptom(subject: Subject, dtype: str, change: Change, call: Call, judge: Judge) -> Symptom | None:
    used, new = called_before(subject, dtype, change)
    expected, found = new.step(call), used.step(call)
    if expected is None or found is None or expected.raised or expected.nonfinite:
        return None
    symptom = judge(expected, found)
    alone = None if symptom is None else called_with_them(subject, dtype).step(call)
    return symptom if alone is None or judge(alone, found) is not None else None  # else FWD210 and GRD104 tell


def _folds_in_eval(module: nn.Module) -> bool:
    """Whether a part has its own `train` or `eval`, where it may fold its weights and unfold them."""
    own = (nn.Module.train, nn.Module.eval)
    return any((type(part).train, type(part).eval) != own for part in module.modules())


def _finding(subject: Subject, dtype: str, words: str, call: Call, symptom: Symptom) -> Finding:
    place, operation = _origin(subject, dtype, CHANGES[words], call)
    at, error = f"; outputs first diverge at {operation}" if operation else "", error_evidence(symptom.words)
    return Finding(
        message=f"after {words}, {call} is not that of the new weights: {symptom.words}{at}",
        where=place,
        evidence={"symptom": symptom.kind, "length": call.length, "mode": call.mode, "change": words, **error},
        control="a module that has these weights before its first call gives another result",
        repro=command_for(subject, "FWD221"),
    )


def _origin(subject: Subject, dtype: str, change: Change, call: Call) -> tuple[Place, str]:
    used, new = called_before(subject, dtype, change)
    try:
        found = first_divergence(used.built, lambda: new.output(call), lambda: used.output(call), {})
    except (SubjectFailedError, NotComparableError):
        return definition_place(used.built.module), ""
    used, new = called_before(subject, dtype, change)
    return in_its_file(subject, found.place, lambda: used.output(call), lambda: new.output(call)), found.operation


def planted(subject: Subject) -> Subject:
    def scaled_by_weights_of_the_first_call(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        sizes = [float(each.detach().double().square().mean()) for each in module.parameters()]
        kept = vars(module).setdefault("sizes_of_the_first_call", sizes)
        return output * torch.tensor(1 + sum(kept)).to(output)

    return replace(subject, forward=scaled_by_weights_of_the_first_call)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "FWD210", "NAN101"),
    explained_by=("FWD206", "FWD210", "GRD104"),
    priority=436,
)
