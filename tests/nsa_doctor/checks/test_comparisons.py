"""Checks that compare two runs: each illness is found under its own code, in its own line, and healthy code is not."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

CODES = ("FWD201", "FWD202", "FWD203", "FWD204", "FWD205", "FWD206", "FWD207", "FWD208")
Faulty = Callable[..., LocalMeasurer]


def checked(faulty: Faulty, name: str, code: str, seed: int = 0) -> Result:
    subject = replace(faulty(name).subject, max_length=211, seed=seed)
    return run_check(registry.load(code), subject)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("sees_the_next_token", "FWD201"),
        ("drops_a_ragged_tail", "FWD202"),
        ("mixes_rows", "FWD203"),
        ("scaled_by_the_batch", "FWD204"),
        ("reads_raw_memory", "FWD205"),
        ("noisy_in_eval", "FWD206"),
        ("counts_calls", "FWD206"),
        ("other_in_training", "FWD207"),
        ("writes_into_its_input", "FWD208"),
    ],
)
def test_an_illness_is_found_in_its_line(faulty: Faulty, name: str, code: str) -> None:
    result = checked(faulty, f"comparisons:{name}", code)
    assert result.verdict is Verdict.FAIL
    where = result.findings[0].where
    assert where.module_class in ("Part", "_CountsCalls", "_OtherInTraining")
    if name not in ("drops_a_ragged_tail", "writes_into_its_input"):
        assert is_marked(where.file, where.line)


@pytest.mark.parametrize(
    "name", ["causal", "masked", "frozen", "token_model", "object_output", "no_parameters", "rude"]
)
@pytest.mark.parametrize("code", CODES)
def test_healthy_models_are_silent(faulty: Faulty, name: str, code: str) -> None:
    assert checked(faulty, f"healthy:{name}", code).verdict is Verdict.PASS


class _WritesIntoOdd(nn.Linear):
    """A linear layer that writes into the input of an odd kind."""

    def __init__(self, is_odd: Callable[[Tensor], bool]) -> None:
        super().__init__(8, 8)
        self.is_odd = is_odd

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.is_odd(x):
            x.mul_(0.5)
        return y


ODD_INPUTS: dict[str, Callable[[Tensor], bool]] = {
    "transposed": lambda x: not x.is_contiguous(),
    "bfloat16": lambda x: x.dtype == torch.bfloat16,
    "float64": lambda x: x.dtype == torch.float64,
    "rows": lambda x: x.shape[0] == 3,
    "begun again": lambda x: x.shape[1] > 1 and bool((x[:, 0] == x[:, -1]).all()) and bool(x.any()),
}


@pytest.mark.parametrize("kind", ODD_INPUTS)
def test_an_input_that_is_overwritten_in_one_kind_alone_is_found(kind: str) -> None:
    subject = embedding_subject(lambda: _WritesIntoOdd(ODD_INPUTS[kind]))
    (finding,) = run_check(registry.load("FWD208"), subject).findings
    assert "of the input are overwritten by mul_" in finding.message
    assert finding.where.function == "forward"


def embedding_subject(make: Callable[[], nn.Module], seed: int = 0) -> Subject:
    return small_subject(make, width=8, max_length=80, seed=seed)


def test_ids_that_ascend_are_tried_too() -> None:
    class Turned(nn.Embedding):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            if bool((x.diff(dim=1) == 1).all()):
                x.copy_(x.flip(1))
            return y

    subject = replace(embedding_subject(lambda: Turned(40, 8)), input="tokens", width=40)
    (finding,) = run_check(registry.load("FWD208"), subject).findings
    assert "values of the input are overwritten by copy_" in finding.message


def test_input_with_an_outlier_is_tried_too() -> None:
    class Clipped(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.clamp_(-100, 100))

    (finding,) = run_check(registry.load("FWD208"), embedding_subject(lambda: Clipped(8, 8))).findings
    assert "values of the input are overwritten by clamp_" in finding.message


class _UnderACondition(nn.Module):
    """A layer followed by something else under a condition on its input."""

    def __init__(self, layer: nn.Module, condition: Callable[[Tensor], bool], effect: Callable[[Tensor], Tensor]):
        super().__init__()
        self.layer, self.condition, self.effect = layer, condition, effect

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.effect(y) if self.condition(x) else y


def test_rows_that_are_all_the_same_are_tried_too() -> None:
    are_equal = lambda x: x.shape[0] > 1 and bool((x == x[:1]).all())  # noqa: E731
    subject = embedding_subject(lambda: _UnderACondition(nn.Linear(8, 8), are_equal, lambda y: y * 1.01))
    (finding,) = run_check(registry.load("FWD203"), subject).findings
    assert finding.message.startswith("other rows equal to it in place of others of the batch change a row's output")


def test_a_last_token_that_is_the_first_one_again_is_tried_too() -> None:
    begun_again = lambda x: x.shape[1] > 1 and bool((x[:, 0] == x[:, -1]).all())  # noqa: E731
    subject = embedding_subject(lambda: _UnderACondition(nn.Linear(8, 8), begun_again, lambda y: y * 1.01))
    (finding,) = run_check(registry.load("FWD201"), subject).findings
    assert "the first token again in the place of tokens >= 66 change the output before them" in finding.message


MIXES = {
    "FWD201": lambda y: y.roll(-1, 1),
    "FWD203": lambda y: y + y.sum(0, keepdim=True),
    "FWD204": lambda y: y * (1 + y.shape[0]),
    "GRD101": lambda y: y.detach(),
}
KINDS = {
    "negative": lambda x: bool((x <= 0).all()),
    "positive": lambda x: bool((x >= 0).all()),
    "small": lambda x: bool(x.abs().max() < 1e-3),
    "large": lambda x: bool(x[:, :1].abs().mean() > 10),  # the first token too
    "large in one channel of the first token": lambda x: bool(
        (x[:, 0, 0] > 40).all() and x[:, :1, 1:].abs().max() < 40
    ),
}


@pytest.mark.parametrize(("code", "kind"), sorted({*product(MIXES, KINDS)} - {("GRD101", "small")}))
def test_values_of_other_kinds_are_tried_too(code: str, kind: str) -> None:
    make = lambda: _UnderACondition(nn.Linear(8, 8), KINDS[kind], MIXES[code])  # noqa: E731
    (finding,) = run_check(registry.load(code), embedding_subject(make)).findings
    assert f"where all of the input is {kind}" in finding.message
    assert finding.where.function in {"forward", "<lambda>"}


REPEATED = {
    "the same in every row": lambda x: len(x) > 1 and bool((x == x[:1]).all()),
    "the same in every token": lambda x: x.shape[1] > 1 and bool((x == x[:, :1]).all()),
}


@pytest.mark.parametrize("effect", [lambda y: y.detach(), lambda y: 2 * y - y.detach()], ids=["cut", "doubled"])
@pytest.mark.parametrize("kind", REPEATED)
def test_gradients_of_equal_rows_and_of_equal_tokens_are_tried_too(
    kind: str, effect: Callable[[Tensor], Tensor]
) -> None:
    make = lambda: _UnderACondition(nn.Linear(8, 8), REPEATED[kind], effect)  # noqa: E731
    (finding,) = run_check(registry.load("GRD101"), embedding_subject(make)).findings
    assert f"where all of the input is {kind}" in finding.message


ROWS = {
    "the same in every token": (lambda x: bool((x == x[:, :1]).all()), "embeddings"),
    "ended by its first token": (
        lambda x: bool((x[:, 0] == x[:, -1]).all() and (x[:, 0] != x[:, 1]).any(-1).all() and x[:, 0].any(-1).all()),
        "embeddings",
    ),
    "in ascending order": (lambda x: bool((x.diff(dim=1) > 0).all()), "tokens"),
    "in descending order": (lambda x: bool((x.diff(dim=1) < 0).all()), "tokens"),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("code", ["FWD203", "FWD204"])
def test_rows_that_are_made_of_their_first_token_are_tried_too(code: str, kind: str) -> None:
    holds, given = ROWS[kind]
    condition = lambda x: x.shape[1] > 1 and holds(x)  # noqa: E731
    layer = (lambda: nn.Embedding(40, 8)) if given == "tokens" else lambda: nn.Linear(8, 8)
    subject = embedding_subject(lambda: _UnderACondition(layer(), condition, MIXES[code]))
    if given == "tokens":
        subject = replace(subject, input="tokens", width=40)
    (finding,) = run_check(registry.load(code), subject).findings
    assert f"where all of the input is {kind}" in finding.message


@pytest.mark.parametrize("code", MIXES)
def test_ids_of_other_kinds_are_tried_too(code: str) -> None:
    class OfFewIds(nn.Embedding):
        def forward(self, x: Tensor) -> Tensor:
            return MIXES[code](super().forward(x)) if x.max() < 3 else super().forward(x)

    subject = replace(embedding_subject(lambda: OfFewIds(40, 8)), input="tokens", width=40)
    (finding,) = run_check(registry.load(code), subject).findings
    assert "where all of the input is of few ids" in finding.message


@pytest.mark.parametrize("most", [1500, 40_000])
def test_gradients_of_many_tokens_in_all_are_tried_too(most: int) -> None:
    has_many = lambda x: x.shape[0] * x.shape[1] > most and x.shape[0] > 1  # noqa: E731
    cut = lambda y: (y + y.detach()) / 2  # noqa: E731
    result = run_check(
        registry.load("GRD105"), embedding_subject(lambda: _UnderACondition(nn.Linear(8, 8), has_many, cut))
    )
    assert ["first in detach" in finding.message for finding in result.findings] == [True] * (most < 2000)
    assert result.verdict is (Verdict.FAIL if most < 2000 else Verdict.PASS)


class _Mode(nn.Module):
    """One of torch's layers that depend on the mode, and a scale that does too, or does not."""

    def __init__(self, layer: nn.Module, scale: float) -> None:
        super().__init__()
        self.layer, self.scale = layer, scale

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x, x, x, need_weights=False)[0] if hasattr(self.layer, "num_heads") else self.layer(x)
        return y * self.scale if self.training else y


class _Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mT


OF_TORCH = {
    "dropout": lambda: nn.Dropout(0.3),
    "attention": lambda: nn.MultiheadAttention(8, 2, 0.1, batch_first=True),
    "batch norm": lambda: nn.Sequential(_Turned(), nn.BatchNorm1d(8), _Turned()),
}


@pytest.mark.parametrize("scale", [1.0, 0.9])
@pytest.mark.parametrize("name", OF_TORCH)
def test_layers_of_torch_that_depend_on_the_mode_hide_nothing_that_does(name: str, scale: float) -> None:
    result = run_check(registry.load("FWD207"), embedding_subject(lambda: _Mode(OF_TORCH[name](), scale)))
    assert [finding.where.function for finding in result.findings] == ["forward"] * (scale != 1.0)


class _DropsRows(nn.Linear):
    """Stochastic depth: most rows are kept and made larger, so that few draws differ."""

    def __init__(self, by_python: bool) -> None:
        super().__init__(8, 8)
        self.by_python = by_python

    def forward(self, x: Tensor) -> Tensor:
        draw = random.random() if self.by_python else float(torch.rand(()))
        return x + super().forward(x) * (float(draw > 0.05) / 0.95 if self.training else 1.0)


@pytest.mark.parametrize("by_python", [False, True])
def test_a_rare_draw_in_training_is_no_change_of_mode(by_python: bool) -> None:
    subject = embedding_subject(lambda: _DropsRows(by_python))
    assert run_check(registry.load("FWD207"), subject).verdict is Verdict.PASS


class _Views(nn.Linear):
    """A linear layer that refuses an input whose memory it cannot view as rows."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(-1, 8)).view(x.shape)


class _Refuses(nn.Linear):
    """A linear layer that raises, with these words, at an input of which something holds."""

    def __init__(self, holds: Callable[[Tensor], bool], words: str) -> None:
        super().__init__(8, 8)
        self.holds, self.words = holds, words

    def forward(self, x: Tensor) -> Tensor:
        if self.holds(x):
            raise ValueError(self.words)  # here
        return super().forward(x)


def _is_turned(x: Tensor) -> bool:
    return x.stride(0) < x.stride(1)


@pytest.mark.parametrize(
    ("layout", "holds", "words"),
    [
        ("view", Tensor._is_view, "a view"),
        ("offset", lambda x: x.storage_offset() > 0, "the storage must be its own, and contiguous"),
        ("transposed", _is_turned, "cannot serve this"),
        ("strided", lambda x: x.stride(-1) > 1, "index 8 is out of bounds"),
        ("expanded", lambda x: x.stride(0) == 0, "cannot serve this"),
    ],
)
def test_a_layout_that_raises_is_found_in_its_line(layout: str, holds: Callable[[Tensor], bool], words: str) -> None:
    (finding,) = run_check(registry.load("FWD205"), embedding_subject(lambda: _Refuses(holds, words))).findings
    assert finding.evidence["layout"] == layout
    assert is_marked(finding.where.file, finding.where.line)


class _CutsTurned(nn.Linear):
    """A linear layer that loses a token of transposed input."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y[:, 1:] if _is_turned(x) else y


def test_a_layout_that_changes_the_shape_of_the_output_is_found() -> None:
    (finding,) = run_check(registry.load("FWD205"), embedding_subject(lambda: _CutsTurned(8, 8))).findings
    assert "with transposed input the subject gives an output of another shape" in finding.message
    assert finding.where.file == __file__


def test_a_layout_that_is_refused_by_name_is_a_note() -> None:
    subject = embedding_subject(lambda: _Refuses(_is_turned, "q must be contiguous"))
    result = run_check(registry.load("FWD205"), subject)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert result.notes[0] == "transposed input is refused: ValueError: q must be contiguous"


@pytest.mark.parametrize("code", ["FWD205", "FWD208"])
def test_an_input_that_is_refused_for_its_strides_is_no_finding(code: str) -> None:
    result = run_check(registry.load(code), embedding_subject(lambda: _Views(8, 8)))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


class _OffAtOneLength(nn.Linear):
    """A linear layer that is another one at a length of no round number."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 1.01 if x.shape[1] == 41 else y


@pytest.mark.parametrize("seed", [0, 1])
def test_a_prefix_of_any_length_may_be_the_one_that_differs(seed: int) -> None:
    subject = embedding_subject(lambda: _OffAtOneLength(8, 8), seed)
    (finding,) = run_check(registry.load("FWD202"), subject).findings
    assert "the first 41 tokens alone" in finding.message
    assert finding.where.function == "forward"


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("code", CODES)
def test_healthy_nsa_is_silent_whatever_the_seed(small, code: str, seed: int) -> None:
    assert run_check(registry.load(code), replace(small, seed=seed, profile="smoke")).verdict is Verdict.PASS


class _NormsByBatch(nn.Module):
    """A batch norm, which mixes rows in training as it is meant to, and perhaps a sum that mixes them too."""

    def __init__(self, sums: bool, keeps: bool = True) -> None:
        super().__init__()
        self.norm, self.sums = nn.BatchNorm1d(8, track_running_stats=keeps), sums

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.mT).mT
        return y + 0.1 * x.sum(0, keepdim=True) if self.sums and self.training else y


@pytest.mark.parametrize(
    ("sums", "keeps", "is_found"), [(False, True, False), (True, True, True), (False, False, True)]
)
def test_rows_that_a_batch_norm_mixes_in_training_are_a_note(sums: bool, keeps: bool, is_found: bool) -> None:
    result = run_check(registry.load("FWD203"), embedding_subject(lambda: _NormsByBatch(sums, keeps)))
    assert bool(result.findings) is is_found
    assert any("rows mix in norm" in note for note in result.notes) is keeps


@pytest.mark.parametrize(("keeps", "is_found"), [(True, False), (False, True)])
def test_tokens_that_a_batch_norm_mixes_in_training_alone_are_a_note(keeps: bool, is_found: bool) -> None:
    result = run_check(registry.load("FWD201"), embedding_subject(lambda: _NormsByBatch(sums=False, keeps=keeps)))
    assert bool(result.findings) is is_found
    assert any("tokens mix in norm" in note for note in result.notes) is keeps
