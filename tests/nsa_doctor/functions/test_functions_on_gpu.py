"""Triton kernels in bfloat16 on a GPU: each fault is found with its tensor, and what is right is silent."""

import ast
import re
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.artifacts.judging import judge
from nsa_doctor.core import registry
from nsa_doctor.core.errors import Caught, InternalError
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.facts import DEVICE_LOST
from nsa_doctor.core.finding import Finding, Result, Verdict
from nsa_doctor.core.measurement import Place
from nsa_doctor.isolation import sanitizer
from nsa_doctor.isolation.supervisor import Supervisor
from nsa_doctor.probes.functions import calling, shapes
from nsa_doctor.probes.functions.calling import DeviceLostError
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.probes.hooks.phase import Phases, under_way
from nsa_doctor.subject.function import FunctionSubject
from tests.gallery.examination import Found, read_findings, run_doctor
from tests.gallery_functions.on_gpu import ENDINGS, HEALTHY, SPINS, WRITES_FAR, WRONG
from tests.gallery_functions.planting import Case, Wrong, load
from tests.nsa_doctor.functions.examined import results, subject_of

on_a_gpu = pytest.mark.gpu
_LARGE_PAGE = 256
SPARSE = "topk=4,block=16,gqa=2"


def subject(case: Case, seed: int = 0) -> FunctionSubject:
    pytest.importorskip("triton")
    spec = SPARSE if case.like == "nsa" else case.spec.replace("bidirectional", "full")
    return subject_of(load(case), case.like, spec, dtype="bfloat16", seed=seed, device="cuda")


@pytest.mark.parametrize("case", [*WRONG, *HEALTHY, *ENDINGS], ids=lambda case: case.name)
def test_every_edit_gives_a_file_of_python_that_differs(case: Case) -> None:
    ast.parse(case.source())
    assert (case.source() == case.unedited()) is (case in HEALTHY)


@on_a_gpu
@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_a_wrong_kernel_is_found_and_its_tensor_named(case: Wrong) -> None:
    ended = results(subject(case), ["FUN201", "FUN202", "FUN301", "FUN302", "FUN401"])
    found = [each for result in ended.values() for each in result.findings]
    assert found, {code: result.reason for code, result in ended.items()}
    assert any(str(each.evidence.get("tensor", "")) in case.tensors for each in found)


@on_a_gpu
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_a_kernel_that_is_right_is_silent(case: Case, seed: int) -> None:
    ended = results(subject(case, seed))
    assert {code: result.findings for code, result in ended.items() if result.findings} == {}
    assert {code: result.reason for code, result in ended.items() if result.verdict is Verdict.CRASH} == {}


@on_a_gpu
def test_a_kernel_on_the_default_stream_is_found_on_another() -> None:
    check = registry.load("FUN507")
    right = subject_of(scaled_dot_product_attention, "sdpa", "causal", dtype="bfloat16", device="cuda")
    assert judge(check, right).verdict is Verdict.PASS
    (finding,) = judge(check, check.planted(right)).findings
    assert "its inputs are filled late" in finding.control


BESIDE = torch.cuda.Stream() if torch.cuda.is_available() else None


def on_its_own_stream(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
    """One that does not let the caller's stream wait: its answer is there when the device is idle."""
    if BESIDE is not None:
        BESIDE.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(BESIDE):
        return scaled_dot_product_attention(q.detach(), k.detach(), v.detach(), is_causal=is_causal)


@on_a_gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_work_on_another_stream_is_too_fast_for_the_callers(dtype: str) -> None:
    check = registry.load("FUN601")
    right = subject_of(scaled_dot_product_attention, "sdpa", "causal", dtype=dtype, device="cuda")
    result = judge(check, right)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert "times the least for its arithmetic" in result.notes[0]
    (finding,) = judge(check, check.planted(right)).findings
    assert finding.evidence["ratio"] < 0.5
    beside = subject_of(on_its_own_stream, "sdpa", "causal,forward_only", dtype=dtype, device="cuda")
    (finding,) = judge(check, beside).findings
    assert "on another stream than the caller's" in finding.message


def biased_by_distance(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, alibi_slopes: Tensor | None = None
) -> Tensor:
    """As flash-attn takes the slopes of ALiBi: on the device, where a copy from the host ends a capture."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    query = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
    distance = query - torch.arange(k.shape[2], device=q.device)
    bias = torch.zeros_like(distance, dtype=torch.float32)[None, None]
    if alibi_slopes is not None:
        bias = -alibi_slopes.reshape(-1, q.shape[1], 1, 1) * distance.abs()
    bias = bias.masked_fill(distance < 0, -torch.inf) if causal else bias
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5 + bias
    return (scores.softmax(-1) @ v.float()).to(q.dtype).transpose(1, 2)


@on_a_gpu
@pytest.mark.parametrize("code", ["FUN101", "FUN305", "FUN507"])
def test_slopes_are_given_on_the_device_and_before_a_capture(code: str) -> None:
    right = subject_of(biased_by_distance, "flash", "causal,alibi", dtype="bfloat16", device="cuda")
    result = judge(registry.load(code), right)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


@on_a_gpu
def test_pages_are_read_on_the_device() -> None:
    def attend(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        cache_seqlens: Tensor | None = None,
        block_table: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        assert cache_seqlens is not None
        if block_table is not None:
            pages = block_table.flip(1) if k_cache.shape[1] == _LARGE_PAGE else block_table
            k_cache, v_cache = (each[pages.long()].flatten(1, 2) for each in (k_cache, v_cache))
        rows = []
        for i, n in enumerate(cache_seqlens.tolist()):
            rows.append(biased_by_distance(q[i : i + 1], k_cache[i : i + 1, :n], v_cache[i : i + 1, :n], causal))
        return torch.cat(rows)

    subject = subject_of(attend, "flash_kvcache", "causal", dtype="bfloat16", device="cuda")
    (finding,) = judge(registry.load("FUN305"), subject).findings
    assert finding.message.startswith("with a block_table, out of")
    assert "600" in finding.evidence["shape"]


def examined(case: Wrong) -> Found:
    """What the command says of it, in processes of its own."""
    pytest.importorskip("triton")
    what = ["--subject", f"fn:tests.gallery_functions.on_gpu:{case.name}", "--like", case.like, "--spec", case.spec]
    how = ["--device", "cuda", "--dtype", "bfloat16", "--timeout", "10", "--select", "FUN101", "--format", "json"]
    ended = run_doctor(["run", *what, *how, "--quiet"], 240.0)
    (found,), _ = read_findings(ended.out, ended.complaint)
    return found


@on_a_gpu
def test_a_kernel_without_an_end_is_ended_and_the_line_named_that_launches_it() -> None:
    found = examined(SPINS)
    assert "does not return" in found.message
    assert "in a kernel of its backward" in found.message
    assert "_backward[grid]" in line_text(found)


@on_a_gpu
def test_a_kernel_that_writes_where_no_memory_is_is_named_by_its_line_or_its_launch() -> None:
    found = examined(WRITES_FAR)
    assert "illegal memory access" in found.message
    if sanitizer.find() is None:
        assert "_backward[grid]" in line_text(found)
    else:  # the kernel's own line
        assert "out of bounds" in found.message
        assert "tl.store(dk_ptr + (1 << 44)" in line_text(found)


def line_text(found: Found) -> str:
    return Path(found.file).read_text(encoding="utf-8").splitlines()[found.line - 1]


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_who_waits_for_a_device_is_seen_to_wait_for_the_subject(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append(Phases.under_way[threading.get_ident()]))
    right = subject_of(scaled_dot_product_attention, "sdpa", "causal")
    on_a_device = replace(right, device="cuda", wait=under_way)
    assert calling._settled(on_a_device, "the answer", phase) == "the answer"
    assert seen == [f"a kernel of its {phase}"]
    assert not Phases.under_way.get(threading.get_ident())


@pytest.mark.parametrize("said", ["Triton Error [CUDA]: misaligned address", "cuDNN error: execution failed"])
def test_a_call_that_the_device_does_not_outlive_is_known_by_the_next_one(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Exception] = []
    right = subject_of(scaled_dot_product_attention, "sdpa", "causal")
    on_a_device = replace(right, device="cuda", lose=lost.append)
    problem = problem_of(right, shapes.ordinary(right)[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert said in calling._failure(Caught(RuntimeError(said)), "forward", on_a_device, problem).sentence

    def gone() -> None:
        raise RuntimeError("CUDA error: misaligned address")

    monkeypatch.setattr(torch.cuda, "synchronize", gone)
    with pytest.raises(DeviceLostError, match=re.escape(said)):
        calling._failure(Caught(RuntimeError(said)), "forward", on_a_device, problem)
    assert len(lost) == 1


class _Child:
    """Answers a check with a result, or breaks."""

    longest_seconds = 0.0

    def __init__(self, answer: Result | Exception) -> None:
        self.answer = answer

    def ask(self, request: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        if request["do"] == "load":
            return {"loaded": {"place": {}}}
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"checked": asdict(self.answer)}

    def close(self) -> None:
        """Nothing is open."""


def lost_at(line: int) -> Result:
    finding = Finding(message="lost", where=Place(file="kernels.py", line=line), evidence={"kind": DEVICE_LOST})
    return Result(code="FUN101", name="call-fails", verdict=Verdict.FAIL, findings=(finding,))


@pytest.mark.parametrize(
    ("again", "line"),
    [
        (lost_at(7), 7),
        (Result(code="FUN101", name="call-fails", verdict=Verdict.PASS), 99),
        (InternalError("CUDA error", ""), 99),
    ],
    ids=["lost alike", "not lost", "breaks"],
)
def test_a_lost_device_is_looked_for_again_where_each_launch_waits(
    again: Result | Exception, line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = iter([_Child(lost_at(99)), _Child(again)])
    waits: list[bool] = []

    def start(self: Supervisor, is_line_recorded: bool = False, under: Sequence[str] = ()) -> _Child:
        waits.append(is_line_recorded)
        self._child = next(children)
        return self._child

    monkeypatch.setattr(Supervisor, "_start", start)
    monkeypatch.setattr(sanitizer, "find", lambda: None)
    request = ExaminationRequest(spec="fn:a:b", like="sdpa")
    result = Supervisor(request).check("FUN101", 5.0)
    assert result.findings[0].where.line == line
    assert waits == [False, True]


def test_streams_are_no_question_on_a_cpu() -> None:
    right = subject_of(scaled_dot_product_attention, "sdpa", "causal")
    result = judge(registry.load("FUN507"), right)
    assert (result.verdict, result.is_required) == (Verdict.SKIP, False)
