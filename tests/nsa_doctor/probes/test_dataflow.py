"""Who wrote what: memory that another tensor had before is not taken for its."""

import torch
from torch import Tensor

from nsa_doctor.probes.cost.per_token import sequential
from nsa_doctor.probes.cost.work import count_work
from nsa_doctor.probes.tensors.dataflow import Dataflow
from nsa_doctor.subject.contract import Subject


def scaled_token_by_token(module: torch.nn.Module, x: Tensor) -> Tensor:
    """A loop whose rounds need nothing of each other; each makes a constant where the last one's result was."""
    rows = []
    for token in x.unbind(1):
        factor = torch.tensor([2.0])
        rows.append((token * factor).tanh().detach().sum(-1, keepdim=True).expand(-1, x.shape[2]).clone())
    return torch.stack(rows, dim=1)


def test_a_dead_tensors_storage_is_nobody_elses() -> None:
    flow, known = Dataflow(), set()
    for _ in range(50):
        fresh = torch.ones(3)
        assert fresh.untyped_storage()._cdata not in known
        flow.add(0, "exp", [], [fresh], [])
        known.add(fresh.untyped_storage()._cdata)
        del fresh


def test_constants_made_in_every_round_make_no_recurrence() -> None:
    subject = Subject(
        name="loop",
        build=lambda _seed: torch.nn.Identity(),
        forward=scaled_token_by_token,
        input="embeddings",
        width=8,
        packages=("tests",),
    )
    shorter, longer = (count_work(subject, length, "no_grad") for length in (17, 40))
    assert {place.function for place in sequential(shorter, longer)} == set()
    assert longer.num_operations - shorter.num_operations >= 23
