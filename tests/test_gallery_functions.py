"""Each wrong attention function is wrong where its case says, and its host and all healthy ones are right."""

import inspect
import json
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from nsa_doctor.core.finding import ExitCode
from tests.gallery.examination import Ended, Found
from tests.gallery_functions import cases, recall
from tests.gallery_functions.cases import BY_NAME, HEALTHY, WRONG
from tests.gallery_functions.files import HOSTS
from tests.gallery_functions.planting import Case, Healthy, Wrong, lay_out, load
from tests.gallery_functions.proof import wrong
from tests.gallery_functions.reference import attend, visible_keys
from tests.gallery_functions.scenes import Scene

ON_HEALTHY_HOSTS = [case for case in WRONG if case.host in HOSTS]
named = pytest.mark.parametrize


@named("case", WRONG, ids=lambda case: case.name)
def test_a_wrong_function_has_just_the_wrong_tensors_that_its_case_names(case: Wrong, tmp_path: Path) -> None:
    assert wrong(load(case, tmp_path), case.like, case.scene) == case.tensors


@named("case", [case for case in WRONG if case.right_with], ids=lambda case: case.name)
def test_a_wrong_function_is_right_where_its_case_says(case: Wrong, tmp_path: Path) -> None:
    assert wrong(load(case, tmp_path), case.like, replace(case.scene, **case.right_with)) == ()


@named("case", ON_HEALTHY_HOSTS, ids=lambda case: case.name)
def test_the_host_without_the_edit_is_right_in_the_same_call(case: Wrong, tmp_path: Path) -> None:
    unedited = Case(name=f"HOST_OF_{case.name}", host=case.host, says="", scene=case.scene)
    assert wrong(load(unedited, tmp_path), case.like, case.scene) == ()


@named("case", HEALTHY, ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore:two_pass_attention is slow")
def test_a_healthy_function_is_right(case: Healthy, tmp_path: Path) -> None:
    assert wrong(load(case, tmp_path), case.like, case.scene) == ()


OTHERWISE = {
    "dtype": "bfloat16",
    "layout": "fused",
    "grad_layout": "transposed",
    "gain": 30.0,
    "history": "other values before",
}


@named("case", HEALTHY, ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore:two_pass_attention is slow")
def test_a_healthy_function_stays_right_in_other_calls(case: Healthy, tmp_path: Path) -> None:
    scenes = [replace(case.scene, **({"history": "one call"} | {name: value})) for name, value in OTHERWISE.items()]
    if case.scene.history == "seeded dropout":  # without dropout
        scenes = [replace(scene, dtype="float32", options={"causal": True}) for scene in scenes]
    assert [wrong(load(case, tmp_path), case.like, scene) for scene in scenes] == [()] * len(scenes)


@named("case", WRONG, ids=lambda case: case.name)
def test_a_fault_has_its_line(case: Wrong) -> None:
    lines = case.source().splitlines()
    assert [number for number in case.lines_at_fault() if lines[number - 1].strip()]
    assert len(case.lines_at_fault()) <= 12


def test_there_are_enough_of_each() -> None:
    assert (len(WRONG), len(HEALTHY), len(HOSTS)) == (166, 47, 12)
    assert len(BY_NAME) == len(WRONG) + len(HEALTHY)
    assert 2 * sum(case.is_backward_only for case in WRONG) >= len(WRONG)
    assert {case.like for case in WRONG} == {case.like for case in HEALTHY} == set(recall.LIKES)


def test_a_case_is_imported_by_its_name() -> None:
    function = getattr(cases, "TILED_NO_DELTA")  # noqa: B009
    assert function is load(BY_NAME["TILED_NO_DELTA"])
    with pytest.raises(AttributeError, match="has no attribute 'NO_SUCH_CASE'"):
        getattr(cases, "NO_SUCH_CASE")  # noqa: B009


def test_source_and_tracebacks_name_the_file_that_was_laid_out(tmp_path: Path) -> None:
    case = BY_NAME["TILED_NO_DELTA"]
    function = load(replace(case, name="LAID_OUT"), tmp_path)
    path = lay_out(case, tmp_path)
    assert inspect.getsourcefile(function) == str(path)
    assert inspect.getsource(function) in path.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="dropout is not supported") as raised:
        function(*torch.ones(3, 1, 2, 2, 4), dropout_p=0.5)
    assert traceback.extract_tb(raised.tb)[-1].filename == str(path)


def test_a_text_that_is_not_there_is_refused(tmp_path: Path) -> None:
    case = replace(BY_NAME["TILED_NO_DELTA"], edits=(("no such text", ""),))
    with pytest.raises(ValueError, match="must have the text once, has it 0 times"):
        lay_out(case, tmp_path)


def test_the_reference_is_torchs_attention() -> None:
    q, k, v = (torch.randn(2, heads, 9, 8, dtype=torch.float64) for heads in (4, 2, 2))
    seen = visible_keys(9, 9, causal=True, is_bottom_right=False)
    out, _ = attend(q, k, v, scale=8**-0.5, visible=seen)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))


def test_a_window_holds_as_many_keys_as_it_says() -> None:
    seen = visible_keys(3, 7, causal=True, window=(2, -1), is_bottom_right=True)
    assert seen is not None
    assert [row.nonzero().flatten().tolist() for row in seen] == [[2, 3, 4], [3, 4, 5], [4, 5, 6]]


def test_the_words_of_spec_come_from_the_call() -> None:
    scene = Scene(heads=8, kv_heads=2, options={"causal": True, "window": (31, 0), "softcap": 4.0, "alibi": "heads"})
    assert replace(BY_NAME["TILED_NO_DELTA"], scene=scene).spec == "causal,window=32,gqa=4,softcap=4.0,alibi"
    assert replace(BY_NAME["TILED_NO_DELTA"], scene=Scene()).spec == "bidirectional"


@named(
    ("found", "tensor"),
    [
        (Found(code="X", message="dk is off by 2 while out is right"), "dk"),
        (Found(code="X", message="the gradient of the keys is off"), "dk"),
        (Found(code="X", message="output differs from the reference"), "out"),
        (Found(code="X", message="out is off", tensor="dv"), "dv"),
        (Found(code="X", message="raises"), ""),
    ],
)
def test_the_tensor_of_a_finding_is_read(found: Found, tensor: str) -> None:
    assert recall.named_tensor(found) == tensor


def test_the_recall_of_functions_ships_beside_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "score.json"
    path.write_text(json.dumps({"commit": "abc", "families": {"FWD": {"hits": 3, "of": 4}}}))
    recall._ship([_examined("A", is_found=True), _examined("B", is_found=False)], "smoke", path)
    families = json.loads(path.read_text())["families"]
    assert families["FWD"] == {"hits": 3, "of": 4}
    assert (families["FUN"]["hits"], families["FUN"]["of"]) == (1, 2)
    assert families["FUN"]["measured"].startswith(f"wrong functions, drawn from {len(WRONG)}, profile smoke, commit ")


def test_no_part_of_a_score_of_functions_ships(capsys: pytest.CaptureFixture[str]) -> None:
    assert recall.main(["--ship", "--like", "flash"]) == 2
    assert "--ship is for all cases, or for some that --sample draws of all" in capsys.readouterr().err


def _examined(name: str, is_found: bool) -> recall.Examined:
    findings = (Found(code="FUN401", message="dk is off", tensor="dk"),) if is_found else ()
    return recall.Examined(
        name=name,
        like="flash",
        kind="scale",
        tensors=("dk",),
        is_backward_only=True,
        exit_code=ExitCode.WRONG if is_found else ExitCode.WELL,
        seconds=1.0,
        findings=findings,
        trouble=(),
        is_at_line=False,
    )


def test_a_list_says_where_each_fault_lies(capsys: pytest.CaptureFixture[str]) -> None:
    assert recall.main(["--list", "--only", "TILED_NO_DELTA"]) == 0
    case = BY_NAME["TILED_NO_DELTA"]
    assert isinstance(case, Wrong)
    first, fault, *rest = capsys.readouterr().out.splitlines()
    assert first == "TILED_NO_DELTA  --like flash --spec causal"
    assert fault == f"    delta: dk, dq wrong; {lay_out(case)}:{case.lines_at_fault()[0]}"
    assert rest == [f"    {case.says}", f"    in the call {case.scene}"]


def report_on(case: Wrong, message: str) -> str:
    """A report with one finding at the case's own line."""
    where = {"module": "", "module_class": "", "file": f"/somewhere/{case.host.file}", "line": case.lines_at_fault()[0]}
    finding = {"message": message, "where": where, "also": [], "evidence": {}}
    return json.dumps({"results": [{"code": "FWD101", "verdict": "FAIL", "findings": [finding]}]})


def test_a_finding_at_the_line_about_the_tensor_scores_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BY_NAME["TILED_NO_DELTA"]
    assert isinstance(case, Wrong)
    asked: list[str] = []

    def answer(words: list[str], seconds: float) -> Ended:
        asked.extend(words)
        return Ended(int(ExitCode.WRONG), 1.0, report_on(case, "dq differs from the reference"))

    monkeypatch.setattr(recall, "run_doctor", answer)
    examined = recall.examine(case)
    assert (examined.is_found, examined.names_tensor, examined.is_at_line) == (True, True, True)
    assert asked[:7] == ["run", "--subject", case.subject, "--like", "flash", "--spec", "causal"]


def test_a_run_without_a_report_is_missed_and_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Ended(int(ExitCode.USAGE), 1.0, complaint="no such option: --like")
    monkeypatch.setattr(recall, "run_doctor", lambda words, seconds: ended)
    examined = recall.examine(BY_NAME["TILED_NO_DELTA"])
    assert (examined.is_found, examined.is_refused, examined.trouble) == (False, True, ("no such option: --like",))
    lines = "\n".join(recall.score([examined]))
    assert "found:   0 of   1" in lines
    assert "no report: 1" in lines


def test_an_alarm_on_a_healthy_function_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    alarm = Ended(int(ExitCode.WRONG), 1.0, report_on(WRONG[0], "dq differs"))
    monkeypatch.setattr(recall, "run_doctor", lambda words, seconds: alarm)
    assert any(line.startswith("false alarms:   1 of   1") for line in recall.score([recall.examine(HEALTHY[0])]))
