"""FWD207 mode-changes-output

Detects: training and eval() give different outputs though training draws no random numbers and no layer of torch's
that depends on the mode is there.
Matters: what is evaluated and served is not what was trained.
Fix: look at the line named for a branch on `self.training`, or for one of autograd's modes.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.check import Check
from nsa_doctor.checks.compared import confirmed, odd_lengths, told
from nsa_doctor.finding import Finding
from nsa_doctor.probes.compare import Departure, baseline
from nsa_doctor.probes.divergence import first_divergence
from nsa_doctor.probes.specimen import comparable_specimen
from nsa_doctor.subject import Subject

_DEPEND_ON_MODE = (
    nn.modules.batchnorm._NormBase,
    nn.modules.dropout._DropoutNd,
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
)


def run(subject: Subject) -> Iterator[Finding]:
    if not {"train", "eval"} <= set(subject.modes):
        return
    length = odd_lengths(subject)[0]
    found = confirmed(subject, lambda subject: _changed(subject, length))
    if found is not None:
        trained, evaluated = comparable_specimen(subject, mode="train"), comparable_specimen(subject)
        x = evaluated.input(length)
        divergence = first_divergence(trained, lambda: evaluated(x), lambda: trained(x), {})
        message = f"training mode gives another output than eval() at S={length}, and draws no random numbers"
        yield told(subject, "FWD207", message, divergence, found, length=length)


def _changed(subject: Subject, length: int) -> Departure | None:
    trained, evaluated = comparable_specimen(subject, mode="train"), comparable_specimen(subject)
    if any(isinstance(module, _DEPEND_ON_MODE) for module in trained.module.modules()):
        return None
    base = baseline(evaluated, evaluated.input(length))
    with torch.no_grad():
        before = torch.get_rng_state()
        output = trained(base.x)
        is_random = not torch.equal(_rng_after(trained.subject.seed, before), torch.get_rng_state())
        again = replace(trained, subject=replace(subject, seed=subject.seed + 1))(base.x)
    is_random = is_random or not torch.equal(output, again)
    return None if is_random else base.departure(output)


def _rng_after(seed: int, before: Tensor) -> Tensor:
    """The generator's state when a call seeded with `seed` has drawn nothing."""
    torch.default_generator.manual_seed(seed)
    state = torch.get_rng_state()
    return state if state.shape == before.shape else before


def planted(subject: Subject) -> Subject:
    def forgets_a_scale(module: nn.Module, x: Tensor) -> Tensor:
        return subject.forward(module, x) * (1.0 if module.training else 0.9)

    return replace(subject, forward=forgets_a_scale)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD206",))
