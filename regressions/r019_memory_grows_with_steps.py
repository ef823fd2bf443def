"""r019 memory-grows-with-steps

Trained in a smaller model; in full: `nsa-doctor smoke --config train_showcase`.

Reported: 003, of train_showcase: "69-170 MB allocated", "growth pattern: linear with steps (expected)".
Symptom: the memory of a training run grows with every step.
Cause: none is reported, since it was taken for normal. It is not: a step's activations are freed with it, and weights,
    gradients and Adam's moments are there after the first step (3.7 MB of this model of bytes; the first losses, 5.4 to
    5.7, are near ln 256, so it was one). 101 MB in 200 steps are 0.5 MB a step, and one float32 hidden state of
    [8, 128, 128] is 524,288 bytes: one that is kept from every step gives just that growth. That is a fit and no proof;
    which tensor it was the report does not show. Planted are as many bytes a step, which fill 80 GB in 160,000 steps.
Check: TRN402 on the run, PRF301 on the module, with the line whose tensor is kept.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from nsa.nn import NSAttention
from nsa_doctor.cases.case import examine, faulty_layer, found
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.probes.hooks.memory import return_free_memory
from nsa_doctor.subject.contract import Subject

from .runs import finished, seen_by_watch, written

_HERE = Path(__file__).name
_BYTES = 8 * 64 * 256 * 4  # the logits of a step of these runs: as many as in the report
_STEPS = 60
_branches = NSAttention.branches
_kept: list[Tensor] = []
_cache: dict[int, Tensor] = {}


def reproduce() -> None:
    with tempfile.TemporaryDirectory() as place:
        run = written(Path(place), steps=_STEPS)
        memory = [beat.memory for beat in finished(run).steps if beat.memory is not None]
        messages = [each.message for each in seen_by_watch(run) if each.code == "TRN402"]
    growth = (memory[-1] - memory[_STEPS // 2]) / (_STEPS - _STEPS // 2)
    assert growth < _BYTES / 2, f"memory grows by {growth:,.0f} bytes a step"
    assert not messages, f"a healthy run is found fault with: {messages[0]}"


def keeps_logits(logits: Tensor, *given: Any, **named: Any) -> Any:
    """For a plot, perhaps, that nobody draws."""
    _kept.append(logits.detach().clone())
    return cross_entropy(logits, *given, **named)


def remembers(layer: Any, x: Tensor, *given: Any, **named: Any) -> Any:
    """A cache by the tensor's identity, which no tensor of a later step has again."""
    kept = x.detach().clone()
    _cache[id(kept)] = kept
    return _branches(layer, x, *given, **named)


def in_a_run(folder: Path) -> Sequence[str]:
    return_free_memory()  # of runs before in this process: what is kept would fill it first, unseen
    return ["watch", str(written(folder, {"nsa.train.objective.cross_entropy": keeps_logits}, steps=_STEPS))]


def layer() -> Subject:
    seams = {"nsa.nn.attention.NSAttention.branches": remembers}
    return faulty_layer(seams, "train_showcase", dim=16, n_heads=2, n_kv_groups=1, d_k=4, d_v=4)


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="in the layer",
            command=examine(f"{__name__}:layer", "PRF301"),
            expected=found("PRF301", file=_HERE, function="remembers"),
        ),
        Plant(
            name="in a run",
            command=in_a_run,
            expected=found("TRN402", says=r"memory grows from .* by (\d{3,4} KB|[12](\.\d)? MB) a step"),
        ),
    ),
)
