"""What a verdict rests on: counted where it happened, with the doctor's measured recall and what was not examined."""

import json
from dataclasses import replace

import pytest

from nsa_doctor.cli.main import serve
from nsa_doctor.core.finding import Report, Result, Verdict
from nsa_doctor.core.measurement import Measurement, Point
from nsa_doctor.core.own_score import OwnScore, Rate
from nsa_doctor.policy.power import power_of
from nsa_doctor.render.power import power_texts
from tests.nsa_doctor.conftest import HERE

SCORE = OwnScore(
    "abc", "corpus", Rate(9, 10, 59.6, 98.2), Rate(0, 1, 0, 90), "1.0", "2026-01-02", {"FWD": Rate(3, 4, 30, 95)}
)
CALLS = {
    "calls": 5,
    "lengths": [3, 70],
    "batch_sizes": [1, 4],
    "seeds": [0, 1],
    "dtypes": ["float64"],
    "modes": ["eval"],
}


def report(*results, **parts):
    measured = (Measurement(point=Point(length=17, dtype="bfloat16")),)
    facts = {"command": "go-no-go", "subject": {"name": "x"}, "options": {"seed": 0}, "environment": {"device": "cpu"}}
    return Report(**facts, results=results, measurements=measured, **parts)


def result(code, verdict=Verdict.PASS, **parts):
    return Result(code=code, name="some-name", verdict=verdict, **parts)


IDLE = result("DEC101", Verdict.SKIP, reason="it offers no step", is_required=False)


def test_calls_of_checks_and_points_of_the_sweep_are_counted_together():
    power = power_of(report(result("FWD201", examined=CALLS), IDLE), (), SCORE)
    assert (power.checks, power.calls, power.lengths, power.batch_sizes) == (1, 6, (3, 17, 70), (1, 4))
    assert (power.dtypes, power.modes, power.seeds) == (("float64", "bfloat16"), ("train", "eval"), (0, 1))


def test_recall_is_that_of_the_families_that_were_examined():
    power = power_of(report(result("FWD201"), result("GRD101"), IDLE), (), SCORE)
    assert [(each.family, each.hits, each.of) for each in power.recall] == [
        ("all", 9, 10),
        ("FWD", 3, 4),
        ("GRD", 0, 0),
    ]
    text = " ".join(power_texts(power))
    assert (
        "planted bugs 9 of 10 (at least 60 %), FWD 3 of 4 (at least 30 %), for GRD alone not measured (1.0, commit "
        "abc, 2026-01-02)" in text
    )


def test_real_bugs_that_it_had_not_seen_stand_apart():
    score = replace(SCORE, unseen=Rate(11, 20, 34.2, 74.2, "released packages, 2026-01-03"))
    text = " ".join(power_texts(power_of(report(result("FWD201")), (), score)))
    words = "real bugs that it had not seen 11 of 20 (at least 34 %; released packages, 2026-01-03)"
    assert f"planted bugs 9 of 10 (at least 60 %), {words}, FWD 3 of 4" in text
    text = " ".join(power_texts(power_of(report(result("FUN101")), (), score)))
    assert "not seen" not in text


def test_a_recall_that_was_measured_by_itself_says_how():
    functions = Rate(7, 8, 52.9, 97.8, "wrong functions, drawn from 166, profile smoke, commit def, 2026-11-24")
    score = replace(SCORE, families={"FUN": functions})
    power = power_of(report(result("FUN101")), (), score)
    assert (
        "measured recall: FUN 7 of 8 (at least 53 %; wrong functions, drawn from 166, profile smoke, commit def, "
        "2026-11-24), planted bugs not measured"
    ) in " ".join(power_texts(power))


def test_what_was_not_given_or_is_not_offered_was_not_examined():
    power = power_of(report(result("FWD201"), IDLE), ("run",), SCORE)
    assert power.not_examined == ("data", "checkpoints", "decoding (not offered)")


@pytest.mark.parametrize("reason", ["not finished within 90 s", "given up after 3 hangs or deaths"])
def test_what_time_did_not_allow_is_said(reason):
    power = power_of(report(result("FWD209", Verdict.SKIP, reason=reason)), (), SCORE)
    assert power.cut_short == (f"FWD209: {reason}",)
    assert power.checks == 0


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ((1, 2, 5), "3 lengths 1 to 5,"),
        ((*range(1, 257), 4141), "257 lengths 1 to 4141 (each to 256),"),
        (tuple(range(2, 40)), "38 lengths 2 to 39,"),
    ],
)
def test_up_to_where_no_length_is_left_out_is_said(lengths, said):
    power = replace(power_of(report(result("FWD201")), (), SCORE), lengths=lengths, calls=1)
    assert said in " ".join(power_texts(power))


def test_go_no_go_says_what_it_rests_on(tmp_path, capsys):
    (tmp_path / "gate.yaml").write_text("profile: smoke\nrequire:\n  - {codes: [FWD201, FWD206], because: a test}\n")
    words = ["--gate", str(tmp_path / "gate.yaml"), "--config", str(HERE / "small.yaml"), "--quiet", "--jobs", "1"]
    assert serve(["go-no-go", *words, "--output", str(tmp_path / "report")]) == 0
    power = json.loads((tmp_path / "report" / "report.json").read_text())["verdict"]["power"]
    assert power["checks"] == 2
    assert power["calls"] > 2
    assert power["lengths"]
    assert {"eval", "no_grad"} & {*power["modes"]}
    assert power["not_examined"][0] == "training runs"
    assert "\nrests on   2 checks, " in capsys.readouterr().out
