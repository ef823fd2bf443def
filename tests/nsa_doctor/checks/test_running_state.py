"""State that training passes move on purpose makes no two calls that are compared another one."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8
CODES = ("FWD201", "FWD203", "FWD207", "GRD101", "GRD104", "GRD107")


class Running(nn.Module):
    """A layer beside state that each training pass moves, and later ones use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.route = nn.Linear(DIM, DIM), nn.Linear(DIM, 3)
        self.register_buffer("state", torch.zeros(3))


class Balanced(Running):
    """Experts by a score and a bias that goes up and down with what was sent to them."""

    def forward(self, x: Tensor) -> Tensor:
        scores = self.route(x).softmax(-1)
        chosen = F.one_hot((scores + self.state).argmax(-1), 3).to(x.dtype)
        if self.training:
            with torch.no_grad():
                load = chosen.flatten(0, 1).mean(0)
                self.state += 0.05 * (load.mean() - load).sign()
        return x + self.layer(x) * (scores * chosen * torch.arange(1, 4, device=x.device)).sum(-1, keepdim=True)


class Scaled(Running):
    """Values rounded by the largest ones of three passes before."""

    def forward(self, x: Tensor) -> Tensor:
        largest = self.state.max()
        scale = torch.where(largest > 0, 8 / largest.clamp_min(1e-6), torch.ones_like(largest))
        rounded = x + ((x * scale).round() / scale - x).detach()
        if self.training:
            self.state.copy_(torch.cat((x.detach().abs().max()[None], self.state[:-1])))
        return self.layer(rounded)


class Restarting(Running):
    """A temperature that falls, and begins again at every sixth pass."""

    def forward(self, x: Tensor) -> Tensor:
        temperature = 1 + self.state[0] % 6
        if self.training:
            self.state += 1
        return x + self.layer(x) / temperature


class Normed(Running):
    """A spectral norm, whose power iteration goes on in training."""

    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.spectral_norm(self.layer)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x)


class ByBatch(Running):
    """A gate by statistics of the batch, which are kept for eval(); of torch's function or by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(DIM))
        self.register_buffer("running_var", torch.ones(DIM))

    def normed(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        return F.batch_norm(rows, self.running_mean, self.running_var, training=self.training).view_as(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.normed(x).sigmoid()


class ByHand(ByBatch):
    def normed(self, x: Tensor) -> Tensor:
        if not self.training:
            return (x - self.running_mean) / (self.running_var + 1e-5).sqrt()
        mean, var = x.mean((0, 1)), x.var((0, 1))
        self.running_mean = self.running_mean.lerp(mean.detach(), 0.1)
        self.running_var = self.running_var.lerp(var.detach(), 0.1)
        return (x - mean) / (var + 1e-5).sqrt()


class Tracked(Running):
    """Rows and later tokens are mixed in training alone, beside a mean that is only kept."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("load_mean", torch.zeros(DIM))

    def mixed(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.load_mean.lerp_(x.detach().mean((0, 1)), 0.1)
            x = self.mixed(x)
        return self.layer(x)


class TrackedLater(Tracked):
    def mixed(self, x: Tensor) -> Tensor:
        return x + 0.1 * x.roll(-1, 1)


class Watched(Tracked):
    """Nothing is mixed."""

    def mixed(self, x: Tensor) -> Tensor:
        return x


class AlsoMixing(ByHand):
    """Its rows mix behind the norm too."""

    def forward(self, x: Tensor) -> Tensor:
        mixed = super().forward(x)
        return mixed - 0.5 * mixed.mean(0, keepdim=True)


@pytest.mark.parametrize("code", ["FWD201", "FWD203"])
@pytest.mark.parametrize("make", [ByBatch, ByHand])
def test_a_norm_by_the_batch_of_ones_own_is_a_note(make: type[nn.Module], code: str) -> None:
    result = run_check(registry.load(code), subject_of(make, 0))
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason
    assert any("a norm by the batch" in note for note in result.notes)


@pytest.mark.parametrize(("make", "code"), [(Tracked, "FWD203"), (TrackedLater, "FWD201")])
def test_a_mean_that_is_kept_hides_nothing(make: type[nn.Module], code: str) -> None:
    (finding,) = run_check(registry.load(code), subject_of(make, 0)).findings
    assert "(train)" in finding.message


def test_what_mixes_nothing_is_no_norm() -> None:
    assert run_check(registry.load("FWD203"), subject_of(Watched, 0)).notes == ()


def test_rows_that_mix_behind_a_norm_by_the_batch_are_found() -> None:
    (finding,) = run_check(registry.load("FWD203"), subject_of(AlsoMixing, 0)).findings
    assert "(eval)" in finding.message


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("make", [Balanced, Scaled, Normed])
@pytest.mark.parametrize("code", CODES)
def test_running_state_is_no_fault(make: type[nn.Module], code: str, seed: int) -> None:
    result = run_check(registry.load(code), subject_of(make, seed))
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason


def test_a_schedule_that_begins_again_is_no_fault() -> None:
    assert run_check(registry.load("GRD104"), subject_of(Restarting, 0)).findings == ()


class Mixing(Balanced):
    """Takes in the bias what this very batch has moved."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            load = F.one_hot(self.route(x).argmax(-1), 3).to(x.dtype).flatten(0, 1).mean(0)
        return super().forward(x) + load.sum() * load[0]


def test_what_mixes_rows_beside_it_is_found_all_the_same() -> None:
    (finding,) = run_check(registry.load("FWD203"), subject_of(Mixing, 0)).findings
    assert "other rows" in finding.message


def test_the_mode_and_the_hooks_of_between_two_calls_stay() -> None:
    built = comparable_module(subject_of(Balanced, 0), mode="train")
    state, calls = built.module.get_buffer("state"), []
    assert state.abs().sum() > 0  # the call that tries the dtype moved it, which is put back before the next one
    built.module.get_submodule("layer").register_forward_hook(lambda *_: calls.append(state.clone()))
    built.module.get_submodule("route").eval()
    built(built.input(9))
    (at_the_layer,) = calls
    torch.testing.assert_close(at_the_layer.abs(), torch.full_like(state, 0.05))  # one step, not two
    assert not built.module.get_submodule("route").training


def subject_of(make: type[nn.Module], seed: int) -> Subject:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    forward = lambda module, x: module(x)  # noqa: E731
    return Subject(
        name="running",
        build=build,
        forward=forward,
        input="embeddings",
        width=DIM,
        max_length=80,
        packages=("tests",),
        seed=seed,
    )
