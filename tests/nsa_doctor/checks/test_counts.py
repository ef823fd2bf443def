"""Waits, loops, memory, work and steps that grow: found with their line, and not where there is a reason."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.core.growth import fitted_exponent, least_exponent
from nsa_doctor.probes.cost.alive import peak_memory
from nsa_doctor.probes.cost.work import count_work
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.gallery.faulty import paced
from tests.nsa_doctor.checks.test_comparisons import embedding_subject
from tests.nsa_doctor.conftest import HERE, is_marked

WIDTH = 8
Load = Callable[..., Subject]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """`load("slow:name")` is that module of the folder `faulty` as a subject."""
    monkeypatch.syspath_prepend(HERE)

    def subject(name: str, profile: str = "smoke") -> Subject:
        return replace(load_subject(SubjectRequest(spec=f"faulty.{name}", lengths=(16,))), profile=profile)

    return subject


def check(code: str, subject: Subject) -> Result:
    return run_check(registry.load(code), subject)


MARKED = [
    ("HNG201", "reads_each_range", "item"),
    ("HNG201", "unique_per_token", "unique2"),
    ("HNG201", "listed_ranges", "tolist"),
    ("PRF101", "reads_each_range", "item"),
    ("PRF101", "unique_per_token", "unique2"),
    ("PRF101", "loop_in_backward", "1 operations per token"),
    ("PRF201", "cube", "power 2.9"),
    ("PRF202", "cube", "power 2.9"),
    ("PRF202", "all_paths", "power 2.9"),
    ("PRF301", "keeps_graphs", "held in losses"),
    ("PRF301", "growing_cache", "held in past"),
    ("PRF301", "keeps_in_eval", "held in seen"),
    ("PRF302", "growing_cache", "the same 2 steps do more each time"),
    ("PRF302", "adds_hooks", "the same 2 steps do more each time"),
    ("HNG202", "spins", "times as long"),
]


@pytest.mark.parametrize(("code", "name", "words"), MARKED)
def test_the_line_is_named(code: str, name: str, words: str, load: Load) -> None:
    (finding,) = check(code, load(f"slow:{name}", "quick" if code == "HNG202" else "smoke")).findings
    assert is_marked(finding.where.file, finding.where.line), finding.where
    assert words in finding.message.replace("local_scalar_dense", "item")
    if name != "adds_hooks":
        assert finding.where.module == "part"


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("token_by_token", "part"),
        ("sum_of_one_hots", "part"),
        pytest.param("every_pair", "part", marks=pytest.mark.full),
        ("loop_after_recurrence", "mixer.part"),
    ],
)
def test_a_loop_whose_rounds_do_not_need_each_other_is_found(name: str, module: str, load: Load) -> None:
    (finding,) = check("PRF101", load(f"slow:{name}")).findings
    assert finding.where.module == module


def test_a_cliff_between_neighbours_is_counted(load: Load) -> None:
    (finding,) = check("HNG202", load("slow:slow_after_the_block", "quick")).findings
    assert (finding.evidence["slow_length"], finding.evidence["fast_length"]) == (65, 64)
    assert finding.where.module == "part"


def test_time_that_doubles_with_each_token_is_found_before_it_does_not_end(load: Load) -> None:
    (finding,) = check("HNG202", load("slow:all_subsets", "quick")).findings
    assert finding.evidence["slow_length"] <= 28
    assert is_marked(finding.where.file, finding.where.line - 1) or is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("name", paced.HEALTHY)
def test_what_is_slow_for_a_reason_is_left_alone(name: str, load: Load) -> None:
    subject = load(f"paced:{name}")
    for code in ("HNG201", "PRF101"):
        assert check(code, subject).verdict is Verdict.PASS


@pytest.mark.parametrize("name", ["linear_attention", "dense", "fused", "torchs", "many_experts", "chunked"])
def test_what_grows_with_the_square_is_left_alone(name: str, load: Load) -> None:
    subject = load(f"paced:{name}")
    for code in ("PRF201", "PRF202"):
        assert check(code, subject).verdict is Verdict.PASS


@pytest.mark.parametrize("name", ["rope", "last_few", "running_mean", "experts", "checkpointed", "lstm"])
def test_what_is_kept_within_bounds_is_left_alone(name: str, load: Load) -> None:
    subject = load(f"paced:{name}")
    for code in ("PRF301", "PRF302"):
        assert check(code, subject).verdict is Verdict.PASS


@pytest.mark.parametrize(("declared", "verdict"), [(1.5, Verdict.FAIL), (None, Verdict.PASS)])
def test_the_declared_exponent_decides(declared: float | None, verdict: Verdict, load: Load) -> None:
    assert check("PRF201", replace(load("paced:dense"), memory_exponent=declared)).verdict is verdict


def test_a_geometry_of_blocks_allows_no_scores_of_every_pair(load: Load, small: Subject) -> None:
    (finding,) = check("PRF201", replace(load("paced:dense"), geometry=small.geometry)).findings
    assert finding.evidence["allowed"] == 1.5
    assert finding.where.file.endswith("paced.py")


@dataclass
class _Configuration:
    block_size: int = 16
    num_selected: int = 4


@pytest.mark.parametrize(("configuration", "count"), [(_Configuration(), 1), (None, 0)], ids=["blocks", "none"])
def test_a_configuration_that_speaks_of_chosen_blocks_makes_it_a_note(
    configuration: object, count: int, load: Load
) -> None:
    subject = load("paced:dense")

    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        module.config = configuration
        return module

    result = check("PRF201", replace(subject, build=build))
    assert result.verdict is Verdict.PASS
    assert len(result.notes) == count
    assert all("chosen blocks" in note for note in result.notes)


def test_scores_of_every_pair_in_the_selected_branch_are_found(small: Subject) -> None:
    def with_scores(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (8, -1)).transpose(1, 2)
        return small.forward(module, x) + 0 * (heads @ heads.mT).softmax(-1).mean()

    (finding,) = check("PRF201", replace(small, forward=with_scores)).findings
    assert finding.where.function == "with_scores"


class _PlacedToken(nn.Module):
    """Places one tensor after another on a device: that of the input, or the one named."""

    def __init__(self, device: str | None) -> None:
        super().__init__()
        self.linear, self.device = nn.Linear(8, 8), device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        target = x.device if self.device is None else self.device
        return self.linear(torch.stack([token.to(target) for token in x.unbind(1)], 1))


class _FetchedToken(_PlacedToken):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.stack([token.to("cpu") for token in x.unbind(1)], 1))


def waits(module: nn.Module) -> int:
    forward = lambda module, x: module(x)  # noqa: E731
    subject = Subject(name="a", build=lambda seed: module, forward=forward, input="embeddings", width=8)
    return count_work(subject, 33).num_waits


def test_a_tensor_that_stays_on_its_device_is_not_waited_for() -> None:
    assert [waits(_PlacedToken(None)), waits(_PlacedToken("cpu")), waits(_FetchedToken("cpu"))] == [0, 0, 33]


def test_counts_do_not_depend_on_the_run(load: Load) -> None:
    subject = load("paced:experts")
    first, second = (count_work(subject, 33) for _ in range(2))
    assert (first.num_operations, first.num_waits, first.cost) == (
        second.num_operations,
        second.num_waits,
        second.cost,
    )
    assert peak_memory(subject, 33) == peak_memory(subject, 33)


def test_peak_memory_is_that_of_the_tensors(load: Load) -> None:
    """The scores, the mask's inverse, the softmax and the like: a few S x S floats, and S x DIM beside them."""
    size, length = 4, 256
    peak = peak_memory(load("paced:dense"), length)
    assert 3 * size * length**2 < peak.bytes < 6 * size * length**2


@pytest.mark.parametrize("power", [1.0, 1.5, 3.0])
def test_exponents_are_recovered(power: float) -> None:
    lengths = [64, 128, 256, 512]
    found = fitted_exponent(lengths, [2.5 * length**power for length in lengths])
    assert found is not None
    assert found.low <= found.value + 1e-9
    assert found.value == pytest.approx(power)
    assert least_exponent(lengths, [length**power for length in lengths]) == pytest.approx(power)


def test_an_exponent_of_noise_has_a_wide_interval() -> None:
    found = fitted_exponent([64, 128, 256, 512], [1.0, 3.0, 1.5, 4.0])
    assert found is not None
    assert found.low < 0 < found.high
    assert fitted_exponent([64, 128], [1.0, 2.0]) is None


@pytest.mark.parametrize(("num_cells", "verdict"), [(1, Verdict.FAIL), (12, Verdict.PASS)])
def test_a_loop_beside_a_recurrence_that_takes_the_time_is_a_note(num_cells: int, verdict: Verdict) -> None:
    class Recurrent(nn.Module):
        """Cells whose state goes round, and a map that could have been applied to all tokens at once."""

        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num_cells))
            self.map = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            state, states = torch.zeros_like(x[:, 0]), []
            for token in x.unbind(1):
                state = state + token
                for cell in self.cells:
                    state = cell(state).tanh()
                states.append(state)
            return torch.stack([self.map(state) for state in states], dim=1)

    result = check("PRF101", embedding_subject(Recurrent))
    assert result.verdict is verdict
    assert ["beside a recurrence that starts more" in note for note in result.notes] == (
        [True] if verdict is Verdict.PASS else []
    )
