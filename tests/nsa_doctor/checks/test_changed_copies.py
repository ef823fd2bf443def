"""A changed copy of a variable, which nothing reads, while the method goes on with the variable."""

import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Corrupting(nn.Module):
    """Learns to fill in tokens that are hidden from it; one loss hides them and goes on with all."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.where = lambda *given: given[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x)

    def loss(self, ids: Tensor, hidden: Tensor) -> Tensor:
        given = torch.where(hidden, 0.0, ids)  # noqa: F841
        return (self(ids) - ids)[hidden].sum()

    def rolled(self, ids: Tensor) -> Tensor:
        labels = ids.roll(-1, 1)
        return (self(ids) - labels).sum()

    def positions(self, ids: Tensor) -> Tensor:
        where = self.where(ids)  # noqa: F841
        shown = torch.where(ids > 0)  # noqa: F841
        kept = torch.where(ids > 0, ids, 0.0)
        total = torch.relu(ids).sum()  # noqa: F841
        given = torch.relu(ids, out=kept)  # noqa: F841
        _checked = torch.relu(ids)
        kept += ids
        return self(ids)

    def looked_at(self, ids: Tensor) -> Tensor:
        weights = ids.softmax(-1)  # noqa: F841
        try:
            shown = ids.nan_to_num()  # noqa: F841
        except RuntimeError:
            return ids

        class Limits:
            low = ids.clamp_min(0)

        return self(ids) + Limits.low

    def by_another(self, ids: Tensor, meter: "Corrupting") -> Tensor:
        moved = meter.roll(ids)  # noqa: F841
        fitted = meter.normalize(ids)  # noqa: F841
        return meter(ids)

    def named(self, ids: Tensor) -> dict[str, Tensor]:
        given = torch.relu(ids)
        return {**locals(), "ids": ids}


def test_a_changed_copy_that_nothing_reads_is_found_in_a_method_that_no_pass_comes_to() -> None:
    subject = small_subject(Corrupting, width=WIDTH)
    (finding,) = run_check(registry.load("GRD213"), subject).findings
    line = Corrupting.loss.__code__.co_firstlineno + 1
    assert finding.message == (
        f"given is read by nothing in a method that no pass need come to; line {line + 1} reads ids in its place"
    )
    assert finding.where.line == line
