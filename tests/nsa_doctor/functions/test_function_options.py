"""Command lines that name a function: each wrong one is one sentence and exit code 2."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from nsa_doctor.core.errors import OptionError
from nsa_doctor.core.function_spec import function_spec
from nsa_doctor.core.shipped import shipped
from nsa_doctor.subject.contract import SubjectUnusableError
from tests.nsa_doctor.functions.examined import subject_of
from tests.nsa_doctor.functions.healthy import flash, with_backward

Doctor = Callable[..., CompletedProcess[str]]
SOURCE = """
import torch

def causal(q, k, v, is_causal=False, scale=None):
    s = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    if is_causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return s.softmax(-1) @ v

def leaks(q, k, v, is_causal=False):
    s = q @ k.mT * q.shape[-1] ** -0.5
    if is_causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(2), -torch.inf)
    return s.softmax(-1) @ v

def never(q, k, v, is_causal=False):
    while True:
        pass
"""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cauzal", "did you mean causal"),
        ("window=0", "window must be from 1"),
        ("window=x", "window must be a whole number"),
        ("gqa=3,heads=8,causal", "8 % 3 != 0"),
        ("causal,full", "causal and full at once"),
        ("causal,causal=1", "causal twice"),
        ("causal=1", "causal takes no value"),
        ("causal,window=3:2", "reads 2 of them"),
        ("gqa=2", "does not say which keys are read"),
        ("full,top_left", "say where the diagonal"),
        ("scale=0,causal", "scale must be above 0"),
        ("scale=nan,causal", "scale must be from 0"),
        (",", "got nothing"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(OptionError, match="--spec") as refused:
        function_spec(text)
    assert complaint in str(refused.value)


def test_a_window_counts_the_query_itself() -> None:
    assert function_spec("causal,window=512").window == (511, 0)
    assert function_spec("window=4").window == (3, 3)


@pytest.mark.parametrize(
    ("function", "like", "spec", "complaint"),
    [
        (with_backward, "sdpa", "causal,softcap=30", "takes no argument softcap"),
        (with_backward, "sdpa", "causal,sinks", "takes no argument sinks"),
        (flash, "flash", "causal,alibi", "takes no argument alibi_slopes"),
        (flash, "flash", "mask", "flash-attn takes no mask tensor"),
        (flash, "flash_varlen", "causal", "multiple values|no argument|does not fit"),
        (lambda q, k: q, "sdpa", "full", "too many positional arguments"),
        (lambda q, k, v, *, extra: q, "sdpa", "full", "missing a required argument: 'extra'"),
        (flash, "flash", "causal,topk=3", "is for sparse operators"),
    ],
)
def test_a_function_that_does_not_fit_is_refused_with_the_argument(
    function: Any, like: str, spec: str, complaint: str
) -> None:
    with pytest.raises(SubjectUnusableError, match=complaint):
        subject_of(function, like, spec)


def test_what_is_built_in_needs_no_argument() -> None:
    def always(q: Any, k: Any, v: Any) -> Any:
        return with_backward(q, k, v, is_causal=True)

    assert subject_of(always, "sdpa", "causal,builtin").spec.is_built_in
    with pytest.raises(SubjectUnusableError, match="add builtin"):
        subject_of(always, "sdpa", "causal")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "--subject", "fn:mine:causal"], "say how it is called with --like"),
        (["run", "--subject", "fn:mine:causal", "--like", "flsh"], "did you mean flash"),
        (["run", "--subject", "mine:causal", "--like", "sdpa"], "--like is for a function"),
        (["run", "--like", "sdpa"], "--like is for a function"),
        (["run", "--subject", "fn:mine", "--like", "sdpa"], "must be fn:package.module:function"),
        (["run", "--subject", "fn:mine:absent", "--like", "sdpa"], "cannot be imported: mine has no absent"),
        (["run", "--subject", "fn:mine:torch", "--like", "sdpa"], "must be a function of q, k and v, got module"),
        (["run", "--subject", "fn:mine:causal", "--like", "sdpa", "--width", "8"], "--width is for modules"),
        (["run", "--subject", "fn:mine:causal", "--like", "sdpa", "--inputs", "no.safetensors"], "does not exist"),
        (["run", "--subject", "fn:mine:causal", "--like", "sdpa", "--select", "FWD"], "FWD examines a module"),
        (["sweep", "--subject", "fn:mine:causal"], "which run and go-no-go alone examine"),
        (["go-no-go", "--subject", "fn:mine:causal", "--like", "sdpa", "--prove", "3"], "does not examine functions"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(doctor: Doctor, tmp_path: Path, words: list[str], complaint: str) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    done = doctor(*words, "--quiet", cwd=tmp_path)
    assert done.returncode == 2, done
    assert complaint in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "is_said"),
    [([], True), (["--spec", "causal"], False), (["--reference", "mine:causal"], False)],
    ids=["neither", "spec", "reference"],
)
def test_that_nothing_says_what_is_right_is_a_note(
    doctor: Doctor, tmp_path: Path, words: list[str], is_said: bool
) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    named = ("--subject", "fn:mine:causal", "--like", "sdpa", "--select", "FUN101")
    done = doctor("run", *named, *words, "--profile", "smoke", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    note = "note: masks and outputs were not compared, for nothing says what is right: --spec causal"
    assert (note in " ".join(done.stdout.split())) is is_said


def test_outputs_that_were_compared_with_nothing_are_no_go(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "policy.yaml").write_text(shipped("policies")["function"].read_text().replace("quick", "smoke"))
    named = ("--subject", "fn:mine:causal", "--like", "sdpa", "--policy", "policy.yaml")
    done = doctor("go-no-go", *named, "--quiet", cwd=tmp_path)
    text = " ".join(done.stdout.split())
    assert (done.returncode, text.partition(" by")[0]) == (3, "UNKNOWN"), done
    assert "FUN301: not checked: no --spec says what it computes, and no --reference" in text
    assert "note: masks and outputs were not compared" in text


LOSES = """import torch
from torch.nn.functional import scaled_dot_product_attention


def loses(q, k, v, is_causal=False):
    if not q.is_contiguous():
        raise RuntimeError("CUDA error: misaligned address")
    return scaled_dot_product_attention(q, k, v, is_causal=is_causal)
"""


def test_an_error_of_the_device_is_a_finding_and_the_next_check_has_a_process_of_its_own(
    doctor: Doctor, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(LOSES)
    words = ("--subject", "fn:mine:loses", "--like", "sdpa", "--spec", "causal", "--select", "FUN303,FUN401")
    done = doctor("run", *words, "--format", "json", "--quiet", cwd=tmp_path)
    results = {result["code"]: result for result in json.loads(done.stdout)["results"]}
    assert done.returncode == 1
    assert results["FUN401"]["verdict"] == "PASS"
    (finding,) = results["FUN303"]["findings"]
    assert "CUDA error: misaligned address" in finding["message"]
    assert finding["where"]["line"] == 7


def test_a_leak_is_reported_with_pair_line_and_command(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    words = ("--subject", "fn:mine:leaks", "--like", "sdpa", "--spec", "causal")
    done = doctor("run", "--profile", "smoke", "--select", "FUN201", *words, "--quiet", cwd=tmp_path)
    text = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert "query 0 and key 1 are the first of" in text
    assert "the key is always 1 after the query's own position" in text
    assert "mine.py:13 in leaks" in text
    assert "reproduce nsa-doctor run --select FUN201 --subject fn:mine:leaks --like sdpa --spec causal" in text


def test_a_function_that_never_returns_is_a_timeout_with_its_line(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    words = ("--subject", "fn:mine:never", "--like", "sdpa", "--spec", "causal", "--timeout", "3")
    done = doctor("run", "--profile", "smoke", "--select", "FUN102", *words, "--quiet", cwd=tmp_path)
    assert done.returncode == 1, done
    assert "mine.py" in done.stdout


def test_go_no_go_of_a_function_asks_for_its_own_policy(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "few.yaml").write_text(
        "profile: smoke\nrequire:\n  - codes: [FUN102, FUN201]\n    because: two will do\n"
    )
    words = ("--subject", "fn:mine:causal", "--like", "sdpa", "--spec", "causal", "--policy", "few.yaml")
    done = doctor("go-no-go", *words, "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done
    assert "GO" in done.stdout


def test_a_function_is_declared_bidirectional_as_a_module_is() -> None:
    assert function_spec("bidirectional,gqa=2") == function_spec("full,gqa=2")
