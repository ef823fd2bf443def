"""`nsa_doctor.examine` gives what the command gives, of what has a name and of what has none."""

import builtins
import linecache
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import nsa_doctor
from nsa_doctor import Decision, Examination, examine
from nsa_doctor.cli.examine import _importable_name, _module_name
from nsa_doctor.core import handed_over
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.finding import Report
from nsa_doctor.core.measurement import Census, Measurement, Point
from nsa_doctor.isolation.start import Children
from nsa_doctor.render.reading import parse_report

EMPTY = Report(command="run", subject={}, options={}, environment={})
CHECKS: dict[str, Any] = {"profile": "smoke", "select": "FWD101,FWD201", "quiet": True, "jobs": 1}


class Summed(nn.Module):
    """Each token's sum with those before it, or with all of them."""

    def __init__(self, is_causal: bool = True) -> None:
        super().__init__()
        self.is_causal, self.linear = is_causal, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return x.cumsum(1) if self.is_causal else x.sum(1, keepdim=True).expand_as(x)


@pytest.mark.parametrize(
    "subject", [Summed, lambda: Summed(is_causal=True), Summed()], ids=["class", "lambda", "module"]
)
def test_what_is_healthy_is_a_go(subject: Any) -> None:
    report = examine(subject, **CHECKS)
    assert (report.verdict, report.findings) == (Decision.GO, ()), str(report)
    report.raise_if_no_go()


def test_what_is_faulty_is_a_no_go_with_its_place_and_pages() -> None:
    report = examine(lambda: Summed(is_causal=False), **CHECKS)
    (finding,) = report.findings
    assert (report.verdict, finding.code, Path(finding.where.file).name) == (
        Decision.NO_GO,
        "FWD201",
        Path(__file__).name,
    )
    assert finding.repro == 'nsa_doctor.examine(…, select="FWD201")'
    assert handed_over.NAME not in str(report) + report.to_json()
    assert "FWD201" in report.to_html()
    assert "nsa-doctor run" not in report.to_html()
    assert parse_report(report.to_json()).findings[0].repro == finding.repro
    assert report._repr_html_().startswith("<iframe srcdoc=")
    assert set(report.to_frame()["length"]) >= {1, 2, 128}
    with pytest.raises(nsa_doctor.NoGoError, match=r"(?s)NO-GO.*causality violation"):
        report.raise_if_no_go()


def test_a_notebook_shows_the_page_and_keeps_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """rich takes a shell of this name for Jupyter's, and shows there what it is to write into a text."""
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    report = examine(lambda: Summed(is_causal=False), **CHECKS)
    assert "causality violation" in str(report)
    with pytest.raises(nsa_doctor.NoGoError, match=r"(?s)NO-GO.*causality violation"):
        report.raise_if_no_go()
    assert capsys.readouterr().out == ""
    assert repr(report).endswith("<lambda>: NO-GO, findings of FWD201>")


def test_a_line_of_a_notebook_s_cell_is_named_by_the_number_of_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    file = "/tmp/ipykernel_12/4070281877.py"
    source = "def forward(self, x):\n    return x.sum(1, keepdim=True).expand_as(x)\n"
    names: dict[str, Any] = {}
    exec(compile(source, file, "exec"), names)
    monkeypatch.setattr(Summed, "forward", names["forward"])
    monkeypatch.setitem(linecache.cache, file, (len(source), None, source.splitlines(keepends=True), file))
    compiler = SimpleNamespace(format_code_name=lambda name: ("Cell", "In[3]") if name == file else None)
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=compiler))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    report = examine(lambda: Summed(is_causal=True), **CHECKS)
    assert "  line       cell In[3]:2 in forward\n" in str(report)
    assert "4070281877" not in str(report)


def test_a_frame_has_its_columns_where_no_sweep_ran() -> None:
    point, census = Point(length=64), Census(**dict.fromkeys([each.name for each in fields(Census)], 0))
    swept = replace(EMPTY, measurements=(Measurement(point=point, censuses=(census,)),))
    frames = [Examination(report).to_frame() for report in (EMPTY, swept)]
    assert [len(frame) for frame in frames] == [0, 1]
    assert list(frames[0]) == list(frames[1])
    assert {"length", "dtype", "mode", "name", "num_nan", "seconds", "peak_bytes"} <= set(frames[0])


def test_a_function_is_examined_by_its_convention() -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
        return scaled_dot_product_attention(query, key, value, is_causal=is_causal)

    report = examine(attend, like="sdpa", spec="causal", profile="smoke", select="FUN101", quiet=True)
    assert report.verdict is Decision.GO, str(report)


def subject_of_two(width: int) -> nn.Module:
    return nn.Linear(width, width)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: examine(3, **CHECKS), "subject int must return an nn.Module, an Adapter or a Subject, got int"),
        (lambda: examine("nowhere:make", **CHECKS), "subject nowhere:make cannot be imported"),
        (lambda: examine(Summed(), profile="smok"), "--profile cannot be 'smok'"),
        (lambda: examine(lambda x: x, **CHECKS), "<lambda> must be callable without arguments"),
        (lambda: examine(Summed, select="XYZ"), "XYZ"),
        (lambda: examine(Summed, width="s"), "width must be int or None, got 's'"),  # type: ignore[arg-type]
        (lambda: examine(Summed, timeout=None), "timeout must be float, got None"),  # type: ignore[arg-type]
        (lambda: examine(Summed, profile=None), "profile must be str, got None"),  # type: ignore[arg-type]
        (lambda: examine(Summed, seed=True), "seed must be int, got True"),
        (lambda: examine(Summed, timeout="1"), "timeout must be float, got '1'"),  # type: ignore[arg-type]
        (lambda: examine(Summed, train=lambda: None), "a function that can be imported by its name"),
        (lambda: examine(lambda dim: Summed(), **CHECKS), "name a function that returns"),
    ],
)
def test_what_cannot_be_examined_is_a_sentence(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        call()
    assert sentence in str(caught.value)
    assert "given(" not in str(caught.value)


def test_a_name_is_one_that_another_process_can_import(monkeypatch: pytest.MonkeyPatch) -> None:
    script = type(sys)("__main__")
    script.__file__ = "/somewhere/my_script.py"
    assert _importable_name(nn.Linear) == "torch.nn.modules.linear:Linear"
    assert [_importable_name(each) for each in (lambda: None, nn.Linear(2, 2), 3)] == [None] * 3
    assert (_module_name(script), _module_name(torch), _module_name(None)) == ("my_script", "torch", None)
    script.__file__ = "/somewhere/cell-1.py"
    assert _module_name(script) is None


def test_what_a_script_defines_under_its_guard_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "class Outside: ...\nif __name__ == '__main__':\n    class Inside: ...\n"
    file = tmp_path / "my_script.py"
    file.write_text(code)
    script = type(sys)("__main__")
    script.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "__main__", script)
    exec(compile(code, file, "exec"), vars(script))
    names = [_importable_name(each) for each in (vars(script)["Outside"], vars(script)["Inside"])]
    assert names == ["my_script:Outside", None]


def test_a_process_that_used_a_gpu_hands_nothing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UsageError, match="write what builds it into a file"):
        examine(Summed(), **CHECKS)


def test_a_script_without_a_guard_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Children, "are_forked", False)
    monkeypatch.setitem(sys.modules, "nsa_doctor.worker.main", type(sys)("main"))
    with pytest.raises(UsageError, match='if __name__ == "__main__":'):
        examine(Summed, **CHECKS)
