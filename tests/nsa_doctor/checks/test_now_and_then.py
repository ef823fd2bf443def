"""What goes wrong now and then is found, with what it takes, in its line; what may differ now and then is not."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from nsa_doctor.adapters.load import load_subject
from nsa_doctor.checks._shared import elsewhere
from nsa_doctor.core import registry
from nsa_doctor.core.check import Profile
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.model import second_interpreter
from nsa_doctor.probes.model.fork import CopyDiedError, in_fork, with_another_number
from nsa_doctor.probes.model.perform import Conditions
from nsa_doctor.probes.model.second_interpreter import FIRST_OF_ALL
from nsa_doctor.probes.numerics.local import LocalMeasurer
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.handlers import under
from nsa_doctor.worker.run_check import run_check
from tests.gallery.faulty.by_process import BY_HASH, BY_PROCESS
from tests.gallery.faulty.now_and_then import BY_BATCH, CASES
from tests.gallery.faulty.now_and_then_healthy import NAMES
from tests.nsa_doctor.checks.warm_interpreters import WarmInterpreters
from tests.nsa_doctor.conftest import is_marked

CODES = ("FWD103", "FWD204", "FWD210", "GRD104", "GRD105")
WITH_NOTES = {"DrawsForNothing", "FallingTemperature", "OwnGenerator"}
PLACED_AT_ITS_MODULE = {"InputNeedsGradient", "OverwritesLater", "WrongAtEverySecondBackward"}
Faulty = Callable[..., LocalMeasurer]


def checked(faulty: Faulty, name: str, code: str, seed: int = 0, profile: Profile = "quick") -> Result:
    subject = replace(faulty(name).subject, max_length=211, seed=seed, profile=profile)
    return run_check(registry.load(code), subject)


@pytest.fixture(scope="module")
def interpreters() -> Iterator[WarmInterpreters]:
    warm = WarmInterpreters()
    yield warm
    warm.close()


@pytest.fixture
def warm(interpreters: WarmInterpreters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Second interpreters need not import torch, where their start is not the point."""
    monkeypatch.setattr(second_interpreter, "run", interpreters.run)


@pytest.mark.parametrize("name", CASES)
def test_what_goes_wrong_now_and_then_is_found_in_its_line(faulty: Faulty, name: str) -> None:
    code, cause = CASES[name]
    (finding,) = checked(faulty, f"now_and_then:{name}", code).findings
    assert finding.evidence["cause"] == cause, finding.message
    assert finding.where.module_class == f"_{name}"
    assert name in PLACED_AT_ITS_MODULE or is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize(("name", "cause"), [("half_at_every_ninth", "count"), ("less_each_time", "again")])
def test_a_gradient_that_a_count_in_a_buffer_changes_is_found_in_its_line(
    faulty: Faulty, name: str, cause: str
) -> None:
    (finding,) = checked(faulty, f"counted_in_a_buffer:{name}", "GRD104").findings
    assert (finding.evidence["cause"], finding.evidence["symptom"]) == (cause, "gradient"), finding.message
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("name", BY_BATCH)
def test_what_goes_wrong_at_one_batch_is_found_in_its_line(faulty: Faulty, name: str) -> None:
    (finding,) = checked(faulty, f"now_and_then:{name}", BY_BATCH[name]).findings
    assert finding.where.module_class == f"_{name}"
    assert is_marked(finding.where.file, finding.where.line)


def healthy_ones() -> Iterator[Any]:
    """Every check on every module by many seeds; in the short run by one, and by turns every fourth pair of them."""
    for number, (name, code) in enumerate(product(NAMES, CODES)):
        for seed in range(6):
            is_long = seed > 0 or number % 4 > 0
            yield pytest.param(name, code, seed, marks=[pytest.mark.full] * is_long)


@pytest.mark.parametrize(("name", "code", "seed"), list(healthy_ones()))
def test_what_may_differ_now_and_then_is_left_alone(faulty: Faulty, name: str, code: str, seed: int) -> None:
    result = checked(faulty, f"now_and_then_healthy:{name}", code, seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason
    assert not result.notes or name in WITH_NOTES


def test_a_probability_is_measured(faulty: Faulty) -> None:
    (finding,) = checked(faulty, "now_and_then:NanByDraw", "FWD103").findings
    assert finding.evidence["num_tried"] == 64
    assert 5 < float(str(finding.evidence["num_seen"])) < 25
    assert "draws of random numbers" in finding.message


def test_state_that_training_moves_is_a_note(faulty: Faulty) -> None:
    result = checked(faulty, "now_and_then_healthy:FallingTemperature", "GRD104")
    assert [note.startswith("training passes change the output of later ones") for note in result.notes] == [True]


@pytest.mark.parametrize("name", [*BY_PROCESS, "GradientByProcess"])
def test_what_depends_on_the_process_or_the_time_is_found_in_its_line(faulty: Faulty, name: str) -> None:
    (finding,) = checked(faulty, f"by_process:{name}", "FWD211", profile="smoke").findings
    assert finding.where.module_class == f"_{name}"
    assert is_marked(finding.where.file, finding.where.line)


def test_the_number_of_the_process_is_varied_where_no_copy_has_another(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "in_fork", lambda call, _seconds: call())
    (finding,) = checked(faulty, "by_process:FactorByProcess", "FWD211", profile="smoke").findings
    assert finding.evidence["way"] == "in another process"


def test_a_signal_to_itself_reaches_the_process_whatever_number_it_has() -> None:
    def ends_itself() -> dict[str, Any]:
        with with_another_number(1):
            os.kill(os.getpid(), signal.SIGKILL)
        return {}

    with pytest.raises(CopyDiedError, match="SIGKILL"):
        in_fork(ends_itself, 60)


def test_what_ends_every_copy_of_the_process_is_not_said_of_the_subject(faulty: Faulty) -> None:
    result = checked(faulty, "by_process:DiesInEveryCopy", "FWD211", profile="smoke")
    assert (result.verdict, result.findings) == (Verdict.SKIP, ())
    assert "SIGABRT" in result.reason


@pytest.mark.parametrize(
    "name",
    [
        *BY_HASH[:1],
        "DiesByHash",
        "FactorByFewHashes",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("OrderOfSet",)),
    ],
)
def test_what_depends_on_the_seed_of_hashes_is_found(
    faulty: Faulty, name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name != BY_HASH[0]:  # whose interpreters are started as a user's are
        request.getfixturevalue("warm")
    if name == "FactorByFewHashes":  # the second of these makes it wrong
        monkeypatch.setattr(elsewhere, "_HASH_SEEDS", (2, 3))
    (finding,) = checked(faulty, f"by_process:{name}", "FWD211").findings
    assert finding.evidence["way"] == "in another interpreter"
    assert name == "FactorByHash" or is_marked(finding.where.file, finding.where.line)


@pytest.mark.usefixtures("warm")
def test_the_line_that_cuts_a_gradient_in_another_interpreter_is_named(faulty: Faulty) -> None:
    (finding,) = checked(faulty, "by_process:GradientByHash", "FWD211").findings
    assert (finding.where.module_class, is_marked(finding.where.file, finding.where.line)) == ("_GradientByHash", True)


@pytest.mark.usefixtures("warm")
def test_what_a_module_in_half_precision_leaves_to_others_is_found(faulty: Faulty) -> None:
    (finding,) = checked(faulty, "now_and_then:TableOfTheProcess", "FWD211").findings
    assert str(finding.evidence["way"]).endswith("built there behind one called in bfloat16")


@pytest.mark.usefixtures("warm")
def test_what_the_first_module_of_a_process_does_alone_is_found_in_its_line(faulty: Faulty) -> None:
    (finding,) = checked(faulty, "by_process:FirstOfTheProcess", "FWD211").findings
    assert finding.evidence["way"] == f"in another interpreter{FIRST_OF_ALL}"
    assert is_marked(finding.where.file, finding.where.line)


def test_a_process_that_torch_lets_nobody_copy_is_varied_in_place(faulty: Faulty) -> None:
    (finding,) = checked(faulty, "by_process:HasThreadsOfAutograd", "FWD211", profile="smoke").findings
    assert "tokens differ" in finding.message
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.usefixtures("warm")
def test_what_is_kept_of_earlier_weights_is_no_matter_of_the_process(faulty: Faulty) -> None:
    assert checked(faulty, "by_process:KeepsItsFirstGain", "FWD211").verdict is Verdict.PASS
    assert checked(faulty, "by_process:KeepsItsFirstGain", "FWD221").verdict is Verdict.FAIL


@pytest.mark.parametrize("name", NAMES)
def test_another_process_gives_the_same(faulty: Faulty, name: str) -> None:
    result = checked(faulty, f"now_and_then_healthy:{name}", "FWD211", profile="smoke")
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason


@pytest.mark.parametrize(
    ("name", "num_seeds"),
    [
        ("SumOverSet", 2),
        *(pytest.param(name, 5, marks=pytest.mark.full) for name in ("SumOverSet", "DrawnWithoutSeed", "Dropout")),
    ],
)
@pytest.mark.usefixtures("warm")
def test_another_interpreter_gives_the_same(
    faulty: Faulty, name: str, num_seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "_HASH_SEEDS", elsewhere._HASH_SEEDS[:num_seeds])
    result = checked(faulty, f"now_and_then_healthy:{name}", "FWD211")
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason


def test_draws_that_change_nothing_are_a_note_with_their_line(faulty: Faulty) -> None:
    (note,) = checked(faulty, "now_and_then_healthy:DrawsForNothing", "FWD210").notes
    file, line = note.rpartition("(")[2].rstrip(")").rpartition(" at ")[2].split(":")
    assert "torch's generator" in note
    assert "randn_like" in Path(file).read_text(encoding="utf-8").splitlines()[int(line) - 1]


@pytest.mark.usefixtures("warm")
def test_another_interpreter_has_the_module_in_the_dtype_that_is_asked_for(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "_HASH_SEEDS", elsewhere._HASH_SEEDS[:1])
    subject = replace(faulty("now_and_then_healthy:SumOverSet").subject, max_length=211)
    result = run_check(registry.load("FWD211"), under(subject, Conditions(), "quick", "bfloat16"))
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason


IN_BLOCKS = '''
import torch
from torch import nn


class Model(nn.Module):
    """Serves whole blocks of eight alone, and more than one of them."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x):
        blocks = x.view(x.shape[0], -1, 8, x.shape[-1])
        return self.mix(blocks.cumsum(2)).flatten(1, 2)
'''


def test_another_interpreter_fills_sequences_up_as_this_one_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in_blocks_of_eight.py").write_text(IN_BLOCKS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    request = SubjectRequest(spec="in_blocks_of_eight:Model", input="embeddings", width=8, explore=True)
    subject = replace(load_subject(request), max_length=211)
    assert subject.whole_multiples_of == 8
    result = run_check(registry.load("FWD211"), subject)
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason
