"""Functions for sampling that keep other tokens than they say are found at their line, and sound ones never."""

import importlib
import inspect
import sys
from pathlib import Path

import pytest
from torch import nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks import faulty_samplers, sound_samplers
from tests.nsa_doctor.small_subjects import small_subject


def classes_of(module: object) -> list[type[nn.Module]]:
    """Those that it defines, but for what they have in common."""
    found = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, nn.Module)]
    return [each for each in found if each is not sound_samplers.Base]


def examined(make: type[nn.Module], *packages: str) -> Result:
    """The check of one module."""
    return run_check(registry.load("DEC117"), small_subject(make, width=8, packages=packages))


@pytest.mark.parametrize("kind", classes_of(faulty_samplers), ids=lambda kind: kind.__name__)
def test_other_tokens_are_found_where_it_is_decided(kind: type[nn.Module]) -> None:
    lines, first = inspect.getsourcelines(kind)
    due = first + next(number for number, line in enumerate(lines) if "# here" in line)
    result = examined(kind)
    assert [(each.where.line, each.where.module_class) for each in result.findings] == [(due, kind.__name__)]


@pytest.mark.parametrize("kind", classes_of(sound_samplers), ids=lambda kind: kind.__name__)
def test_what_keeps_as_it_says_is_left_alone(kind: type[nn.Module]) -> None:
    result = examined(kind)
    assert result.findings == ()
    unexamined = (sound_samplers.OfExperts, sound_samplers.Noisy, sound_samplers.Typical)
    assert result.verdict is (Verdict.SKIP if kind in unexamined else Verdict.PASS)


SOUND = """
import torch


class TopPLogitsWarper:
    def __init__(self, top_p: float, filter_value: float = -float("inf"), min_tokens_to_keep: int = 1):
        self.top_p, self.filter_value, self.least = float(top_p), filter_value, min_tokens_to_keep

    def __call__(self, input_ids, scores):
        ordered, places = torch.sort(scores, descending=False)
        removed = ordered.softmax(-1).cumsum(-1) <= (1 - self.top_p)
        removed[..., -self.least :] = 0
        return scores.masked_fill(removed.scatter(1, places, removed), self.filter_value)


class TopKLogitsWarper:
    def __init__(self, top_k: int):
        self.top_k = top_k

    def __call__(self, input_ids, scores):
        return scores.masked_fill(scores < torch.topk(scores, self.top_k)[0][..., -1, None], -float("inf"))


class TemperatureLogitsWarper:
    def __init__(self, temperature: float):
        self.temperature = temperature

    def __call__(self, input_ids, scores):
        return scores / self.temperature


class RepetitionPenaltyLogitsProcessor:
    def __init__(self, penalty: float):
        self.penalty = penalty

    def __call__(self, input_ids, scores):
        score = torch.gather(scores, 1, input_ids)
        return scores.scatter(1, input_ids, torch.where(score < 0, score * self.penalty, score / self.penalty))


def top_k(logits, k):
    return logits.masked_fill(logits < logits.topk(k, -1).values[..., -1:], -float("inf"))


def sample(logits, top_k_tokens=None, generator=None):
    return top_k(logits, top_k_tokens or 50).softmax(-1).multinomial(1, generator=generator)
"""
CHANGED = {
    "a class's comparison": ("<= (1 - self.top_p)", "<= self.top_p"),
    "a class's count": ("self.top_k)[0][..., -1, None]", "self.top_k)[0][..., :1]"),
    "a class's temperature": ("scores / self.temperature", "scores * self.temperature"),
    "a class's penalty": ("score * self.penalty, score / self.penalty", "score / self.penalty, score / self.penalty"),
    "a function": ("logits < logits.topk(k, -1).values[..., -1:]", "logits < logits.topk(k + 2, -1).values[..., -1:]"),
}


def written(text: str, name: str, folder: Path, patch: pytest.MonkeyPatch) -> str:
    """A module of that name and text, which is loaded."""
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    patch.syspath_prepend(str(folder))
    patch.setitem(sys.modules, name, importlib.import_module(name))
    return name


def test_sound_functions_and_classes_of_a_file_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = written(SOUND, "sound_file_of_samplers", tmp_path, monkeypatch)
    result = examined(sound_samplers.Base, name)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("what", CHANGED)
def test_a_function_or_class_of_a_file_is_found(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = CHANGED[what]
    text = SOUND.replace(before, after)
    line = text[: text.index(after)].count("\n") + 1
    name = written(text, f"faulty_file_{list(CHANGED).index(what)}", tmp_path, monkeypatch)
    result = examined(sound_samplers.Base, name)
    assert [(Path(each.where.file).name, each.where.line) for each in result.findings] == [(f"{name}.py", line)]


@pytest.mark.parametrize("beside", ["open('written', 'w').close()", "torch.save(logits, 'written')", "os.remove('it')"])
def test_what_reaches_outside_is_not_called(beside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"import os, torch\n\n\ndef top_k(logits, k):\n    {beside}\n    return logits\n"
    name = written(text, f"reaching_{sum(map(ord, beside))}", tmp_path, monkeypatch)
    result = examined(sound_samplers.Base, name)
    assert result.verdict is Verdict.SKIP
    assert not (tmp_path / "written").exists()


def test_nothing_is_examined_where_there_is_no_such_function() -> None:
    assert examined(sound_samplers.Base).verdict is Verdict.SKIP
