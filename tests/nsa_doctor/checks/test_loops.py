"""What goes wrong from one call or one training step to the next, and the loss a loop takes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.probes.model.heartbeat import watched
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.gallery.faulty.loops import Bigrams
from tests.nsa_doctor.conftest import is_marked

Measurer = Callable[[str], LocalMeasurer]
Loss = Callable[[nn.Module, Tensor], Tensor]
Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor], Tensor]


def checked(code: str, subject: Subject) -> Result:
    result = run_check(registry.load(code), subject)
    assert result.verdict in (Verdict.PASS, Verdict.FAIL), result.reason
    return result


def only_finding(code: str, subject: Subject) -> Finding:
    (finding,) = checked(code, subject).findings
    return finding


@pytest.mark.parametrize(
    ("name", "way", "raises"),
    [
        ("carries", "blocks.1.state", True),
        ("deep", "blocks.1.cache.kept['last']", True),
        ("silent", "blocks.1.moved", False),
        ("averages", "blocks.1.mean", True),
    ],
)
def test_a_graph_that_is_kept_is_reported_with_its_holder(name: str, way: str, raises: bool, faulty: Measurer) -> None:
    finding = only_finding("GRD403", faulty(f"loops:{name}").subject)
    assert finding.where.module == "blocks.1"
    assert finding.evidence["held_in"] == way
    assert ("second time" in finding.message) is raises
    assert Path(finding.where.file).name == "loops.py"
    assert is_marked(finding.where.file, finding.where.line) or name == "deep"


@pytest.mark.parametrize("name", ["detaches", "returns_it", "keeps_views", "looks", "table"])
def test_what_is_kept_without_harm_is_passed_over(name: str, faulty: Measurer) -> None:
    assert checked("GRD403", faulty(f"loops:{name}").subject).findings == ()


def test_a_loop_that_clears_what_is_carried_is_passed_over(faulty: Measurer) -> None:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        module.blocks[1].state = None
        return descend(module(x).square().mean(), optimizer)

    assert checked("GRD403", replace(faulty("loops:carries").subject, train_step=step)).findings == ()


def test_a_loop_that_goes_through_what_is_carried_is_reported(faulty: Measurer) -> None:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        return descend(module(x).square().mean(), optimizer)

    finding = only_finding("GRD403", replace(faulty("loops:carries").subject, train_step=step))
    assert (finding.where.module, finding.evidence["held_in"]) == ("blocks.1", "blocks.1.state")


def descend(loss: Tensor, optimizer: torch.optim.Optimizer, **options: bool) -> Tensor:
    optimizer.zero_grad()
    loss.backward(**options)
    optimizer.step()
    return loss.detach()


def next_token(module: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(module(ids[:, :-1]).mT, ids[:, 1:])


def tokens(late: int = 0, **seams: object) -> Subject:
    """A small language model; its packages are the tests'."""
    return Subject(
        name="bigrams",
        build=lambda _seed: Bigrams(late),
        forward=lambda module, ids: module(ids),
        input="tokens",
        width=23,
        max_length=64,
        packages=("tests",),
        **seams,
    )


def stepping(loss: Loss) -> Step:
    return lambda module, optimizer, ids: descend(loss(module, ids), optimizer)


def unshifted(module: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(module(ids).flatten(0, 1), ids.flatten())


def shifted_twice(module: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(module(ids[:, :-1])[:, :-1].mT, ids[:, 2:], reduction="sum")


def shifted_back(module: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(module(ids)[:, 1:].mT, ids[:, :-1])


def softened(module: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(module(ids)[:, :-1].softmax(-1).mT, ids[:, 1:])


def over_the_tokens(module: nn.Module, ids: Tensor) -> Tensor:
    return nll_loss(module(ids[:, :-1]).log_softmax(1).mT, ids[:, 1:])


def over_the_batch(module: nn.Module, ids: Tensor) -> Tensor:
    return nll_loss(module(ids[:, :-1]).log_softmax(0).mT, ids[:, 1:])


def raw(module: nn.Module, ids: Tensor) -> Tensor:
    return nll_loss(module(ids[:, :-1]).mT, ids[:, 1:])


def scrambled(module: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(module(ids[:, :-1]).transpose(0, 1).reshape(-1, 23), ids[:, 1:].flatten())


def likelihood(module: nn.Module, ids: Tensor) -> Tensor:
    return -next_token(module, ids)


def rolled(module: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(module(ids).flatten(0, 1), ids.roll(-1, 1).flatten())


WRONG = {
    unshifted: "just read",
    shifted_twice: "shifted twice",
    shifted_back: "wrong way",
    softened: "softmax is applied before",
    over_the_tokens: "over the tokens",
    over_the_batch: "over the batch",
    raw: "taken for log-probabilities",
    scrambled: "different orders",
    likelihood: "without a minus",
    rolled: "behind the last token comes the first",
}


@pytest.mark.parametrize("loss", WRONG, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("seam", ["loss", "train_step"])
def test_a_wrong_loss_is_reported_for_what_it_is(loss: Loss, seam: str) -> None:
    subject = tokens(**{seam: loss if seam == "loss" else stepping(loss)})
    finding = only_finding("GRD207", watched(subject, lambda _length: None))
    assert WRONG[loss] in finding.message
    assert (finding.where.module, finding.where.module_class) == ("", "Bigrams")
    assert Path(finding.where.file) == Path(__file__)


def summed(module: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(module(ids)[:, :-1].mT, ids[:, 1:], reduction="sum") / len(ids)


def smoothed(module: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(module(ids[:, :-1]).mT, ids[:, 1:], label_smoothing=0.1)


def with_z(module: nn.Module, ids: Tensor) -> Tensor:
    logits = module(ids[:, :-1])
    return cross_entropy(logits.mT, ids[:, 1:]) + 1e-4 * logits.logsumexp(-1).square().mean()


def weighted(module: nn.Module, ids: Tensor) -> Tensor:
    terms = cross_entropy(module(ids[:, :-1]).mT, ids[:, 1:], reduction="none")
    weights = torch.linspace(0.5, 1.5, terms.shape[1])
    return (terms * weights).sum() / weights.sum() / len(ids)


def two_ahead_too(module: nn.Module, ids: Tensor) -> Tensor:
    logits = module(ids)
    return cross_entropy(logits[:, :-1].mT, ids[:, 1:]) + 0.1 * cross_entropy(logits[:, :-2].mT, ids[:, 2:])


def after_a_start(module: nn.Module, ids: Tensor) -> Tensor:
    given = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], 1)
    return cross_entropy(module(given).mT, ids)


def of_masked(module: nn.Module, ids: Tensor) -> Tensor:
    given = torch.where(torch.arange(ids.shape[1]) % 4 == 1, 0, ids)
    return cross_entropy(module(given).mT, ids)


@pytest.mark.parametrize(
    "loss",
    [next_token, summed, smoothed, with_z, weighted, two_ahead_too, after_a_start, of_masked],
    ids=lambda loss: loss.__name__,
)
def test_a_loss_that_is_right_or_unknown_is_passed_over(loss: Loss) -> None:
    subject = tokens(loss=loss, train_step=stepping(loss))
    assert checked("GRD207", subject).findings == ()


def test_a_model_that_holds_its_input_back_owes_the_token_just_given() -> None:
    assert checked("GRD207", tokens(late=1, loss=unshifted)).findings == ()
    assert "shifted twice" in only_finding("GRD207", tokens(late=1, loss=next_token)).message


class Curve:
    def __init__(self, keep: Callable[[Tensor], object], **options: bool) -> None:
        self.kept, self.keep, self.options = [], keep, options

    def step(self, module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
        loss = next_token(module, ids)
        taken = descend(loss, optimizer, **self.options)
        self.kept.append(self.keep(loss))
        return taken


def test_a_loop_that_keeps_graphs_is_reported_with_the_attribute() -> None:
    subject = tokens(train_step=Curve(lambda loss: loss, retain_graph=True).step)
    finding = only_finding("PRF301", watched(subject, lambda _length: None))
    assert (finding.where.module, finding.where.function) == ("", "step")
    assert finding.evidence["held_in"] == "kept"
    assert Path(finding.where.file) == Path(__file__)


@pytest.mark.parametrize("keep", [Tensor.item, Tensor.detach], ids=["number", "detached"])
def test_a_loop_that_keeps_a_record_is_passed_over(keep: Callable[[Tensor], object]) -> None:
    assert checked("PRF301", tokens(train_step=Curve(keep).step)).findings == ()


def clipped_by_rows(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = next_token(module, ids)
    loss.backward()
    norm = module.embedding.weight.grad.norm(dim=1, keepdim=True)
    module.embedding.weight.grad.div_(norm)  # here
    optimizer.step()
    return loss.detach()


def test_a_step_that_makes_a_parameter_nan_is_reported_with_its_line() -> None:
    few = replace(tokens(train_step=clipped_by_rows), width=20)  # the ids above are never seen
    finding = only_finding("NAN108", few)
    assert finding.where.module == "embedding"
    assert finding.evidence["parameters"] == "embedding.weight"
    assert is_marked(finding.where.file, finding.where.line)


class LateNan:
    """A running mean over what has not come yet, in the third step."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
        self.count = self.count % 3 + 1
        loss = next_token(module, ids)
        scale = torch.ones(0 if self.count == 3 else 1).mean()  # here
        return descend(loss * scale, optimizer)


def test_a_later_step_is_reported_by_its_number() -> None:
    finding = only_finding("NAN108", tokens(train_step=LateNan()))
    assert "step 3" in finding.message


def too_long(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    return descend(1e25 * next_token(module, ids), optimizer)


@pytest.mark.parametrize("step", [stepping(next_token), too_long], ids=["healthy", "too_long"])
def test_a_step_that_is_finite_or_just_too_long_is_no_finding(step: Step) -> None:
    assert checked("NAN108", tokens(train_step=step)).findings == ()
