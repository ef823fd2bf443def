"""r002 per-range-host-sync

Reported: 000 and 002, of the fix of r001, with m7c_125m_fast_log at S=1024 on an A100.
Symptom: 6 to 7 tokens/s where 1,000 and more were expected, the GPU 99 % busy.
Cause: as the table of reports says, and the fix is the bug it was to fix: `.item()` twice per range, token and group.
    Established by counting: two reads for each of up to 16 ranges, 2 groups and 12 layers are up to 768 waits per
    token, where the loop before it had one `tolist` per group, 24. "99 % busy" is no evidence against it: that figure
    says that some kernel was running, however small.
Check: HNG201, by scalars read per further token, which on a CPU are counted too.
"""

import math
from typing import Any

import torch
from torch import Tensor

from nsa.config import load_config
from nsa.nn import NSAttention
from nsa.ops.geometry import Geometry, slots_to_ranges
from nsa_doctor.adapters.nsa_layer import layer_subject
from nsa_doctor.cases.case import examine, faulty_layer, found, on_cuda
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.probes.cost.work import count_work
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"


def reproduce() -> None:
    config = load_config(_CONFIG).model
    assert NSAttention(config).impl == "auto"
    for length in (33, 1024):
        work = count_work(layer_subject(config), length)
        waits = [(line.place, line.num_waits) for line in work.lines if line.num_waits]
        assert not waits, f"the host waits for the device at {waits[0][0]}, {waits[0][1]} times at S={length}"


def reads_every_range(q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, *more: Any) -> Tensor:
    (num_rows, num_queries, num_heads), (num_tokens, groups) = q.shape[:3], k.shape[1:3]
    ranges = slots_to_ranges(slots, num_tokens, geometry)
    outputs = []
    for row in range(num_rows):
        for query in range(num_queries):
            newest = num_tokens - num_queries + query
            for group in range(groups):
                is_read = torch.zeros(num_tokens, dtype=torch.bool, device=k.device)
                for pair in ranges[row, query, group]:
                    start, end = int(pair[0].item()), int(pair[1].item())
                    if end > start:
                        is_read[start : min(end, newest + 1)] = True
                index = is_read.nonzero().squeeze(-1)
                heads = q[row, query].unflatten(0, (groups, -1))[group]
                scores = heads @ k[row, index, group].T / math.sqrt(q.shape[-1])
                outputs.append(scores.softmax(-1) @ v[row, index, group])
    return torch.stack(outputs).view(num_rows, num_queries, num_heads, v.shape[-1])


def planted() -> Subject:
    return faulty_layer({"nsa.ops.select.vectorized.selected_attention": reads_every_range}, _CONFIG)


_PLANTED = f"{__name__}:planted"
_EXPECTED = found(
    "HNG201", file="r002_per_range_host_sync.py", function="reads_every_range", says="the host waits for the device"
)
CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(name="scalars read per token", command=examine(_PLANTED, "HNG201"), expected=_EXPECTED),
        Plant(name="waits per token, on a GPU", command=on_cuda(examine(_PLANTED, "HNG201")), expected=_EXPECTED),
    ),
)
