"""r003 sort-in-the-scorer

Reported: 002 with m7c_125m_fast_log at S=1024, and 003 as what had been wrong.
Symptom: 6 tokens/s where more than 1,000 were expected, and stack dumps of the watchdog every 180 s that end in
    `blocks = torch.unique(blocks, sorted=True)` of `select_topn_ranges`.
Cause: not the sort, and no "large tensors": `unique` is given the 16 blocks of one token. Established by running it:
    one such call takes some microseconds on a CPU, so the 24,576 of a step (1,024 tokens, 12 layers, 2 groups) explain
    a fraction of a second of its 170. What takes the rest is the loop over tokens around it, whose operations are
    started one by one; the dump names `unique` because the host waits there for all that was started before.
Check: PRF101, by operations dispatched per further token; time is not judged.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsa.config import load_config
from nsa.nn import NSAttention
from nsa.ops.geometry import EMPTY_SLOT, Geometry
from nsa.ops.select import vectorized
from nsa_doctor.cases.case import examine, faulty_layer, found, on_cuda
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"


def reproduce() -> None:
    config = load_config(_CONFIG).model
    torch.manual_seed(0)
    layer = NSAttention(config)
    waits = {"_unique2", "unique_consecutive", "nonzero", "_local_scalar_dense"}
    ran = Operations()
    with torch.no_grad(), ran:
        layer(torch.randn(1, 1024, config.dim))
    assert not waits & ran.counts.keys(), f"the layer runs {', '.join(sorted(waits & ran.counts.keys()))}"
    totals = set()
    for length in (128, 512, 1024, 2048):
        importance = torch.rand(1, length, 2, config.geometry.num_blocks(length))
        with Operations() as ran:
            vectorized.choose_slots(importance, config.geometry, 0)
        totals.add(ran.counts.total())
    assert len(totals) == 1, f"the number of operations of a choice depends on the length: {sorted(totals)}"


class Operations(DispatchWatcher):
    """Counts what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return super().run_operation(func, args, kwargs)


def sorts_every_token(importance: Tensor, geometry: Geometry, first_query: int) -> Tensor:
    rows = []
    for row in importance.unbind(0):
        for index, scores in enumerate(row.unbind(0)):
            current = (first_query + index) // geometry.l_sel
            forced = torch.tensor([0, max(0, current - 1), current], device=scores.device)
            for group in scores.unbind(0):
                seen = group[: current + 1].scatter(0, forced, torch.inf)
                best = seen.topk(min(geometry.n_sel, current + 1)).indices
                blocks = torch.unique(torch.cat((forced, best)), sorted=True)
                rows.append(pad(blocks, (0, geometry.n_sel - len(blocks)), value=EMPTY_SLOT))
    return torch.stack(rows).view(*importance.shape[:3], geometry.n_sel)


def planted() -> Subject:
    # Small blocks, so that there is something to choose at the lengths whose operations are counted.
    blocks = {"l": 8, "d": 4, "l_sel": 8, "n_sel": 4}
    return faulty_layer({"nsa.ops.select.vectorized.choose_slots": sorts_every_token}, _CONFIG, **blocks)


_PLANTED, _FILE = f"{__name__}:planted", "r003_sort_in_the_scorer.py"
_SAYS = "a loop over tokens starts .* operations per token"
CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="operations per token",
            command=examine(_PLANTED, "PRF101"),
            expected=found("PRF101", file=_FILE, function="sorts_every_token", says=_SAYS),
        ),
        Plant(
            name="waits per token, on a GPU",
            command=on_cuda(examine(_PLANTED, "HNG201")),
            expected=found("HNG201", file=_FILE, function="sorts_every_token", says="the host waits for the device"),
        ),
    ),
)
