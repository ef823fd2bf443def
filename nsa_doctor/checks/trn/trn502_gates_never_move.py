"""TRN502 gates-never-move

Detects: gates whose own parameters are the same at every look of a run that made its steps.
Matters: each layer keeps the mixture of branches it began with; the loss falls all the same, and nothing else shows it.
Fix: give the optimizer gate.fc1 and gate.fc2, and let nothing between the gate and the loss be detached or constant.
    Where the gates are frozen on purpose, this is what was meant. A gate that weight decay alone moves is not found.

Example:
    # faulty
    weights = gate(x).softmax(-1).detach()
    # correct
    weights = gate(x).softmax(-1)
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from nsa_doctor.artifacts.training_run.gate_history import SHARES, Look, looks_by_layer
from nsa_doctor.artifacts.training_run.record import Beat
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.artifacts.training_run.trends import timeline
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.text import numbers
from nsa_doctor.testing.training_runs import trained

_FEWEST = 4
_FEWEST_STEPS = 10
_LEAST_RATE = 1e-7  # the first of 2,000 steps to 2e-4: it still moves a weight of 0.02, which float32 knows to 2e-9


def run(subject: RunSubject) -> Iterator[Finding]:
    if not subject.record.is_own:
        raise NotApplicableError(
            "what a column `norm` of another trainer's holds, and with how many digits, is not known"
        )
    layers = looks_by_layer(subject.record, "norm")
    if max(map(len, layers.values()), default=0) < _FEWEST:
        raise NotApplicableError(f"gates.csv has fewer than {_FEWEST} looks at the gates' own parameters")
    layers = {layer: looks for layer, looks in layers.items() if not _is_one_branch_alone(looks)}
    if not layers:
        raise NotApplicableError("the run has one branch alone, and its gates nothing to learn")
    looks = max(layers.values(), key=len)
    steps = [beat for beat in timeline(subject.record) if _is_between(beat, looks) and _moves_weights(beat)]
    if len(steps) < _FEWEST_STEPS:
        raise NotApplicableError(f"fewer than {_FEWEST_STEPS} steps between the looks log a loss and a rate above 0")
    still = [layer for layer, own in layers.items() if len(own) >= _FEWEST and len({row["norm"] for row in own}) == 1]
    if still:
        yield _finding(subject, still, layers[still[0]], steps)


def _is_one_branch_alone(looks: Sequence[Look]) -> bool:
    return all(max(row[name] for name in SHARES) == 1 and sum(row[name] for name in SHARES) == 1 for row in looks)


def _is_between(beat: Beat, looks: Sequence[Look]) -> bool:
    return beat.step is not None and looks[0]["step"] < beat.step <= looks[-1]["step"]


def _moves_weights(beat: Beat) -> bool:
    """Whether an optimizer that is given a parameter moves it in this step, as far as the step is logged."""
    rate, norm, loss = beat.learning_rate, beat.grad_norm, beat.loss
    is_finite = loss is not None and math.isfinite(loss) and (norm is None or math.isfinite(norm))
    return is_finite and (rate is None or rate >= _LEAST_RATE) and (norm is None or norm > 0)


def _finding(subject: RunSubject, layers: Sequence[int], looks: Sequence[Look], steps: Sequence[Beat]) -> Finding:
    who = f"gate{'s of layers' if len(layers) > 1 else ' of layer'} {numbers(layers)}"
    first, last = int(looks[0]["step"]), int(looks[-1]["step"])
    return Finding(
        message=(
            f"the parameters of the {who} are the same at all {len(looks)} looks from step {first} to {last}, "
            f"while {len(steps)} steps were made and the loss went from {steps[0].loss:.4f} to {steps[-1].loss:.4f}"
        ),
        where=Place(module=f"blocks.{layers[0]}.attention.gate") if subject.record.is_own else Place(),
        evidence={
            "run": subject.name,
            "layer": layers[0],
            "layers": len(layers),
            "step": first,
            "looks": len(looks),
            "norm": looks[0]["norm"],
        },
        repro=subject.reproduce,
    )


def planted(subject: RunSubject) -> RunSubject:
    from nsa.nn.gate import Gate

    forward = Gate.forward

    def detached(gate: Any, query_mean: Any) -> Any:
        return forward(gate, query_mean).detach()

    return trained(steps=40, log_every=5, eval_every=0, seams={"nsa.nn.gate.Gate.forward": detached})


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", explained_by=("TRN201", "TRN301", "TRN304")
)
