"""FWD276 variance-taken-for-deviation

Detects: a function that takes a standard deviation (`Normal`, `torch.normal`, a factor of `randn_like`) and is given a
    variance, or one that takes a variance (`gaussian_nll_loss`, a covariance) and is given a deviation: by names as
    `std`, `log_var` and `sigma`, by one assignment, and by what the same value is used as elsewhere. Of the subject's
    own files, whether a pass calls them or not. A `sigma` that nothing else uses is a note.
Matters: samples are too narrow or too wide, or the loss fits another spread than the one that is sampled and reported;
    both train without an error.
Fix: give what is taken: `sigma.square()` for a variance, `(0.5 * log_var).exp()` for a deviation.

Example:
    # faulty
    std = log_var.exp()
    z = mean + std * torch.randn_like(mean)
    # correct
    std = (0.5 * log_var).exp()
    z = mean + std * torch.randn_like(mean)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.checks._shared.around import Around
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.numerics.mistaken_spreads import mistaken_spreads
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp = built(subject)
    for each in mistaken_spreads(sp):
        message, where = f"in {each.place.function}, {each.what}", in_subject(each.place, sp.module)
        if each.is_certain:
            yield Finding(message=message, where=where, repro=command_for(subject, "FWD276"))
        else:
            yield Note(message=f"{message}, unless its name is that of another", where=where)


def planted(subject: Subject) -> Subject:
    class Drawn(Around):
        """The subject, beside a draw around its answers."""

        def drawn(self, mean: Tensor, log_var: Tensor) -> Tensor:
            return mean + log_var.exp() * torch.randn_like(mean)

    return replace(subject, build=lambda _seed: Drawn(subject), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",))
