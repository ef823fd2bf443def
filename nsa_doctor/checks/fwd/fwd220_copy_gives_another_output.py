"""FWD220 copy-gives-another-output

Detects: a copy that raises or gives another output or other gradients in eval(): its state_dict() loaded into a module
built from another seed, `copy.deepcopy`, pickle; and a module that changes when the parameters of its deepcopy do.
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

from nsa_doctor.checks._shared.wrong_copy import bench, copy_finding, expected_gradients, output_of, wrong_copy
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.probes.model.built_module import BuiltModule, randomise
from nsa_doctor.probes.model.copies import Copied, by_deepcopy, by_pickle, copying_place, from_state_dict
from nsa_doctor.subject.contract import Subject

_WAYS: dict[str, Callable[[BuiltModule], Copied]] = {
    "its state_dict() loaded into a module built from another seed": from_state_dict,
    "copy.deepcopy": by_deepcopy,
    "a copy by pickle": by_pickle,
}


def run(subject: Subject) -> Iterator[Finding | Note]:
    expected = expected_gradients(subject)
    for words, way in _WAYS.items():
        base = bench(subject)
        try:
            copied = way(base.built)
        except SubjectFailedError as failure:
            yield Note(message=f"{words} could not be made: {failure.caught.sentence}")
            continue
        if isinstance(copied, str):
            if way is from_state_dict:  # what is neither copied nor pickled need not be
                yield Note(message=f"{words} could not be compared: {copied}")
        elif (found := wrong_copy(words, base, copied, expected)) is not None:
            yield found
            return
        elif way is by_deepcopy:
            randomise(copied.module, subject.seed + 1)
            if (shared := base.departure(output_of(base.built, base.x))) is not None:
                message = f"the output changes when the parameters of its deepcopy do: {shared.text}"
                yield copy_finding(base, message, copying_place(base.built.module), shared)
                return


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
