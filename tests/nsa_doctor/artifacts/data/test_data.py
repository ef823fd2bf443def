"""Sources of batches nobody has shown: what is faulty is named once and by its code, what is odd and healthy is not."""

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from nsa_doctor.artifacts.data.batch import UnreadableBatchError, read_batch
from nsa_doctor.artifacts.data.sources import of_factory
from nsa_doctor.artifacts.judging import judged
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from tests.nsa_doctor.artifacts.data.feeds import (
    B,
    Going,
    N,
    S,
    V,
    Workers,
    answers_alone,
    batches,
    documents_masked,
    masked_language,
    minus_one_ignored,
    nested_lists,
    one_buffer,
    one_epoch,
    padded_and_masked,
    pairs,
    random_windows,
    rows,
    shuffled,
    small_numbers,
    splits_and_ranks,
    two_epochs,
    two_workers,
    whole_rows,
    with_a_beginning,
)

HEALTHY = [
    pairs, whole_rows, small_numbers, nested_lists, padded_and_masked, minus_one_ignored, answers_alone, one_epoch,
    two_epochs, one_buffer, shuffled, random_windows, with_a_beginning, documents_masked, Going, splits_and_ranks,
    two_workers, masked_language,
]  # fmt: skip


def seen(factory: Any, **options: Any) -> dict[str, Any]:
    options = {"seq_len": S, "vocab_size": V, "batch_size": B, "num_batches": N, "limit_seconds": 5.0} | options
    subject = replace(of_factory(f"{factory.__module__}:{factory.__name__}"), options=("it",), **options)
    return {result.code: result for result in judged(registry.of_kind("data"), subject)}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or sys.modules[pairs.__module__])


@pytest.mark.parametrize("factory", HEALTHY, ids=lambda factory: factory.__name__)
def test_what_is_odd_and_healthy_is_not_complained_about(factory: Any) -> None:
    results = seen(factory)
    assert {code: end.findings for code, end in results.items() if end.findings} == {}
    broken = {code: end.reason for code, end in results.items() if end.verdict in (Verdict.CRASH, Verdict.FAIL)}
    required = {code: end.reason for code, end in results.items() if end.verdict is Verdict.SKIP and end.is_required}
    assert (broken, required) == ({}, {})


# Faulty, each with the code that has to tell it.


def changed(**parts: Any) -> Iterator[Any]:
    for index, each in enumerate(batches(length=S + 1)):
        ids, labels = each[:, :-1].copy(), each[:, 1:].copy()
        yield {
            "input_ids": parts.get("ids", lambda i, n: i)(ids, index),
            "targets": parts.get("targets", lambda t, i: t)(labels, ids),
        }


def negative_ids() -> Iterator[Any]:
    return changed(ids=lambda ids, n: np.where((np.arange(S) == 3) & (n == 2), -5, ids))


def ids_beyond() -> Iterator[Any]:
    return changed(targets=lambda targets, ids: np.where(np.arange(S) == S - 1, V, targets))


def float_ids() -> Iterator[Any]:
    for each in pairs():
        yield each[0].float(), each[1]


def too_long() -> Iterator[Any]:
    for each in batches(length=S + 9):
        yield each[:, :-1], each[:, 1:]


def too_short() -> Iterator[Any]:
    for each in batches(length=S - 4):
        yield torch.from_numpy(each)


def ragged() -> Iterator[Any]:
    for each in batches():
        yield [row[: S - index].tolist() for index, row in enumerate(each)]


def too_many_rows() -> Iterator[Any]:
    for each in pairs():
        yield torch.cat([each[0], each[0].flip(1)]), torch.cat([each[1], each[1].flip(1)])


def text_in_place_of_ids() -> Iterator[Any]:
    yield from [["some text", "more text"]] * 9


def targets_are_inputs() -> Iterator[Any]:
    return changed(targets=lambda targets, ids: ids)


def targets_two_on() -> Iterator[Any]:
    for each in batches(length=S + 2):
        yield each[:, :-2], each[:, 2:]


def targets_behind() -> Iterator[Any]:
    for each in batches(length=S + 1):
        yield each[:, 1:], each[:, :-1]


def targets_rolled() -> Iterator[Any]:
    for each in batches():
        yield torch.from_numpy(each), torch.from_numpy(each).roll(-1, 1)


def targets_of_other_rows() -> Iterator[Any]:
    return changed(targets=lambda targets, ids: targets[::-1].copy())


def hangs_at_first() -> Iterator[Any]:
    threading.Event().wait(30)
    yield from pairs()


def hangs_later() -> Iterator[Any]:
    for index, each in enumerate(pairs()):
        while index == 3:
            time.sleep(0.01)
        yield each


def raises() -> Iterator[Any]:
    yield from [next(pairs())]
    raise OSError("the shard is gone")


def raises_when_opened() -> Iterator[Any]:
    raise ConnectionError("no route to the host")


def exits() -> Iterator[Any]:
    yield next(pairs())
    sys.exit(0)


def has_nothing() -> list[Any]:
    return []


class Promising(Dataset):
    def __len__(self) -> int:
        return 400

    def __iter__(self) -> Iterator[Any]:
        return iter(list(pairs())[:3])


def always_the_first() -> Iterator[Any]:
    while True:
        yield next(pairs())


def every_row_twice() -> Iterator[Any]:
    for each in pairs():
        yield each
        yield each


def workers_that_repeat() -> DataLoader:
    return DataLoader(Workers(shares=False), batch_size=B, num_workers=2)


def one_token() -> Iterator[Any]:
    yield from [(np.full((B, S), 7), np.full((B, S), 7))] * 20


def ranks_alike(rank: int = 0, world_size: int = 1) -> Iterator[Any]:
    return pairs()


def held_out_is_trained_on(split: str = "train") -> Iterator[Any]:
    for index in range(50):
        each = rows(B, index, S + 1)
        yield (
            (each[:, :-1], each[:, 1:])
            if split == "train"
            else (np.roll(each, 2, 1)[:, :-1], np.roll(each, 2, 1)[:, 1:])
        )


def by_the_clock() -> Iterator[Any]:
    return (each for index, each in enumerate(splits_and_ranks(rank=time.time_ns() % 9_973)))


class Ahead(Going):
    """Its position is that of what it has read ahead."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at + 2}


class Forgetful(Going):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


def padding_predicted() -> Iterator[Any]:
    def fill(each: np.ndarray) -> np.ndarray:
        each[:, 10:] = 0
        return each

    for each in batches(length=S + 1):
        yield fill(each)[:, :-1], each[:, 1:]


def nothing_predicted() -> Iterator[Any]:
    return changed(targets=lambda targets, ids: np.where(np.arange(S) > 1, -100, targets))


def documents_crossed() -> Iterator[Any]:
    for each in batches(length=S + 1):
        yield {
            "input_ids": each[:, :-1],
            "targets": each[:, 1:],
            "documents": np.broadcast_to(np.arange(S) // 5, (B, S)),
        }


def ids_that_are_not_numbers() -> Iterator[Any]:
    return changed(ids=lambda ids, n: np.where(np.arange(S) == 3, np.nan, ids))


BREAKS = itertools.cycle([5, 3, 4, 2])


def breaks_sooner_or_later() -> Iterator[Any]:
    yield from itertools.islice(pairs(), next(BREAKS))
    raise ConnectionError("reset by peer")


FAULTY = {
    "DAT101": [negative_ids, ids_beyond, float_ids, ids_that_are_not_numbers],
    "DAT102": [too_long, too_short, ragged, too_many_rows, text_in_place_of_ids],
    "DAT103": [targets_are_inputs, targets_two_on, targets_behind, targets_rolled, targets_of_other_rows],
    "DAT104": [
        hangs_at_first,
        hangs_later,
        raises,
        raises_when_opened,
        breaks_sooner_or_later,
        exits,
        has_nothing,
        Promising,
    ],
    "DAT105": [always_the_first, every_row_twice, workers_that_repeat, one_token, ranks_alike],
    "DAT106": [held_out_is_trained_on],
    "DAT107": [by_the_clock],
    "DAT108": [Ahead, Forgetful],
    "DAT109": [padding_predicted, nothing_predicted],
    "DAT110": [documents_crossed],
}


@pytest.mark.parametrize(
    ("code", "factory"),
    [(code, factory) for code, factories in FAULTY.items() for factory in factories],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_what_is_faulty_is_reported_once_and_by_its_code(code: str, factory: Any) -> None:
    results = seen(factory, limit_seconds=1.0 if "hangs" in factory.__name__ else 5.0)
    findings = {found.code: found for result in results.values() for found in result.findings}
    assert list(findings) == [code], {each: found.message for each, found in findings.items()}
    assert Path(findings[code].where.file).parent == Path(__file__).parent
    assert findings[code].repro == "nsa-doctor data it"


def test_the_line_that_hangs_is_named() -> None:
    found = seen(hangs_later, limit_seconds=0.5)["DAT104"].findings[0]
    assert found.where.function == "hangs_later"
    assert "batch 3 did not come within 0.5 s, and waits at" in found.message


def labels_as_transformers_has_them() -> Iterator[Any]:
    for each in batches():
        yield {"input_ids": each, "labels": each.copy(), "attention_mask": np.ones((B, S))}


@pytest.mark.parametrize(("targets", "verdict"), [(None, "SKIP"), ("same", "PASS"), ("next", "FAIL")])
def test_labels_that_a_model_may_shift_are_a_question_until_it_is_answered(targets: Any, verdict: str) -> None:
    end = seen(labels_as_transformers_has_them, targets=targets)["DAT103"]
    assert end.verdict.value == verdict
    assert end.is_required


def answers_of_other_rows() -> Iterator[Any]:
    for each in batches(length=S + 1):
        labels = np.where(np.arange(S) > S - 9, np.roll(each, 1, axis=0)[:, 1:], -100)
        yield {"input_ids": each[:, :-1], "labels": labels}


def test_few_targets_that_nothing_hides_are_no_excuse() -> None:
    assert seen(masked_language, targets="next")["DAT103"].verdict is Verdict.FAIL
    assert seen(answers_of_other_rows)["DAT103"].verdict is Verdict.FAIL


@dataclass(frozen=True)
class Own:
    tokens: Any
    documents: Any


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (torch.zeros(2, 5, dtype=torch.int64), (2, 5)),
        (np.zeros(5, np.int64), (1, 5)),
        ([torch.zeros(5, dtype=torch.int64)] * 3, (3, 5)),
        ((torch.zeros(2, 5),), (2, 5)),
        ([[1, 2], [3, 4]], (2, 2)),
        (Own(torch.zeros(2, 6, dtype=torch.int64), torch.zeros(2, 6)), (2, 6)),
        (torch.zeros(2, 5, dtype=torch.bfloat16), (2, 5)),
        (SimpleNamespace(input_ids=torch.ones(2, 5), labels=torch.ones(2, 5)), (2, 5)),
    ],
    ids=["tensor", "row", "list-of-rows", "tuple-of-one", "lists", "ours", "bfloat16", "attributes"],
)
def test_batches_of_many_forms_are_read(given: Any, shape: tuple[int, int]) -> None:
    assert read_batch(given).inputs.shape == shape


@pytest.mark.parametrize(
    "given",
    [None, 3, "text", {}, {"images": 1}, torch.zeros(2, 3, 4), [], object(), {"input_ids": None}, [[], [1]]],
    ids=["none", "number", "text", "empty", "other-keys", "images", "empty-list", "object", "no-ids", "empty-row"],
)
def test_what_is_no_batch_is_reported_in_a_sentence(given: Any) -> None:
    with pytest.raises(UnreadableBatchError):
        read_batch(given)
