"""Gates that never move: found whatever keeps them still, and no alarm where they move little or cannot learn."""

import itertools

import pytest
import torch

from nsa.nn.gate import Gate
from nsa.train.optimizer import make_optimizer
from nsa_doctor.artifacts.judging import judge
from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.testing.training_runs import trained
from tests.nsa_doctor.artifacts.training_run.test_watch_runs import findings_of

full = pytest.mark.full
FORWARD = Gate.forward
LOOKS = 9
SHORT = {"steps": 40, "log_every": 5, "eval_every": 0, "eval_batches": 1, "save_every": 0, "sample_tokens": 0}


def frozen(model, train):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".gate." not in name)
    return make_optimizer(model, train)


def of_thirds(gate, query_mean):
    return torch.full((*query_mean.shape[:3], 3), 1 / 3)


def detached(gate, query_mean):
    return FORWARD(gate, query_mean).detach()


def judged(subject):
    return judge(registry.load("TRN502"), subject)


STILL = {
    "frozen": {"nsa.train.setup.make_optimizer": frozen},
    "thirds": {"nsa.nn.gate.Gate.forward": of_thirds},
    "detached": {"nsa.nn.gate.Gate.forward": detached},
}


@pytest.mark.parametrize("kind", ["frozen", "thirds", pytest.param("detached", marks=full)])
@pytest.mark.parametrize("lr", [3e-4, pytest.param(2e-2, marks=full)])
def test_gates_that_stand_still_are_reported_once_and_alone(kind, lr):
    (finding,) = findings_of(trained(**SHORT, lr=lr, seams=STILL[kind], model={"n_layers": 2}))
    assert finding.startswith("TRN502 the parameters of the gates of layers 0 and 1 are the same at all 9 looks from ")


@pytest.mark.parametrize(
    "changes",
    [
        {"lr": 3e-4, "warmup_steps": 30},
        {"lr": 1e-6},
        *(pytest.param({"lr": lr, "seed": seed}, marks=full) for lr in (1e-5, 3e-4, 3e-3) for seed in (1, 2, 3)),
        pytest.param({"lr": 2e-4, "warmup_steps": 2000, "steps": 60}, marks=full),
    ],
    ids=str,
)
def test_gates_that_move_little_raise_no_alarm(changes):
    assert judged(trained(**{**SHORT, **changes})).verdict is Verdict.PASS


def test_one_branch_alone_has_gates_with_nothing_to_learn():
    end = judged(trained(**SHORT, model={"branch": "win"}))
    assert (end.verdict, end.reason) == (Verdict.SKIP, "the run has one branch alone, and its gates nothing to learn")


def drawn(norms, *, looks=LOOKS, is_own=True, **step):
    """A run of 80 steps, with a look every ten of them at gates of these norms."""
    beats = [Beat(step=n, msg="step", **{"loss": 5.0 - n / 80, "learning_rate": 1e-3, **step}) for n in range(1, 81)]
    shares = {"cmp": 0.3, "sel": 0.3, "win": 0.4, "spread": 0.01}
    gates = [
        {"step": 10.0 * look, "layer": float(layer), **shares, **({} if norm is None else {"norm": norm})}
        for layer, own in enumerate(norms)
        for look, norm in enumerate(itertools.islice(own, looks))
    ]
    record = {"folder": "run", "beats": tuple(beats), "gates": tuple(gates), "is_own": is_own}
    return RunSubject(name="run", now=0.0, record=RunRecord(**record))


def test_the_layers_that_stand_still_are_named_among_those_that_move():
    (finding,) = judged(drawn([itertools.count(1.0), itertools.repeat(2.0)])).findings
    assert finding.message == (
        "the parameters of the gate of layer 1 are the same at all 9 looks from step 0 to 80, while 80 steps were made "
        "and the loss went from 4.9875 to 4.0000"
    )


def test_another_trainers_column_of_that_name_says_nothing():
    assert judged(drawn([itertools.repeat(2.0)], is_own=False)).verdict is Verdict.SKIP


def test_the_least_change_is_a_move():
    assert judged(drawn([[2.0] * 8 + [2.0 + 2**-51]])).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (drawn([itertools.repeat(2.0)], looks=3), "gates.csv has fewer than 4 looks at the gates' own parameters"),
        (drawn([[None] * 9]), "gates.csv has fewer than 4 looks at the gates' own parameters"),
        (drawn([[2.0] * 9], learning_rate=0.0), "fewer than 10 steps"),
        (drawn([[2.0] * 9], learning_rate=1e-12), "fewer than 10 steps"),
        (drawn([[2.0] * 9], grad_norm=0.0), "fewer than 10 steps"),
        (drawn([[2.0] * 9], loss=float("nan")), "fewer than 10 steps"),
    ],
    ids=["few looks", "an older table", "rate 0", "no rate to speak of", "no gradient", "not finite"],
)
def test_what_cannot_move_a_gate_is_not_judged(run, reason):
    end = judged(run)
    assert end.verdict is Verdict.SKIP
    assert end.reason.startswith(reason)
