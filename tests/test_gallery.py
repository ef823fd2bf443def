"""The gallery is what it claims to be, its score is counted rightly, and six of its cases come out as they should."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import own_score, registry
from nsa_doctor.core.share import Share
from nsa_doctor.subject.contract import Subject
from tests.gallery import recall
from tests.gallery.cases import FAMILIES, HEALTHY, Case, read_cases
from tests.gallery.examination import Examination, Found, examine, read_report
from tests.gallery.hosts import conv_mixer, gpt, llama, recurrence, three_branch, tiled_block
from tests.gallery.score import Score, render

CASES = read_cases()
BUGS = [case for case in CASES if case.family != HEALTHY]
HOSTS: dict[str, tuple[Callable[[], nn.Module], int, bool]] = {  # how to build it, width, takes token ids
    "llama": (llama.Llama, 61, True),
    "gpt": (gpt.GPT, gpt.VOCAB, True),
    "three_branch": (three_branch.SparseLM, three_branch.VOCAB, True),
    "conv_mixer": (conv_mixer.ConvMixer, 24, False),
    "recurrence": (recurrence.RecurrentStack, recurrence.DIM, False),
    "tiled_block": (tiled_block.AttentionBlock, 24, False),
}
SAMPLE = (
    "causal_mask_off_by_one",
    "rows_that_see_no_block",
    "weights_multiplied_in_place",
    "causal_average",
    "lstm",
    "zero_output_projections",
)
QUICK = ("causal_mask_off_by_one", "causal_average")  # one faulty, one healthy


def build(case: Case) -> nn.Module:
    made = case.load().make()
    return made.build(0) if isinstance(made, Subject) else made


def test_there_are_enough_cases_of_each_kind() -> None:
    assert all(sum(case.family == family for case in BUGS) >= 9 for family in FAMILIES)
    assert len(BUGS) >= 60
    assert len(CASES) - len(BUGS) >= 30


def test_bugs_are_spread_over_the_hosts() -> None:
    texts = [case.file.read_text(encoding="utf-8") for case in BUGS]
    assert all(sum(f"tests.gallery.hosts.{host} import" in text for text in texts) >= 8 for host in HOSTS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_says_what_it_is(case: Case) -> None:
    assert case.symptom.endswith("."), "the first lines say what one sees"
    assert "\n" not in case.symptom
    paths = {path for path, _ in build(case).named_modules()}
    assert set(case.modules) <= paths
    assert bool(case.modules) == bool(case.lines) == (case.family != HEALTHY)


@pytest.mark.parametrize("case", BUGS, ids=lambda case: case.name)
def test_a_bug_is_known_by_codes_that_exist(case: Case) -> None:
    assert case.codes
    assert case.codes <= set(registry.entries())


def test_names_are_used_once() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("length", [1, 2, 9, 64, 65, 129])
def test_a_host_is_finite_and_causal_and_keeps_rows_apart(host: str, length: int) -> None:
    make, width, takes_tokens = HOSTS[host]
    model = make().double().eval()
    shape = (2, length + 5)
    x = torch.randint(width, shape) if takes_tokens else torch.randn(*shape, width, dtype=torch.float64)
    y = model(x)
    assert torch.isfinite(y).all()
    close(model(x[:, :length]), y[:, :length])
    close(model(x[1:]), y[1:])


@pytest.mark.parametrize("host", HOSTS)
def test_every_parameter_of_a_host_gets_a_finite_gradient(host: str) -> None:
    make, width, takes_tokens = HOSTS[host]
    model = make()
    model(torch.randint(width, (2, 40)) if takes_tokens else torch.randn(2, 40, width)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("host", [llama, recurrence], ids=["llama", "recurrence"])
def test_decode_of_a_host_equals_its_prefill(host) -> None:
    subject = host.subject(HOSTS[host.__name__.rpartition(".")[2]][0], "host")
    model = subject.build(0).double().eval()
    ids = subject.input == "tokens"
    x = torch.randint(subject.width, (2, 21)) if ids else torch.randn(2, 21, subject.width, dtype=torch.float64)
    output, cache = subject.prefill(model, x[:, :6])
    outputs = [output]
    for part in x[:, 6:].split([1, 1, 5, 8], dim=1):
        output, cache = subject.step(model, part, cache)
        outputs.append(output)
    close(torch.cat(outputs, dim=1), model(x))


def close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [(0, 10, 0.0, 0.2775), (8, 10, 0.4902, 0.9433), (60, 60, 0.9398, 1.0), (57, 60, 0.8630, 0.9829)],
)
def test_intervals_are_wilsons(hits: int, total: int, low: float, high: float) -> None:
    assert Share(hits, total).interval == pytest.approx((low, high), abs=1e-4)


def case_of(family: str, **kwargs) -> Case:
    return Case(**{"name": "a", "family": family, "file": Path("a.py"), "symptom": "", "modules": ("m",)} | kwargs)


def found(code: str = "FWD201", **kwargs) -> Found:
    return Found(code=code, message="wrong", **kwargs)


def test_a_score_counts_what_was_found_and_where() -> None:
    bug, well = case_of("numerics", lines=(3,)), case_of(HEALTHY, modules=())
    right = found("NAN101", module="m", file="/x/a.py", line=3)
    wrong = found("NAN101", module="n", file="/x/b.py", line=3)
    score = Score(
        (
            Examination(case=bug, exit_code=1, seconds=1.0, findings=(right, found(module="n"))),
            Examination(case=bug, exit_code=1, seconds=1.0, findings=(wrong,)),
            Examination(case=bug, exit_code=3, seconds=1.0),
            Examination(case=bug, exit_code=None, seconds=60.0),
            Examination(case=well, exit_code=0, seconds=1.0),
            Examination(case=well, exit_code=3, seconds=1.0),
            Examination(case=well, exit_code=1, seconds=1.0, findings=(found(),)),
        )
    )
    assert score.recall("numerics") == score.recall() == Share(2, 4)
    assert score.recall("hang_and_throughput") == Share(0, 0)
    assert score.right_module == score.right_line == Share(1, 2)
    assert [each.exit_code for each in score.alarms] == [1]
    assert score.findings_per_bug == [2, 1]
    text = "\n".join(render(score))
    assert "missed: 2" in text
    assert "false alarms: 1" in text
    assert "wrong module: 1" in text
    assert score.as_json()["healthy_verdicts"] == {"0": 1, "3": 1, "1": 1}


def examined(*findings: Found, codes: frozenset[str] = frozenset({"FWD201"}), **kwargs) -> Examination:
    return Examination(case=case_of("numerics", codes=codes, **kwargs), exit_code=1, seconds=1.0, findings=findings)


def test_what_ships_has_the_recall_of_each_family_of_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bugs = [
        case_of("numerics", codes=frozenset({"NAN101", "GRD101"})),
        case_of("numerics", codes=frozenset({"NAN102"})),
    ]
    hit = Examination(case=bugs[0], exit_code=1, seconds=1.0, findings=(found("NAN101"),))
    score = Score((hit, Examination(case=bugs[1], exit_code=0, seconds=1.0)))
    (tmp_path / "score.json").write_text(json.dumps(score.shipped("1.2", "abc", "2026-01-02")))
    monkeypatch.setattr(own_score, "files", lambda package: tmp_path)
    read = own_score.own_score()
    assert (read.doctor, read.date) == ("1.2, commit abc", "2026-01-02")
    assert {family: (rate.hits, rate.of) for family, rate in read.families.items()} == {"GRD": (1, 1), "NAN": (1, 2)}


def test_no_part_of_a_score_ships(capsys: pytest.CaptureFixture[str]) -> None:
    assert recall.main(["--ship", "--family", "numerics"]) == 2
    assert "--ship is for a score of every case" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("findings", "is_right"),
    [
        ((found("PRF101", module="n"),), False),
        ((found("PRF101", module="n"), found("PRF101", module="m")), True),
        ((found("PRF101", module="n"), found("FWD201", module="n")), True),
        ((found("FWD206", module="n", also=("FWD204", "FWD201")),), True),
        ((), False),
    ],
    ids=["another illness", "its module second", "its code second", "its code beside another", "nothing"],
)
def test_a_bug_is_rightly_found_by_its_module_or_its_illness(findings: tuple[Found, ...], is_right: bool) -> None:
    assert examined(*findings).is_rightly_found is is_right
    score = Score((examined(*findings),))
    assert score.rightly_found() == score.rightly_found("numerics") == Share(int(is_right), 1)
    assert score.as_json()["rightly_found_total"]["hits"] == int(is_right)
    is_wrong = bool(findings) and not is_right
    assert bool(score.as_json()["wrong_illness"]) == is_wrong
    assert ("neither module nor illness" in "\n".join(render(score))) == is_wrong


def test_an_unknown_place_is_not_the_subject_itself() -> None:
    nowhere, itself = found("PRF101"), found("PRF101", module_class="Model")
    assert not examined(nowhere, modules=("",)).is_rightly_found
    assert not examined(nowhere, modules=("",)).names_module
    assert examined(itself, modules=("",)).names_module


def test_other_checks_that_saw_the_same_are_read() -> None:
    where = {"module": "m", "module_class": "M", "file": "", "line": 0}
    finding = {"code": "FWD201", "message": "x", "where": where, "also": ["FWD202"]}
    out = json.dumps({"results": [{"code": "FWD201", "verdict": "FAIL", "findings": [finding]}]})
    read = read_report(case_of("numerics"), 1, 1.0, out, "")
    assert read.findings == (Found(code="FWD201", message="x", module="m", module_class="M", also=("FWD202",)),)


def test_a_report_nobody_can_read_is_no_finding() -> None:
    read = read_report(case_of("numerics"), 4, 1.0, "", "Traceback\ninternal error: x")
    assert not read.is_found
    assert read.trouble == ("internal error: x",)


def test_a_check_that_ran_out_of_time_counts_as_a_finding() -> None:
    out = '{"results": [{"code": "HNG101", "verdict": "TIMEOUT", "reason": "S=3", "findings": []}]}'
    read = read_report(case_of("hang_and_throughput"), 1, 1.0, out, "")
    assert [each.code for each in read.findings] == ["HNG101"]


def test_an_examination_that_takes_too_long_is_ended() -> None:
    (case,) = (case for case in CASES if case.name == SAMPLE[0])
    ended = examine(case, seconds=0.05)
    assert ended.exit_code is None
    assert not ended.is_found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.full]) for name in SAMPLE]
)
def test_a_sample_of_the_gallery_comes_out_right(name: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    examined = examine(case, profile="smoke", seconds=100)
    assert not examined.trouble
    if case.family == HEALTHY:
        assert examined.exit_code in (0, 3)
        assert examined.findings == ()
    else:
        assert examined.names_module, examined.findings
        assert len(examined.findings) <= 3
