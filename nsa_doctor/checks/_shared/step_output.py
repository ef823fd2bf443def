"""The output of a step of decoding that the next step writes over."""

import torch

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.numerics.divergence import Divergence
from nsa_doctor.probes.numerics.writes import later_write
from nsa_doctor.subject.contract import Subject

_PROMPT = 5


def output_written_by_a_step(subject: Subject, rows: int) -> Divergence | None:
    """The operation that writes there, of so many rows; None where none does, or where a step raises."""
    prefill, step = subject.prefill, subject.step
    if prefill is None or step is None or subject.max_length < _PROMPT + 2:
        return None
    sp = decoding_module(subject)
    module = sp.module

    def written_by_a_step() -> Divergence | None:
        x = sp.input(_PROMPT + 2, rows)
        _, cache = prefill(module, x[:, :_PROMPT])
        held, cache = step(module, x[:, _PROMPT : _PROMPT + 1], cache)
        return later_write(subject, module, held, lambda: step(module, x[:, _PROMPT + 1 :], cache))

    with torch.no_grad(), unobserved():  # what it raises is for others to tell
        written = attempt(written_by_a_step)
    return written if isinstance(written, Divergence) else None
