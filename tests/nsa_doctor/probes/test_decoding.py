"""Decoding: every illness of a cache is found in the module that has it, and healthy decoders are left alone."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.gallery.cases import read_cases
from tests.gallery.faulty.nsa_like import decoder

CODES = [code for code in sorted(registry.manuals()) if code.startswith("DEC")]
FAULTY = {
    "positions restart": "DEC101",
    "window off by one": "DEC101",
    "reads ahead": "DEC101",
    "chunk sees itself whole": "DEC102",
    "memory kept": "DEC105",
    "prompt reversed": "DEC106",
    "rows mix": "DEC107",
    "answers in the cache": "DEC107",
}
IN_THE_ATTENTION = {"positions restart", "window off by one", "reads ahead", "chunk sees itself whole"}


@pytest.mark.parametrize(("illness", "code"), FAULTY.items(), ids=lambda value: value.replace(" ", "-"))
def test_an_illness_of_the_cache_is_found(illness: str, code: str) -> None:
    result = run_check(registry.load(code), decoder(illness))
    assert result.verdict is Verdict.FAIL, result.reason
    if illness in IN_THE_ATTENTION:
        assert result.findings[0].where.module == "attention"
        assert result.findings[0].where.module_class == "CachedAttention"


def test_memory_that_holds_no_token_is_seen_to_be_read() -> None:
    result = run_check(registry.load("DEC103"), decoder("reads ahead"))
    assert result.verdict is Verdict.FAIL
    assert "3000 in memory of the cache" in result.findings[0].message


@pytest.mark.parametrize("code", CODES)
def test_a_healthy_decoder_is_left_alone(code: str) -> None:
    result = run_check(registry.load(code), decoder())
    assert result.verdict in (Verdict.PASS, Verdict.SKIP), result.findings


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 10)])
def test_nsa_decodes_right_whatever_the_seed(seed: int, small: Subject) -> None:
    subject = replace(small, seed=seed, max_length=40)
    found = {code: run_check(registry.load(code), subject) for code in CODES}
    assert {code: result.findings for code, result in found.items() if result.verdict is not Verdict.PASS} == {}


def test_steps_that_answer_for_the_last_token_alone_are_compared_there() -> None:
    def last_alone(module, x):
        output, cache = healthy.prefill(module, x)
        return output[:, -1:], cache

    healthy = decoder()
    assert run_check(registry.load("DEC106"), replace(healthy, prefill=last_alone)).verdict is Verdict.PASS
    faulty = replace(healthy, prefill=lambda module, x: (lambda out, cache: (2 * out, cache))(*last_alone(module, x)))
    assert run_check(registry.load("DEC106"), faulty).verdict is Verdict.FAIL


def test_a_cache_that_holds_zeros_by_nan_alone_is_a_note() -> None:
    healthy = decoder()

    def masked(module, x, cache):
        output, cache = healthy.step(module, x, cache)
        unwritten = cache["memory"][:, :, cache["length"] :]
        return output + (unwritten * 0).sum(), cache

    result = run_check(registry.load("DEC103"), replace(healthy, step=masked))
    assert result.verdict is Verdict.PASS
    assert "NaN in memory" in result.notes[0]


def test_a_cache_that_works_in_one_dtype_alone_is_examined_in_it() -> None:
    healthy = decoder()

    def narrow(module, x, cache):
        if x.dtype != torch.float32:
            raise TypeError("this cache holds float32")
        return healthy.step(module, x, cache)

    assert run_check(registry.load("DEC101"), replace(healthy, step=narrow)).verdict is Verdict.PASS


class Started(nn.Module):
    """Adds a term to each step that `bias`, which starts at zero, lets through."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.linear, self.bias = nn.Linear(8, 8), nn.Parameter(torch.full((8,), start))

    def forward(self, x: torch.Tensor, is_step: bool = False) -> torch.Tensor:
        return self.linear(x) + is_step * self.bias


@pytest.mark.parametrize(("start", "said"), [(1.0, "as the module starts"), (0.0, "moved away from their start")])
def test_a_departure_in_decoding_says_with_which_weights_it_shows(start: float, said: str) -> None:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Started(start)

    subject = Subject(
        name="started",
        build=build,
        forward=lambda module, x: module(x),
        prefill=lambda module, x: (module(x), None),
        step=lambda module, x, cache: (module(x, is_step=True), cache),
        input="embeddings",
        width=8,
    )
    (finding,) = run_check(registry.load("DEC101"), subject).findings
    assert finding.message.endswith(f"with weights {said}")


@pytest.mark.parametrize(
    "name", ["groups_repeated_in_decode", "causal_flag_with_one_query", "positions_restart_in_decode"]
)
def test_the_line_of_a_step_that_computes_something_else_is_named(name: str) -> None:
    case = next(case for case in read_cases() if case.name == name)
    (finding,) = run_check(registry.load("DEC101"), case.load().make()).findings
    assert (finding.where.file, finding.where.line) == (str(case.file), case.lines[0])
    assert finding.where.module in case.modules
