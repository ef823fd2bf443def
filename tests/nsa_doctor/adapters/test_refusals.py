"""What a module refuses on purpose is a note; what fails at other lengths is a finding, and the rest is examined."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core.finding import Verdict
from nsa_doctor.core.registry import load
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

WIDTH = 16


class Attention(nn.Module):
    """Causal attention, that takes lengths as `accept` says."""

    def __init__(self, accept, is_causal: bool = True) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.accept, self.is_causal = accept, is_causal

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.accept(x)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1 if self.is_causal else 3)
        return {"mixed": (q @ k.mT / 4).masked_fill(hidden, -torch.inf).softmax(-1) @ v}


def asserts(step: int):
    def accept(x: Tensor) -> Tensor:
        assert x.shape[1] % step == 0, f"length must be a multiple of {step}"
        return x

    return accept


def fails(step: int):
    return lambda x: x.unflatten(1, (-1, step)).flatten(1, 2)


def refuses_beyond(most: int):
    def accept(x: Tensor) -> Tensor:
        if x.shape[1] > most:
            raise ValueError("longer than I was made for")
        return x

    return accept


def fails_below(least: int):
    return lambda x: x if x.shape[1] >= least else x.view(3, 7, 11)


def anything(x: Tensor) -> Tensor:
    return x


def adapted(make, length: int = 128) -> Subject:
    def seeded() -> nn.Module:
        torch.manual_seed(0)
        return make()

    request = SubjectRequest(spec="tests:make", lengths=(length,), explore=True)
    return adapt(request, seeded)


@pytest.mark.parametrize("step", [2, 8, 24, 64])
def test_whole_multiples_that_it_asks_for_are_a_note(step: int) -> None:
    subject = adapted(lambda: Attention(asserts(step)))
    assert (subject.whole_multiples_of, subject.seen) == (step, ())
    assert f"whole multiples of {step} tokens" in subject.notes[0]
    assert f"AssertionError: length must be a multiple of {step}" in subject.notes[0]
    for code in ("FWD101", "FWD201", "FWD202", "GRD101"):
        assert run_check(load(code), subject).verdict is Verdict.PASS


@pytest.mark.parametrize("accept", [asserts(8), fails(8)], ids=["on purpose", "by accident"])
def test_a_leak_of_what_serves_whole_multiples_alone_is_found(accept) -> None:
    subject = adapted(lambda: Attention(accept, is_causal=False))
    (finding,) = run_check(load("FWD201"), subject).findings
    assert "causality violation" in finding.message


def test_what_fails_at_other_lengths_was_seen() -> None:
    subject = adapted(lambda: Attention(fails(24)))
    (seen,) = subject.seen
    assert seen.point.length == 25
    assert seen.trouble is not None
    assert "unflatten" in seen.trouble.message
    assert seen.trouble.place.file == __file__


class Broken(Attention):
    """Fails at every length, behind what it refuses."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return super().forward(x)["mixed"].view(3, 7, 11)


def test_what_fails_at_every_length_that_it_serves_is_one_finding() -> None:
    subject = adapted(lambda: Broken(asserts(16)))
    assert subject.whole_multiples_of == 16
    assert "AssertionError: length must be a multiple of 16" in subject.notes[0]
    (finding,) = run_check(load("FWD101"), subject).findings
    assert "shape '[3, 7, 11]' is invalid" in finding.message


@pytest.mark.parametrize("accept", [anything, refuses_beyond(40)], ids=["by accident", "on purpose too"])
def test_what_fails_at_every_length_serves_no_multiples(accept) -> None:
    assert adapted(lambda: Broken(accept)).whole_multiples_of == 1


@pytest.mark.parametrize("accept", [anything, fails_below(20), refuses_beyond(200)])
def test_what_serves_neighbours_is_given_them(accept) -> None:
    subject = adapted(lambda: Attention(accept))
    assert (subject.whole_multiples_of, subject.seen) == (1, ())


def test_a_limit_that_it_states_is_a_note() -> None:
    subject = adapted(lambda: Attention(refuses_beyond(200)))
    assert subject.max_length == 200
    (note,) = subject.notes
    assert note.endswith("the subject serves: it refuses longer ones, by ValueError: longer than I was made for")


def test_a_limit_that_counts_what_the_call_adds_is_a_note() -> None:
    class Prefixed(Attention):
        def __init__(self) -> None:
            super().__init__(refuses_beyond(208))
            self.max_seq_len = 208

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            mixed = super().forward(torch.cat((x[:, :1].expand(-1, 8, -1), x), dim=1))["mixed"]
            return {"mixed": mixed[:, 8:]}

    subject = adapted(Prefixed)
    assert subject.max_length == 200
    assert "it refuses longer ones" in subject.notes[0]


def test_a_limit_below_what_it_declares_is_no_limit() -> None:
    def make() -> nn.Module:
        module = Attention(refuses_beyond(200))
        module.max_seq_len = 400  # type: ignore[assignment]
        return module

    assert adapted(make).max_length > 200


def test_what_is_too_short_does_not_end_the_search_for_the_longest() -> None:
    assert adapted(lambda: Attention(fails_below(20))).max_length >= 512


def test_a_table_of_fewer_rows_than_tokens_is_no_limit() -> None:
    class ByDistance(Attention):
        """A row for every eight tokens of distance, without an end."""

        def __init__(self) -> None:
            super().__init__(anything)
            self.rows = nn.Parameter(torch.randn(12, WIDTH))

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return super().forward(x + self.rows[torch.arange(x.shape[1], device=x.device) // 8])

    subject = adapt(SubjectRequest(spec="tests:make", lengths=(16,), explore=True), ByDistance)
    assert subject.max_length > 96
    assert not any("longest the subject serves" in note for note in subject.notes)


def test_a_table_of_few_positions_is_the_limit() -> None:
    class WithTable(Attention):
        def __init__(self) -> None:
            super().__init__(anything)
            self.positions = nn.Parameter(torch.randn(12, WIDTH))

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return super().forward(x + self.positions[: x.shape[1]])

    request = SubjectRequest(spec="tests:make", lengths=(8,), explore=True)
    assert adapt(request, WithTable).max_length == 12


def takes_only(count: int):
    def accept(x: Tensor) -> Tensor:
        assert x.shape[1] == count, f"length must be {count}"
        return x

    return accept


class WithTable(Attention):
    """Reads positions of a table that ends at the only length it takes."""

    def __init__(self, count: int) -> None:
        super().__init__(takes_only(count))
        self.count, self.register = count, nn.Embedding(count, 8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = x + 0 * self.register(torch.arange(x.shape[1], device=x.device)).sum()
        return super().forward(x)


@pytest.mark.parametrize("count", [40, 64, 100])
def test_the_only_length_that_it_takes_is_a_note(count: int) -> None:
    subject = adapted(lambda: WithTable(count), 16)
    assert (subject.whole_multiples_of, subject.max_length, subject.seen) == (count, count, ())
    assert f"sequences are filled up at their end to {count} tokens: it refuses others" in subject.notes[0]
    for code in ("FWD101", "FWD201", "GRD101"):
        assert run_check(load(code), subject).verdict is Verdict.PASS
