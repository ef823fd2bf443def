"""Functions and classes for sampling in the files that a subject's packages load."""

import importlib
import sys
from pathlib import Path

import pytest

from nsa_doctor.core.finding import Verdict
from tests.nsa_doctor.checks import sound_samplers
from tests.nsa_doctor.checks.test_sampling_functions import examined

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
