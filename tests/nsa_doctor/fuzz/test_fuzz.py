"""Fuzzing finds what is planted in few inputs, shrinks it to almost nothing, saves it, and tries it again."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.cli.main import serve
from nsa_doctor.fuzz import strategies
from nsa_doctor.fuzz.cases import TARGETS, Case, CaseError, Target, read_case
from nsa_doctor.fuzz.outcome import FuzzOutcome
from nsa_doctor.fuzz.properties.examine import examine, offers
from nsa_doctor.fuzz.search import Search
from nsa_doctor.subject.contract import Subject
from tests.gallery.faulty import fuzzed
from tests.nsa_doctor.conftest import HERE

FEW = 200


def examiner(subject: Subject) -> Callable[[dict], FuzzOutcome]:
    return lambda case: examine(read_case(json.dumps(case)), subject)


def searched(target: Target, subject: Subject, examples: int = FEW, number: int = 0, is_builtin: bool = True) -> Search:
    search = Search()
    strategy = strategies.of(target, {**offers(subject), "dtype": None}, is_builtin)
    options = {"examples": examples, "number": number, "until": math.inf, "listen": lambda search: None}
    search.run(strategy, examiner(subject), **options)
    return search


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Subject]:
    monkeypatch.syspath_prepend(HERE)
    return lambda name: load_subject(SubjectRequest(spec=f"faulty.{name}", lengths=(3, 2)))


PLANTED = {  # bug: target, property, what the least input must satisfy
    "shifted": ("ranges", "slots_to_mask: wrong answer", lambda c: c.num_tokens == 2 and c.rows == [[0]]),
    "clamps_in_place": ("ranges", "argument written", lambda c: c.num_tokens == 1 and c.rows == [[]]),
    "clamps": ("ranges", "ranges_to_mask: invalid accepted", lambda c: c.num_tokens == 1 and len(c.rows[0]) == 1),
    "unmerged": ("ranges", "slots_to_ranges: wrong answer", lambda c: c.rows == [[0, 0]]),
    "descending": ("ranges", "mask_to_slots: wrong answer", lambda c: len(c.rows[0]) <= 2),
    "takes_anything": ("ranges", "invalid accepted", lambda c: c.sizes == [0] * 5),
    "blocks_off_by_one": ("ranges", "num_compressed wrong", lambda c: c.num_tokens == 1),
    "window_in_the_grid": ("ranges", "window_range wrong", lambda c: c.query == 1),
    "overlap_of_one": ("ranges", "overlap wrong", lambda c: c.num_tokens == 2),
    "sees_one_more": ("masks", "compressed: reads what it may not", lambda c: c.lengths == [2]),
    "window_one_short": ("masks", "sliding: does not read what it may", lambda c: c.lengths == [2]),
    "softmax_of_nothing": ("masks", "compressed: reads what it may not", lambda c: c.lengths == [1]),
    "crosses_sequences": ("masks", "sliding: reads what it may not", lambda c: c.lengths == [1, 1]),
    "ignores_causality": ("masks", "gradient reaches another query", lambda c: sum(c.lengths) <= 3),
    "drops_the_forced": ("select", "forced block missing", lambda c: c.importance == [[[[0]]]]),
    "unsorted": ("select", "unsorted", lambda c: c.importance == [[[[0]]]]),
    "of_the_future": ("select", "future block", lambda c: c.importance == [[[[0, 0]]]]),
    "last_of_ties": ("select", "tie to the higher index", lambda c: c.importance == [[[[0] * 5]]]),
    "worst_first": ("select", "not the best by score", lambda c: len(c.importance) == 1),
    "repeats": ("select", "duplicate", lambda c: c.importance == [[[[0]]]]),
    "scales_in_place": ("select", "argument written", lambda c: c.importance == [[[[0]]]]),
    "by_the_batch": ("select", "depends on other rows", lambda c: len(c.importance) == 2),
    "by_memory": ("select", "depends on strides", lambda c: c.layout != "contiguous"),
    "unscaled": ("attend", "compressed: differs from dense attention", lambda c: c.num_tokens == 2),
    "overflows": ("attend", "", lambda c: c.num_tokens == 1 and c.dtype != "float64"),
    "writes_gates": ("attend", "argument written", lambda c: c.num_tokens == 1),
}


RARER = {"takes_anything", "window_in_the_grid", "overlap_of_one", "softmax_of_nothing", "overflows", "writes_gates"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if name in RARER else []) for name in PLANTED]
)
def test_a_planted_bug_is_found_in_few_inputs_and_shrunk(
    name: str, small: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, property, is_small = PLANTED[name]
    healed = examiner(small)
    with monkeypatch.context() as planting:
        fuzzed.plant(name, planting.setattr)
        search = searched(target, small)
        assert search.failure is not None, f"{search.num_examples} inputs were tried in vain"
        assert property in search.failure.property
        assert search.case is not None
        assert is_small(read_case(json.dumps(search.case))), search.case
        assert examiner(small)(search.case).failures
        assert search.is_repeatable
        place = search.failure.where
        assert place.module or place.function
        assert place.file.endswith(".py")
        assert place.line > 0
    assert healed(search.case).failures == ()


def test_every_planted_bug_is_tried() -> None:
    assert set(PLANTED) == set(fuzzed.PATCHES)


FOREIGN = {  # subject: property, the least length
    "peeks": ("future changes output", 6),
    "mixes_rows": ("row alone differs", 1),
    "knows_its_length": ("prefix differs", 2),
    "draws": ("two calls differ", 1),
    "no_gradient": ("gradient not finite", 1),
    "divides": ("not finite on some values", 1),
    "shorter": ("wrong shape", 4),
    "writes_its_input": ("argument written", 1),
    "ignores_strides": ("depends on strides", 1),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_module_is_found_out(name: str, foreign: Callable[[str], Subject]) -> None:
    property, least = FOREIGN[name]
    search = searched("forward", foreign(f"fuzzed:{name}"), is_builtin=False)
    assert search.failure is not None
    assert search.failure.property == property
    assert search.case is not None
    assert search.case["length"] <= max(least, 2)
    expected = ("part (Part)",) if name == "shorter" else ("Host", "_Bare")  # what makes a shape wrong is followed
    assert search.failure.where.module_text in expected


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", [1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 12))])
def test_healthy_nsa_holds(target: Target, number: int, small: Subject) -> None:
    search = searched(target, small, examples=30, number=number)
    assert search.failure is None, (search.failure, search.case)
    assert search.num_examples >= 25
    assert search.num_discarded == 0


@pytest.mark.parametrize("name", ["causal", "masked", "token_model", "no_parameters", "frozen", "rude", "tuple_output"])
def test_a_healthy_foreign_module_holds(name: str, foreign: Callable[[str], Subject]) -> None:
    search = searched("forward", foreign(f"healthy:{name}"), examples=25, is_builtin=False)
    assert search.failure is None, (search.failure, search.case)
    assert search.num_examples >= 20


def test_the_same_seed_tries_the_same_inputs_and_ends_at_the_same(
    small: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuzzed.plant("worst_first", monkeypatch.setattr)

    def tried(number: int) -> tuple[list[str], dict | None]:
        seen: list[str] = []
        test = examiner(small)
        search = Search()
        strategy = strategies.of("select", {**offers(small), "dtype": None}, True)
        noting = lambda case: seen.append(json.dumps(case)) or test(case)  # noqa: E731
        search.run(strategy, noting, examples=60, number=number, until=math.inf, listen=lambda search: None)
        return seen, search.case

    first, again, other = tried(5), tried(5), tried(6)
    assert first == again
    assert first[1] is not None
    assert other[0] != first[0]


def test_a_search_ends_when_its_time_is_over(small: Subject) -> None:
    search = Search()
    strategy = strategies.of("ranges", {**offers(small), "dtype": None}, True)
    until = time.monotonic() - 1
    search.run(strategy, examiner(small), examples=60, number=0, until=until, listen=lambda search: None)
    assert (search.num_examples, search.failure) == (0, None)


@pytest.mark.parametrize(
    "wrong",
    [
        "{}",
        '{"kind": "nothing"}',
        '{"kind": "slots", "l_sel": 0, "num_tokens": 1, "rows": [[0]], "dtype": "int64", "layout": "offset"}',
        '{"kind": "slots", "l_sel": 1, "num_tokens": 1, "rows": [[0], []], "dtype": "int64", "layout": "offset"}',
        '{"kind": "slots", "l_sel": 1, "num_tokens": 1, "rows": [[0]], "dtype": "int64", "layout": "offset", "x": 1}',
        '{"kind": "grid", "sizes": [1, 1, 1, 3], "num_tokens": 1, "query": 0, "slots": []}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:60],
)
def test_a_case_that_cannot_be_is_refused(wrong: str) -> None:
    with pytest.raises(CaseError):
        read_case(wrong)


def saved(tmp_path: Path, **changes: object) -> Path:
    record = {
        "format": "nsa-doctor-fuzz",
        "version": 1,
        "target": "ranges",
        "property": "p",
        "message": "m",
        "seed": 0,
        "case": {"kind": "grid", "sizes": [1, 1, 1, 3, 1], "num_tokens": 1, "query": 0, "slots": []},
    }
    path = tmp_path / "case.json"
    path.write_text(json.dumps({**record, **changes}))
    return path


HOSTILE = [  # what a file holds, what the sentence must say
    ({"format": "other"}, "is not a file of nsa-doctor fuzz"),
    ({"version": 2}, "must be of version 1, got 2"),
    ({"version": True}, "must be of version 1"),
    ({"target": "planets"}, "target"),
    ({"target": "select"}, "case.kind grid is none of target select"),
    ({"extra": 1}, "extra"),
    ({"seed": -1}, "seed"),
    ({"case": {"kind": "grid"}}, "Field required"),
    ({"case": {"kind": "pass", "length": 10**12}}, "case"),
    ({"case": [1]}, "case"),
    ({"spec": "os:getcwd"}, "was found on --subject os:getcwd"),
    ({"config": "/etc/passwd"}, "config must be a built-in name"),
    ({"message": "\x1b[2J", "target": "\x1b[2J"}, "target"),
]


@pytest.mark.parametrize(("changes", "message"), HOSTILE, ids=[str(case[0])[:40] for case in HOSTILE])
def test_a_hostile_file_is_one_sentence(
    changes: dict, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(["fuzz", "--replay", str(saved(tmp_path, **changes))]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert message in complaint
    assert "\x1b" not in complaint


BROKEN = {
    "empty": (b"", "is empty"),
    "torn": (b'{"format": "nsa-doctor-fuzz"', "is not JSON"),
    "binary": (b"\xff\xfe\x00", "is not text in UTF-8"),
    "huge": (b"[" * ((1 << 20) + 1), "is larger than 1 MB"),
    "deep": (b"[" * 200_000, "is not JSON"),
    "nan": (b'{"format": NaN}', "is not JSON: NaN is not strict JSON"),
    "digits": (b"1" * 5000, "is not JSON"),
    "list": (b"[]", "is not a file of nsa-doctor fuzz"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, message = BROKEN[name]
    path = tmp_path / "case.json"
    path.write_bytes(data)
    assert serve(["fuzz", "--replay", str(path)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert message in complaint


REFUSED = [
    (["fuzz"], "a target is needed"),
    (["fuzz", "planets"], "a target cannot be 'planets': allowed are ranges"),
    (["fuzz", "select", "--examples", "0"], "--examples must be from 1"),
    (["fuzz", "select", "--examples", "-3"], "--examples must be from 1"),
    (["fuzz", "select", "--minutes", "nan"], "--minutes must be a number above 0"),
    (["fuzz", "select", "--minutes", "-1"], "--minutes must be a number above 0"),
    (["fuzz", "select", "--minutes", "inf"], "--minutes must be a number above 0"),
    (["fuzz", "select", "--seed", "-1"], "--seed must be from 0"),
    (["fuzz", "select", "--timeout", "nan"], "--timeout must be a number of seconds above 0"),
    (["fuzz", "select", "--subject", "x"], "--subject must be package.module:factory"),
    (["fuzz", "select", "--save", "/nowhere/case.json"], "cannot be written"),
    (["fuzz", "--replay", "/nowhere/case.json"], "no such file"),
    (["fuzz", "--replay", "/dev/zero"], "is no regular file"),
    (["fuzz", "--replay", "/"], "is no regular file"),
    (["fuzz", "--replay", "x.json", "--examples", "3"], "--examples has no effect with --replay"),
    (["fuzz", "--replay", "x.json", "--config", "y"], "--config has no effect with --replay"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[" ".join(case[0]) for case in REFUSED])
def test_a_wrong_command_line_is_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(words) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert message in complaint


def test_cases_are_printed_in_short_lines(small: Subject) -> None:
    from nsa_doctor.fuzz.cases import case_lines

    lines: list[str] = []

    def noted(case: dict) -> FuzzOutcome:
        read: Case = read_case(json.dumps(case))
        lines.extend(case_lines(read))
        return FuzzOutcome()

    strategy = strategies.of("forward", {**offers(small), "dtype": None}, True)
    Search().run(strategy, noted, examples=20, number=0, until=math.inf, listen=lambda search: None)
    assert max(map(len, lines)) < 80
    assert "kind" not in " ".join(lines)
