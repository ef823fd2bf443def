"""What grows fast within the first chunk alone is not taken for how a module grows."""

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

CHUNK, WIDTH = 64, 4


class Substituted(nn.Module):
    """Within each chunk every token is read through every other, one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows = list(self.mix(x).unbind(1))
        for start in range(0, len(rows), CHUNK):
            for row in range(start, min(start + CHUNK, len(rows))):
                for other in range(start, row):
                    for _between in range(other, row, 2):
                        rows[row] = rows[row] + 0.001 * rows[other]
        return self.mix(x) + rows[-1][:, None]


@pytest.mark.parametrize(("code", "verdict"), [("PRF201", Verdict.PASS), ("PRF202", Verdict.SKIP)])
def test_growth_within_one_chunk_is_no_finding(code: str, verdict: Verdict) -> None:
    result = run_check(registry.load(code), small_subject(Substituted, width=WIDTH, max_length=512))
    assert (result.verdict, result.findings) == (verdict, ())
