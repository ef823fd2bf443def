"""`nsa-doctor go-no-go --prove N`: from the command line to the share of mutants that are noticed."""

import json
import sys
from dataclasses import replace

import pytest

from nsa_doctor.cli.main import serve
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Report
from nsa_doctor.core.policy_verdict import PolicyVerdict
from nsa_doctor.core.proof import MutantFate, Proof
from nsa_doctor.core.registry import select
from nsa_doctor.engine.run import RunRequest
from nsa_doctor.policy.policy import Policy
from nsa_doctor.policy.proving.prove import ProveRequest, prove

POLICY = {"name": "test", "profile": "smoke", "require": [{"codes": ["FWD201", "FWD206"], "because": "a test"}]}
ATTENTION = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.mT / 4
        return scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf).softmax(-1) @ v
"""

SUM = """
from torch import nn


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(16, 16)

    def prefill(self, x):
        return self.out(x.cumsum(-2)), x.sum(-2, keepdim=True)

    def step(self, x, state):
        return self.out(x + state), x + state

    def forward(self, x):
        return self.prefill(x)[0]
"""


@pytest.fixture
def subject(tmp_path, monkeypatch, request):
    """A module of one file in the current folder, under a name of its own."""
    name = f"proved_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(ATTENTION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield f"{name}:Attention"
    sys.modules.pop(name, None)


def asked(subject, **parts):
    checks = select(("FWD201", "FWD206"), (), "smoke")
    examination = ExaminationRequest(
        spec=subject, profile="smoke", explore=True, lengths=(64, 16), threads=1, declared=parts.pop("declared", ())
    )
    run = RunRequest(examination_request=examination, checks=tuple(checks), jobs=parts.pop("jobs", 1))
    return ProveRequest(**{"count": 2, "seed": 0, "policy": Policy(**POLICY), "module_checks": run, **parts})


def go(decision="GO"):
    verdict = PolicyVerdict(decision=decision, gate="test", gate_digest="", why=())
    return Report(command="go-no-go", subject={"name": "x"}, options={}, environment={}, verdict=verdict)


def test_a_go_is_proved_by_mutants_and_the_file_stays(subject, tmp_path, capsys):
    policy = tmp_path / "policy.yaml"
    policy.write_text(json.dumps(POLICY))
    words = ("--policy", str(policy), "--subject", subject, "--prove", "4", "--jobs", "1", "--quiet")
    code = serve(["go-no-go", *words, "--output", str(tmp_path / "report")])
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    proof, said = report["proof"], capsys.readouterr().out
    assert (code, report["decision"]) == (0, "GO")
    assert proof["counts"]["noticed"] + proof["counts"]["missed"] == 4
    assert proof["noticed_low"] < proof["counts"]["noticed"] / 4 < proof["noticed_high"]
    assert all(mutant["file"].startswith("proved_") and mutant["before"] in ATTENTION for mutant in proof["mutants"])
    assert f"\nmutants    {proof['counts']['noticed']} of 4 mutants noticed" in said
    assert "--prove 4" in report["verdict"]["again"]
    assert (tmp_path / f"{subject.partition(':')[0]}.py").read_text() == ATTENTION


def test_the_same_mutants_count_whatever_the_number_of_jobs(subject):
    one, two = (prove(asked(subject, jobs=jobs, seed=1), go()).proof for jobs in (1, 2))
    fates = [[replace(mutant, seconds=0.0) for mutant in proof.mutants] for proof in (one, two)]
    assert fates[0] == fates[1]


def test_every_mutant_is_tried_where_more_are_asked_for_and_the_mask_is_among_those_noticed(subject):
    proof = prove(asked(subject, count=500, jobs=2), go()).proof
    noticed = {(mutant.line, mutant.after.partition("triu")[2][:3]) for mutant in proof.those("noticed")}
    assert (14, "(2)") in noticed
    assert 0 < len(proof.counted) < 500
    assert proof.reason == f"no more of its lines' {proof.candidates} mutants change what it computes"


def test_another_interpreter_examines_the_mutant_too(subject):
    request = asked(subject)
    examination = replace(request.module_checks.examination_request, profile="quick")
    checks = tuple(select(("FWD211",), (), "quick"))
    run = replace(request.module_checks, examination_request=examination, checks=checks)
    policy = Policy(name="test", require=[{"codes": ["FWD211"], "because": "it starts an interpreter"}])
    proof = prove(replace(request, count=3, policy=policy, module_checks=run), go()).proof
    assert proof.number("missed") > 0
    assert not [mutant.by for mutant in proof.counted if mutant.by.startswith("FWD211")]


def test_a_check_that_does_not_apply_leaves_a_mutant_missed(subject):
    report = replace(go(), subject={"name": "x", "spec": ("bidirectional",)})
    proof = prove(asked(subject, count=8, declared=("bidirectional",)), report).proof
    assert proof.number("missed") > 0
    assert proof.number("unknown") == 0


def test_a_mutant_that_raises_does_not_decode_either(tmp_path, monkeypatch):
    (tmp_path / "proved_sum.py").write_text(SUM)
    monkeypatch.syspath_prepend(tmp_path)
    request = asked("proved_sum:Sum", count=99)
    examination = replace(request.module_checks.examination_request, input="embeddings", width=16)
    run = replace(request.module_checks, examination_request=examination)
    proof = prove(replace(request, module_checks=run), go()).proof
    assert "return (x)[0]" in [mutant.after for mutant in proof.those("raises")]
    assert proof.number("unknown") == 0


def test_an_interruption_keeps_what_is_known(subject):
    def interrupt(said, done, total):
        if done == 1:
            raise KeyboardInterrupt

    report = prove(asked(subject, count=9), go(), interrupt)
    assert report.interrupted
    assert report.proof.reason == "interrupted"
    assert len(report.proof.counted) == 1


@pytest.mark.parametrize("decision", ["NO-GO", "UNKNOWN"])
def test_nothing_is_proved_of_what_is_no_go_as_it_stands(decision):
    proof = prove(asked("never_loaded:make"), go(decision)).proof
    assert proof.mutants == ()
    assert proof.reason == f"the subject is {decision} as it stands: mend it first"


def test_nothing_is_proved_of_code_without_a_source_of_its_own():
    proof = prove(asked("torch.nn:Identity"), go()).proof
    assert proof.reason == "no line of Python source is reached that belongs to the subject's package"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--prove", "0"), "--prove must be from 1 to 10000 mutants, got 0"),
        (("--prove-seed", "3"), "--prove-seed draws the mutants of --prove and has no effect without it; leave it out"),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(words, says, capsys):
    assert serve(["go-no-go", *words]) == 2
    assert says in capsys.readouterr().err


def test_only_what_changes_something_counts():
    fates = ("noticed", "noticed", "missed", "unknown", "raises", "same", "other order", "other parameters")
    mutants = [MutantFate(file="a.py", line=1, kind="flag", before="a", after="b", fate=fate) for fate in fates]
    proof = Proof(asked=4, seed=0, mutants=tuple(mutants))
    assert (proof.noticed.hits, proof.noticed.total) == (2, 4)
