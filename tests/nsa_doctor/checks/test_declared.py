"""What a subject is declared to be: a bidirectional one looks ahead, and a stochastic one draws its outputs."""

import linecache
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.adapter import Adapter
from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.adapters.load import load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.declared import Declaration
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.fuzz.cases import Pass
from nsa_doctor.fuzz.properties.examine import examine
from nsa_doctor.probes.attention.hidden_future import is_staircase
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import HERE

ABOUT_THE_FUTURE = ["FWD201", "FWD202", "GRD103"]
DIM = 8


class Mixer(nn.Module):
    """Attention without a mask, or a causal mean."""

    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.linear, self.is_causal = nn.Linear(DIM, DIM), is_causal

    def forward(self, x: Tensor) -> Tensor:
        if self.is_causal:
            return self.linear(x).cumsum(1)
        return (self.linear(x) @ x.mT).softmax(-1) @ x


def subject(*, is_causal: bool = False, is_declared: bool = True) -> Subject:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Mixer(is_causal)

    return Subject(
        name="mixer",
        build=build,
        forward=lambda module, x: module(x),
        input="embeddings",
        width=DIM,
        max_length=128,
        packages=("tests",),
        profile="smoke",
        spec=("bidirectional",) if is_declared else (),
        options=("--subject", "a:b"),
    )


def check(code: str, subject: Subject) -> Result:
    return run_check(registry.load(code), subject)


@pytest.mark.parametrize("code", ABOUT_THE_FUTURE)
def test_what_is_declared_bidirectional_may_look_ahead(code: str) -> None:
    assert check(code, subject()).findings == ()


def test_what_is_not_declared_may_not_and_the_finding_says_how_to_declare_it() -> None:
    (finding,) = check("FWD201", subject(is_declared=False)).findings
    assert finding.message.endswith("; if that is meant, say --spec bidirectional")


def test_a_causal_subject_that_is_declared_bidirectional_is_a_finding() -> None:
    (finding,) = check("FWD243", subject(is_causal=True)).findings
    assert finding.message.startswith("declared bidirectional, but no output depends on a later token at S=67; earlier")
    assert finding.where.module_class == "Mixer"


def test_where_a_mask_hides_later_keys_the_finding_offers_no_declaration() -> None:
    def leaks(module: nn.Module, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return (x @ x.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ module(x)

    (finding,) = check("FWD201", replace(subject(is_declared=False), forward=leaks)).findings
    assert "--spec" not in finding.message


@pytest.mark.parametrize("way", ["a mask", "a mask of numbers", "an argument"])
def test_the_line_that_hides_later_tokens_is_named(way: str) -> None:
    declared = subject()

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        scores = x @ x.mT
        if way == "an argument":
            return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        if way == "a mask":
            scores = scores.masked_fill(hidden, -torch.inf)
        else:
            scores = scores + torch.zeros_like(scores).masked_fill(hidden, -1e9)
        return scores.softmax(-1) @ x

    (finding,) = check("FWD243", replace(declared, forward=forward)).findings
    line = linecache.getline(finding.where.file, finding.where.line)
    assert ("is_causal" if way == "an argument" else "triu(1)") in line


def test_one_of_tokens_alone_that_is_declared_bidirectional_is_a_note() -> None:
    result = check("FWD243", replace(subject(), forward=lambda module, x: module.linear(x)))
    assert result.verdict is Verdict.PASS
    assert "nor on an earlier one" in result.notes[0]


def test_one_of_two_directions_is_as_it_is_declared() -> None:
    def both(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.cumsum(1), x.flip(1).cumsum(1).flip(1)

    assert check("FWD243", replace(subject(), forward=both)).findings == ()


def test_what_reads_later_tokens_is_as_it_is_declared() -> None:
    result = check("FWD243", subject())
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())
    assert check("FWD243", subject(is_declared=False)).verdict is Verdict.SKIP


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        (torch.ones(16, 16, dtype=torch.bool).triu(1), True),
        (torch.ones(3, 16, 32, dtype=torch.bool).triu(17), True),
        (torch.ones(16, 16, dtype=torch.bool).tril(-1), False),
        (torch.ones(16, 16, dtype=torch.bool), False),
        (torch.arange(16)[:, None] % 2 == torch.arange(16) % 2, False),
    ],
    ids=["causal", "causal beside keys of before", "what is past", "everything", "every other"],
)
def test_a_staircase_is_what_shows_one_key_more_in_each_row(marks: Tensor, expected: bool) -> None:
    assert is_staircase(marks) is expected


def test_what_a_declaration_means_does_not_apply() -> None:
    result = check("FWD202", subject())
    assert (result.verdict, result.is_required, result.reason) == (
        Verdict.SKIP,
        False,
        "mixer is declared bidirectional",
    )


@pytest.mark.parametrize(("is_declared", "found"), [(True, []), (False, ["future changes output", "prefix differs"])])
def test_fuzzing_follows_the_declaration(is_declared: bool, found: list[str]) -> None:
    what = {"kind": "pass", "layer": None, "length": 9, "cut": 4, "rows": 1, "seed": 0, "has_backward": False}
    case = Pass(**what, dtype="wide", layout="contiguous", values="normal", magnitude=1.0)
    outcome = examine(case, subject(is_declared=is_declared))
    assert [failure.violation.value for failure in outcome.failures] == found


def test_an_adapter_declares_as_a_subject_does() -> None:
    adapter = Adapter(make=Mixer, spec=("bidirectional",))
    assert adapt(SubjectRequest(spec="x:y", lengths=(16,)), lambda: adapter).spec == ("bidirectional",)


def test_the_words_of_a_command_line_name_the_subject_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    request = SubjectRequest(spec="faulty.healthy:causal", lengths=(16,), declared=("bidirectional",))
    loaded = load_subject(request)
    assert loaded.spec == ("bidirectional",)
    assert loaded.options[-2:] == ("--spec", "bidirectional")


def test_a_word_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean bidirectional"):
        replace(subject(), spec=("bidirectionl",))
    with pytest.raises(ValueError, match="did you mean bidirectional"):
        Adapter(make=Mixer, spec=("encoder",))


def sampled(*, by_its_own: bool, is_declared: bool) -> Subject:
    """Noise is added to what attention gives, drawn by torch's generator or by one that nobody seeds."""
    own = torch.Generator()
    own.seed()

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=own if by_its_own else None, dtype=x.dtype)
        return module(x) + 0.1 * noise

    return replace(subject(is_causal=True), forward=forward, spec=("stochastic",) if is_declared else ())


def test_samples_are_declared_stochastic_and_still_have_to_be_the_same_by_the_same_seed() -> None:
    (finding,) = check("FWD206", sampled(by_its_own=False, is_declared=False)).findings
    assert finding.message.endswith("; if that is meant, say --spec stochastic")
    assert check("FWD206", sampled(by_its_own=False, is_declared=True)).verdict is Verdict.PASS
    (finding,) = check("FWD206", sampled(by_its_own=True, is_declared=True)).findings
    assert "run to run" in finding.message
    assert not finding.message.endswith("--spec stochastic")


@pytest.mark.parametrize("code", ["FWD201", "FWD203", "GRD101", "NAN101"])
def test_what_draws_the_same_numbers_is_compared_of_samples_too(code: str) -> None:
    result = check(code, sampled(by_its_own=False, is_declared=True))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("code", ["FWD212", "GRD108"])
def test_samples_may_be_others_in_another_default_dtype(code: str) -> None:
    def forward(module: nn.Module, x: Tensor) -> Tensor:
        return module(x) * torch.empty(x.shape).uniform_().to(x)

    assert "default dtype" in check(code, replace(subject(is_causal=True), forward=forward)).findings[0].message
    declared = replace(subject(is_causal=True), forward=forward, spec=("stochastic",))
    assert check(code, declared).verdict is Verdict.PASS


@pytest.mark.parametrize("code", ["FWD212", "GRD108"])
def test_what_a_subject_draws_of_itself_is_the_same_in_another_default_dtype(code: str) -> None:
    def forward(module: nn.Module, x: Tensor) -> Tensor:
        prompt = torch.randn(x.shape[2], generator=torch.Generator().manual_seed(0))
        return module(x) * prompt.to(x)

    assert check(code, replace(subject(is_causal=True), forward=forward)).verdict is Verdict.PASS


def test_every_word_excuses_some_check() -> None:
    excused = {word for entry in registry.entries().values() for word in entry.unless}
    assert excused == set(Declaration)
