"""No sequence consists of padding or masks alone, and a table that is read whole says how long a sequence may be."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.core.measurement import Point
from nsa_doctor.probes.model.inputs import make_input
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

WIDTH, VOCABULARY = 8, 11
CPU = torch.device("cpu")


class Masked(nn.Module):
    """Attention that hides padding by minus infinity: a row of padding alone is NaN."""

    def __init__(self, padding: int = 1) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.padding_idx = padding

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        scores = (x @ x.mT).masked_fill((ids == self.padding_idx)[:, None], -torch.inf)
        return scores.softmax(-1) @ x


class Divided(Masked):
    """Divides by one more than an id: NaN for ordinary text as well."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) / (ids - 3)[..., None].clamp(max=1)


def adapted(make: type[nn.Module]) -> Subject:
    request = SubjectRequest(spec="x:y", input="tokens", width=VOCABULARY, lengths=(16,), declared=("bidirectional",))
    return adapt(request, make)


@pytest.mark.parametrize("values", ["zeros", "constant", "aligned", "huge_token", "opposed", "repeated", "normal"])
@pytest.mark.parametrize("padding", [0, 5, VOCABULARY - 1])
def test_each_row_begins_with_a_word(values: str, padding: int) -> None:
    subject = adapted(lambda: Masked(padding))
    assert subject.filler_ids == (padding,)
    for seed in range(20):
        ids = make_input(subject, Point(length=16, values=values), seed, CPU)
        assert bool((ids[:, 0] != padding).all())
        if values in ("zeros", "constant", "aligned"):
            assert bool((ids == ids[:, :1]).all())


def test_only_the_first_token_is_another() -> None:
    subject = adapted(Masked)
    plain, ids = (
        make_input(each, Point(length=200), 3, CPU) for each in (adapted(lambda: Masked(VOCABULARY)), subject)
    )
    assert torch.equal(plain[:, 1:], ids[:, 1:])
    assert 1 in ids


def test_what_a_configuration_declares_counts_and_what_is_no_id_does_not() -> None:
    def configured(**values: int) -> nn.Module:
        module = Masked(-1)
        module.config = SimpleNamespace(**values)
        module.cfg = dict(values)
        return module

    assert adapted(lambda: configured(pad_token_id=2, mask_token_id=4)).filler_ids == (2, 4)
    assert adapted(lambda: configured(pad_token_id=-100)).filler_ids == ()
    assert adapted(lambda: configured(pad_token_id=VOCABULARY)).filler_ids == ()


def test_a_row_of_padding_alone_is_no_fault_and_nan_for_words_is() -> None:
    assert run_check(registry.load("NAN101"), adapted(Masked)).verdict is Verdict.PASS
    assert run_check(registry.load("NAN101"), adapted(Divided)).verdict is Verdict.FAIL


class AddsAll(nn.Module):
    """Looks up every row of its table, and adds as many of them as there are tokens."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.layer, self.places = nn.Linear(WIDTH, WIDTH), nn.Embedding(40, WIDTH)
        self.longest = longest

    def forward(self, x: Tensor) -> Tensor:
        rows = self.places(torch.arange(self.longest))
        return self.layer(x) + rows[: x.shape[1]]


def test_a_table_that_is_looked_up_whole_tells_the_longest_length() -> None:
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,), explore=True), lambda: AddsAll(40))
    assert (subject.max_length, subject.notes) == (40, ("examined up to S=40, the longest the subject serves",))


def test_rows_that_are_looked_up_in_part_are_no_limit() -> None:
    subject = adapt(SubjectRequest(spec="x:y", lengths=(16,), explore=True), lambda: AddsAll(36))
    assert subject.notes == ()
