"""A parameter that comes to nothing is found with its module; one that some call may use is not."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.gallery.faulty import idle, parameters_healthy
from tests.gallery.faulty.host import DIM
from tests.nsa_doctor.conftest import is_marked

HEALTHY_PARAMETERS = (
    *("experts", "dense_experts", "zero_projection", "indexer", "key_bias", "sparse", "quantised", "for_later"),
    *("top_two", "top_one_with_loss", "bias_before_norm", "faint_part", "frozen_in_a_list"),
)


def check(make: Callable[[], nn.Module], **seams: object) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    forward = lambda module, x: module(x)  # noqa: E731
    subject = Subject(
        name="idle",
        build=build,
        forward=forward,
        input="embeddings",
        width=DIM,
        max_length=600,
        packages=("tests",),
        profile="smoke",
        **seams,
    )
    return run_check(registry.load("GRD208"), subject)


UNUSED = {
    "uncalled": (idle.uncalled, "part.spare", "4 parameters (part.spare.0.weight, "),
    "last": (lambda: idle.gated("last of the layers"), "part.more.2", "2 parameters (part.more.2.weight"),
    "parameter": (lambda: idle.gated("parameter"), "part", "1 parameter (part.token) that no call uses, at several"),
}


@pytest.mark.parametrize(("make", "module", "said"), UNUSED.values(), ids=UNUSED.keys())
def test_what_no_call_uses_is_found(make: Callable[[], nn.Module], module: str, said: str) -> None:
    (finding,) = check(make).findings
    assert (finding.where.module, finding.message[: len(said)]) == (module, said)
    assert "that no call uses" in finding.message
    assert is_marked(finding.where.file, finding.where.line)


class Keys(nn.Module):
    """A part without a forward, one of whose two methods forgets the norm of what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.key_norm, self.value = nn.Linear(DIM, DIM), nn.LayerNorm(DIM), nn.Linear(DIM, DIM)

    def keys(self, x: Tensor) -> Tensor:
        return self.key(x)  # FAULT

    def values(self, x: Tensor) -> Tensor:
        return self.value(x)


class Holding(nn.Module):
    """Asks a part for keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Keys()

    def forward(self, x: Tensor) -> Tensor:
        return self.part.keys(x) * self.part.values(x)


def test_what_a_method_leaves_out_is_found_beside_its_namesake() -> None:
    (finding,) = check(Holding).findings
    assert finding.where.module == "part.key_norm"
    assert linecache.getline(finding.where.file, finding.where.line).strip() == "return self.key(x)  # FAULT"
    assert finding.message.endswith("; keys reads key, and no method key_norm")


class Normed(nn.Module):
    """Two norms, of which one takes the other's place."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.other, self.k_norm = nn.RMSNorm(DIM), nn.Linear(DIM, DIM), nn.RMSNorm(DIM)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q = self.q_norm(self.other(x))
        k = self.q_norm(x)
        return q, k

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.heads(x)
        return q + k.tanh()


def test_a_part_of_which_another_takes_the_place_is_found_there_once() -> None:
    (finding,) = check(lambda: nn.Sequential(Normed(), Normed())).findings
    assert finding.message.startswith("2 parameters (0.k_norm.weight, 1.k_norm.weight) that no call uses")
    assert finding.message.endswith("heads reads q_norm twice and k_norm never")
    assert linecache.getline(__file__, finding.where.line).strip() == "k = self.q_norm(x)"


class Scaled(nn.Module):
    """Reads two scales, and takes one for both, or hands one to a method that takes the other."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.q_scale, self.k_scale = nn.Parameter(torch.ones(DIM)), nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = getattr(self, f"_{self.way}")(x)
        return output


class ReadIntoNothing(Scaled):
    def _unpacked(self, x: Tensor) -> Tensor:
        q_scale, k_scale = self.q_scale, self.k_scale  # noqa: F841
        return x * q_scale + x.tanh() * q_scale


class HandedForNothing(Scaled):
    def _handed(self, x: Tensor) -> Tensor:
        return self._both(x * self.q_scale, k_scale=self.k_scale)

    def _both(self, x: Tensor, k_scale: Tensor) -> Tensor:
        return x.tanh()


class ReadForLater(Scaled):
    """By a flag, or by a name: there is a way."""

    def _handed(self, x: Tensor) -> Tensor:
        k_scale = self.k_scale
        x = x * self.q_scale
        return x * k_scale if self.way == "scaled" else x


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: ReadIntoNothing("unpacked"), "q_scale, k_scale = self.q_scale, self.k_scale  # noqa: F841"),
        (lambda: HandedForNothing("handed"), "return self._both(x * self.q_scale, k_scale=self.k_scale)"),
    ],
    ids=["unpacked", "handed"],
)
def test_what_is_read_for_nothing_is_found_where_it_is_read(make: Callable[[], nn.Module], line: str) -> None:
    (finding,) = check(make).findings
    assert finding.message.startswith("1 parameter (k_scale) that no call uses")
    assert finding.message.endswith("reads k_scale, and nothing what it is read into")
    assert linecache.getline(__file__, finding.where.line).strip() == line


def test_what_is_read_and_may_be_used_is_a_note() -> None:
    result = check(lambda: ReadForLater("handed"))
    assert (result.findings, len(result.notes)) == ((), 1)


@pytest.mark.parametrize("way", ["times zero", "minus itself", "masked away"])
def test_what_changes_no_output_is_found(way: str) -> None:
    (finding,) = check(lambda: idle.gated(way)).findings
    assert finding.where.module == "part.gate"
    assert "without effect on any output, with a gradient of zeros or of rounding alone" in finding.message


class Distances(nn.Module):
    """Causal attention with a bias for each distance, which `slip` takes for the same one everywhere."""

    def __init__(self, *, slip: bool) -> None:
        super().__init__()
        self.qkv, self.table, self.slip = nn.Linear(DIM, 3 * DIM), nn.Embedding(16, 1), slip

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        places = torch.arange(x.shape[1], device=x.device)
        relative = places[None] - places[:, None]
        distance = relative.clamp(min=0) if self.slip else (-relative).clamp(min=0)
        scores = q @ k.mT + self.table(distance.clamp(max=15))[..., 0]
        return scores.masked_fill(relative > 0, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("slip", [False, True])
def test_a_table_that_a_softmax_forgets_is_found(slip: bool) -> None:
    findings = check(lambda: Distances(slip=slip)).findings
    assert [finding.evidence["parameters"] for finding in findings] == ["table.weight"] * slip


class Placed(nn.Module):
    """A table of positions before a norm, of which `slip` has one number for all channels."""

    def __init__(self, *, slip: bool) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(DIM, DIM), nn.LayerNorm(DIM)
        self.places = nn.Parameter(torch.randn(1, 1024, 1 if slip else DIM))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.norm(x + self.places[:, : x.shape[1]]))


@pytest.mark.parametrize("slip", [False, True])
def test_a_table_that_a_norm_takes_away_is_found(slip: bool) -> None:
    findings = check(lambda: Placed(slip=slip)).findings
    assert [finding.evidence["parameters"] for finding in findings] == ["places"] * slip


@pytest.mark.parametrize("make", idle.HEALTHY.values(), ids=idle.HEALTHY.keys())
def test_what_some_call_uses_is_passed_over(make: Callable[[], nn.Module]) -> None:
    result = check(make)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


@pytest.mark.parametrize("name", HEALTHY_PARAMETERS)
def test_what_learns_or_rightly_does_not_is_passed_over(name: str) -> None:
    assert check(getattr(parameters_healthy, name)).findings == ()


def test_what_its_class_may_be_asked_for_is_a_note() -> None:
    result = check(idle.later)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    (note,) = result.notes
    assert note.startswith("part.other is used by no call that was tried, though its class names it (part.other")


class Remembers(nn.Linear):
    """Returns beside its output what the next segment is to begin with, of which a parameter is part."""

    def __init__(self) -> None:
        super().__init__(DIM, DIM)
        self.memory, self.dead = nn.Parameter(torch.randn(4, DIM)), nn.Parameter(torch.randn(DIM))

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y = super().forward(torch.cat((self.memory.expand(len(x), -1, -1), x), dim=1))
        return y[:, 4:] + 0 * self.dead, {"memory": y[:, :4]}


def test_what_moves_a_part_that_is_not_handed_on_is_a_note() -> None:
    build = lambda seed: (torch.manual_seed(seed), Remembers())[1]  # noqa: E731
    first = lambda module, x: module(x)[0]  # noqa: E731
    subject = Subject(name="idle", build=build, forward=first, input="embeddings", width=DIM, packages=("tests",))
    result = run_check(registry.load("GRD208"), subject)
    (finding,), (note,) = result.findings, result.notes
    assert finding.message.startswith("1 parameter (dead) without effect on any output")
    assert note.startswith("1 parameter (memory) learnt by a part of what forward returns ([1]['memory'])")


def test_what_the_training_step_uses_is_passed_over() -> None:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = module.part.spare(module(x)).square().mean()
        loss.backward()
        return loss

    assert check(idle.uncalled, train_step=step).findings == ()


class Mentions(nn.Linear):
    """A parameter whose effect is zero, read by a method."""

    def __init__(self) -> None:
        super().__init__(DIM, DIM)
        self.memory = nn.Parameter(torch.randn(DIM))

    def init_memory(self) -> Tensor:
        return self.memory * 0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.init_memory()


class Initialises(nn.Linear):
    """A parameter that is given values, and read by nothing."""

    def __init__(self) -> None:
        super().__init__(DIM, DIM)
        self.memory = nn.Parameter(torch.empty(DIM))
        self.init_weights()

    def init_weights(self) -> None:
        nn.init.zeros_(self.memory)


def test_a_method_whose_name_begins_like_that_of_one_that_starts_parameters_reads() -> None:
    (read,) = check(Mentions).findings
    assert "no method reads it" not in read.message
    (started,) = check(Initialises).findings
    assert started.message.endswith("makes memory, and no method reads it")


class Unnormed(nn.Module):
    """Holds a norm that its forward forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor, more: Tensor) -> Tensor:
        return x + 2 * more


class Deep(nn.Module):
    """Calls it by name, as every layer does."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.add = nn.Linear(DIM, DIM), Unnormed()

    def forward(self, x: Tensor) -> Tensor:
        return self.add(x, self.mix(x))


def test_what_a_part_that_runs_leaves_idle_is_its_own_and_no_note_of_its_holder() -> None:
    result = check(lambda: nn.Sequential(Deep(), Deep()))
    (finding,) = result.findings
    assert finding.where.module_class == "LayerNorm"
    assert finding.message.startswith("4 parameters (0.add.norm.weight, 0.add.norm.bias, 1.add.norm.weight")
    assert result.notes == ()


class Gated(nn.Linear):
    """A layer that weighs a bias by a parameter of its own, where it is given one."""

    def __init__(self) -> None:
        super().__init__(DIM, DIM)
        self.weigh = nn.Parameter(torch.randn(DIM))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y = super().forward(x)
        return y if bias is None else y + bias * self.weigh


class Stack(nn.Module):
    """Layers of which those are given the bias that `given` names."""

    def __init__(self, *given: int) -> None:
        super().__init__()
        self.layers, self.bias = nn.ModuleList([Gated() for _ in range(3)]), nn.Parameter(torch.randn(DIM))
        self.given = given

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x, self.bias if number in self.given else None))
        return x + self.bias


def test_what_one_layer_uses_and_its_like_do_not_is_found() -> None:
    (finding,) = check(lambda: Stack(0)).findings
    assert finding.message.startswith(
        "2 parameters (layers.1.weigh, layers.2.weigh) that no call uses, though layers.0.weigh is used"
    )


@pytest.mark.parametrize("given", [(), (0, 1), (1, 2)], ids=["none", "all but the last", "all but the first"])
def test_what_no_layer_of_a_list_or_one_at_its_end_leaves_out_is_a_note(given: tuple[int, ...]) -> None:
    result = check(lambda: Stack(*given))
    assert (result.findings, len(result.notes)) == ((), 1)


class ZeroLatents(nn.Module):
    """A layer of torch's own that is given zeros alone."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.latent = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x) + self.latent(torch.zeros_like(x))


def test_a_layer_of_torchs_own_is_found_at_the_forward_that_calls_it() -> None:
    (finding,) = check(ZeroLatents).findings
    assert finding.message.startswith("1 parameter (latent.weight) without effect on any output")
    assert (finding.where.file, finding.where.module_class, finding.where.function) == (__file__, "Linear", "forward")
