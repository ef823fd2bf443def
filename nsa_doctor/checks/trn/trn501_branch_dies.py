"""TRN501 branch-dies

Detects: a branch whose gate had a share in a layer, falls to nothing during the run and stays there.
Matters: the branch is computed and thrown away, gets no gradient any more, and what it should see is not seen.
Fix: lower the rate of the gate, look at what is added to its logits, and go back to a checkpoint before the fall.

Example:
    # faulty
    weights = (gate(x) / 0.01).softmax(-1)  # a branch that falls behind gets no gradient any more
    # correct
    weights = gate(x).softmax(-1)
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nsa_doctor.artifacts.training_run.gate_history import Look, looks_by_layer
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.text import joined
from nsa_doctor.testing.training_runs import trained

_FEWEST = 4
_ALIVE = 0.05
_DEAD = 0.001  # of the weight, on average over tokens: a branch that few tokens take in full has more
_LASTING = 3  # looks, the last ones
_NAMES = {"cmp": "compressed", "sel": "selected", "win": "sliding"}


def run(subject: RunSubject) -> Iterator[Finding]:
    layers = looks_by_layer(subject.record)
    if max(map(len, layers.values()), default=0) < _FEWEST:
        raise NotApplicableError(f"gates.csv has fewer than {_FEWEST} looks at the gates")
    for layer, own in layers.items():
        dead = {branch: shares for branch in _NAMES if _dies(shares := [row[branch] for row in own])}
        if 0 < len(dead) < len(_NAMES):  # all of them are a layer that is switched off, as sigmoid gates can
            yield _finding(subject, layer, own, dead)


def _dies(shares: Sequence[float]) -> bool:
    return max(shares[:-_LASTING], default=0.0) >= _ALIVE and max(shares[-_LASTING:]) <= _DEAD


def _finding(subject: RunSubject, layer: int, rows: Sequence[Look], dead: Mapping[str, Sequence[float]]) -> Finding:
    names = joined([_NAMES[branch] for branch in dead])
    shares = [sum(each) for each in zip(*dead.values(), strict=True)]
    alive = max(index for index, share in enumerate(shares) if share >= _ALIVE)
    most, before, since = max(shares[-_LASTING:]), int(rows[alive]["step"]), int(rows[alive + 1]["step"])
    return Finding(
        message=(
            f"the gate of layer {layer} gives the {names} branch{'es' if len(dead) > 1 else ''} {shares[alive]:.2g} at "
            f"step {before} and at most {most:.1e} in the last {_LASTING} looks"
        ),
        where=Place(module=f"blocks.{layer}.attention.gate") if subject.record.is_own else Place(),
        evidence={"run": subject.name, "branch": names, "layer": layer, "step": since, "share": shares[-1]},
        repro=subject.reproduce,
    )


def planted(subject: RunSubject) -> RunSubject:
    from nsa.nn.gate import Gate

    forward, bias = Gate.forward, [0.0]

    def balanced_the_wrong_way(gate: Any, query_mean: Any) -> Any:
        """A bias that is to even out the load, with its sign turned: what is taken less is pushed down further."""
        weights = forward(gate, query_mean).clamp_min(1e-30).log()
        weights[..., 1] = weights[..., 1] + bias[0]
        bias[0] -= 0.3 if gate.training else 0.0
        return weights.softmax(-1)

    return trained(
        steps=60, log_every=5, eval_batches=0, eval_every=0, seams={"nsa.nn.gate.Gate.forward": balanced_the_wrong_way}
    )


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="run", profile="smoke", explained_by=("TRN201", "TRN203", "TRN303")
)
