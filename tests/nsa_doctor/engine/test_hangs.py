"""A call that hangs, or ends its process: the report names the very module and the line, wherever it happens."""

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType

import pytest
import torch
from torch import nn

from nsa_doctor.core import registry
from nsa_doctor.core.deduplicate import deduplicate
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Decision, Finding, Report, Result, Verdict
from nsa_doctor.core.measurement import Measurement, Place, Point, Trouble
from nsa_doctor.core.reproduce import CommandLine
from nsa_doctor.engine.describe import findings
from nsa_doctor.engine.measure_points import Examination
from nsa_doctor.isolation.shared_record import FILE_BYTES, SIGHTING, TRAIL, SharedRecord
from nsa_doctor.probes.hooks import stack_sampler
from nsa_doctor.probes.hooks.line_recorder import LineRecorder
from nsa_doctor.probes.hooks.loops import loop_around
from nsa_doctor.probes.hooks.stack_sampler import _SIGNAL as SIGNAL
from nsa_doctor.probes.hooks.stack_sampler import Sighting, StackSampler
from tests.gallery.faulty import hangs
from tests.nsa_doctor.conftest import HERE, is_marked

SECONDS = 1.0


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(HERE)
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    hangs.RELEASED.clear()
    yield
    hangs.RELEASED.set()


def seen(call: Callable[[], object], *known: nn.Module, release: Callable[[], None] = hangs.RELEASED.set) -> Sighting:
    """What a sampler says, from another thread, of this one while it hangs in `call`."""
    sampler = StackSampler()
    for module in known:
        sampler.know(module)
    seen_by_another: list[Sighting | Caught] = []

    def look() -> None:
        time.sleep(0.05)
        seen_by_another.append(attempt(sampler.sight))
        release()

    sampler.listen()
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        call()
    finally:
        looking.join()
        signal.signal(SIGNAL, signal.SIG_DFL)
    assert isinstance(seen_by_another[0], Sighting)
    return seen_by_another[0]


def train(module: nn.Module) -> None:
    module(torch.zeros(1, 4, hangs.DIM)).sum().backward()


@pytest.mark.parametrize("name", ["spins", "waits", "spins_in_its_own_forward"])
def test_of_two_modules_of_one_class_the_one_that_hangs_is_named(name: str) -> None:
    module = getattr(hangs, name)()
    sighting = seen(lambda: module(torch.zeros(1, 4, hangs.DIM)), module)
    assert sighting.is_exact
    assert sighting.place.module == "layers.1"
    assert is_marked(sighting.place.file, sighting.place.line)


def test_a_module_nobody_announced_is_named_from_the_outermost_that_runs() -> None:
    module = hangs.spins()
    assert seen(lambda: module(torch.zeros(1, 4, hangs.DIM))).place.module == "layers.1"


def test_a_part_called_alone_has_its_path_in_the_whole() -> None:
    module = hangs.spins()
    sighting = seen(lambda: module.layers[1](torch.zeros(1, 4, hangs.DIM)), nn.Linear(1, 1), module)
    assert sighting.place.module_text == "layers.1 (Layer)"


def test_a_loop_is_reported_from_its_head_to_its_end() -> None:
    module = hangs.spins()
    sighting = seen(lambda: module(torch.zeros(1, 4, hangs.DIM)), module)
    assert sighting.loop == (sighting.place.line, sighting.place.line + 1)
    assert sighting.place.function == "_spin"


def test_a_call_that_waits_is_in_no_loop() -> None:
    module = hangs.waits()
    assert seen(lambda: module(torch.zeros(1, 4, hangs.DIM)), module).loop is None


def test_a_class_that_hangs_while_it_is_made_is_named() -> None:
    sighting = seen(hangs.spins_while_made)
    assert (sighting.place.module_text, sighting.place.function) == ("_Endless", "__init__")
    assert is_marked(sighting.place.file, sighting.place.line)


def test_a_factory_that_hangs_is_named_by_its_line() -> None:
    place = seen(hangs.spins_in_the_factory).place
    assert (place.module_text, place.function) == ("", "spins_in_the_factory")
    assert is_marked(place.file, place.line)


def test_an_import_that_hangs_is_named_by_its_line() -> None:
    name = "faulty.endless_import"

    def release() -> None:
        sys.modules[name].RELEASED.set()

    place = seen(lambda: importlib.import_module(name), release=release).place
    assert place.function == "<module>"
    assert is_marked(place.file, place.line)


def test_a_hook_that_hangs_in_backward_is_its_modules() -> None:
    module = hangs.spins_in_a_hook()
    sighting = seen(lambda: train(module), module)
    assert sighting.place.module == "layers.1"
    assert is_marked(sighting.place.file, sighting.place.line)


@pytest.mark.parametrize("name", ["spins", "waits"])
def test_local_variables_are_read_in_their_own_thread_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: set[int] = set()
    for reader in ("module_of", "context_of"):
        read = getattr(stack_sampler, reader)
        monkeypatch.setattr(
            stack_sampler, reader, lambda frame, read=read: (readers.add(threading.get_ident()), read(frame))[1]
        )
    module = getattr(hangs, name)()
    seen(lambda: module(torch.zeros(1, 4, hangs.DIM)), module)
    assert readers == {threading.get_ident()}


def test_a_subject_that_took_the_signal_is_still_named_by_its_line() -> None:
    def spin() -> None:
        signal.signal(SIGNAL, signal.SIG_IGN)
        hangs.spins()(torch.zeros(1, 4, hangs.DIM))

    place = seen(spin).place
    assert place.function == "_spin"
    assert is_marked(place.file, place.line)


class Written:
    """A page that keeps all its records."""

    def __init__(self) -> None:
        self.records = []

    def write(self, record) -> None:
        self.records.append(record)


def trailed(call: Callable[[], object], module: nn.Module) -> list:
    """What a trail wrote of a call, in a thread of its own."""
    page = Written()

    def follow() -> None:
        sampler = StackSampler()
        sampler.know(module)
        LineRecorder(sampler, page).begin()
        with contextlib.suppress(TypeError):  # what would have ended returns nothing
            call()

    thread = threading.Thread(target=follow)
    thread.start()
    thread.join()
    return page.records


@pytest.mark.parametrize("name", ["exits", "exits_in_backward"])
def test_a_trail_names_the_last_line_before_an_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", float)
    module = getattr(hangs, name)()
    records = trailed(lambda: train(module), module)
    places = [Place(**record["place"]) for record in records if record is not None]
    (last,) = {place for place in places if is_marked(place.file, place.line)}
    assert last.module == "layers.1"


def test_a_trail_goes_back_to_the_line_that_called() -> None:
    module = hangs.Stack(torch.tanh)
    records = trailed(lambda: module(torch.zeros(1, 4, hangs.DIM)), module)
    modules = [record and record["place"]["module"] for record in records]
    assert modules.index("layers.0") < modules.index("layers.1")
    assert records[-1]["place"]["file"] == __file__


def test_a_page_holds_the_last_record_or_none() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(FILE_BYTES)
        trail, sighting = (SharedRecord(file.fileno(), number) for number in (TRAIL, SIGHTING))
        assert trail.read() is None
        sighting.write({"of": "another"})
        for record in ({"a": 1, "b": "long"}, {"a": 2}):
            trail.write(record)
            assert trail.read() == record
        trail.write({"a": "x" * FILE_BYTES})
        assert trail.read() is None
        assert sighting.read() == {"of": "another"}


@pytest.mark.parametrize("noise", [b"", b"\xff" * 64, b"\x02\x00\x00\x00{}", b"\x00\x00\x00\x02[]"])
def test_a_page_written_to_by_a_stranger_holds_nothing(noise: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(FILE_BYTES)
        file.write(noise)
        file.flush()
        assert SharedRecord(file.fileno(), TRAIL).read() is None


LOOPS = """
def outer(x):
    while x:
        for y in x:
            step(y)
        def inner():
            for z in x:
                step(z)
        inner()
    step(x)
"""


@pytest.mark.parametrize(
    ("name", "lines", "loop"),
    [
        ("outer", {5}, (4, 5)),
        ("outer", {4, 9}, (3, 9)),
        ("outer", {10}, None),
        ("outer", {5, 10}, None),
        ("inner", {8}, (7, 8)),
        ("inner", {9}, None),
    ],
)
def test_the_innermost_loop_of_the_functions_own_is_found(
    name: str, lines: set[int], loop: tuple[int, int] | None, tmp_path: Path
) -> None:
    file = tmp_path / "loops.py"
    file.write_text(LOOPS)
    outer = next(each for each in compile(LOOPS, str(file), "exec").co_consts if isinstance(each, CodeType))
    inner = next(each for each in outer.co_consts if isinstance(each, CodeType))
    assert loop_around({"outer": outer, "inner": inner}[name], lines) == loop


def test_source_that_cannot_be_read_has_no_loops(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("while (:")
    for file in (str(broken), str(tmp_path / "nowhere.py"), "<string>"):
        assert loop_around(compile("while x:\n  x", file, "exec"), {1, 2}) is None


LOOP = Place(module="layers.1", file="m.py", line=3, function="scan")
BELOW = replace(LOOP, line=5)
ELSEWHERE = replace(LOOP, function="gate", line=9)


def test_two_lines_of_one_function_that_does_not_return_are_one_cause() -> None:
    troubles = [Trouble(kind="timeout", message="no answer", place=place) for place in (LOOP, BELOW, ELSEWHERE)]
    measured = [Measurement(point=Point(length=n + 1), trouble=trouble) for n, trouble in enumerate(troubles)]
    found = findings(Examination(measurements=measured), CommandLine(options=()))
    assert [(finding.where, finding.evidence["lengths"]) for finding in found] == [(LOOP, "1,2"), (ELSEWHERE, "3")]


def test_an_end_that_nobody_placed_is_counted_among_those_like_it() -> None:
    troubles = [
        Trouble(kind="died", message=message, place=place)
        for message, place in (("killed", Place()), ("killed", LOOP), ("killed", BELOW), ("left", Place()))
    ]
    measured = [Measurement(point=Point(length=n + 1), trouble=trouble) for n, trouble in enumerate(troubles)]
    found = findings(Examination(measurements=measured), CommandLine(options=()))
    assert {(finding.where, finding.evidence["lengths"]) for finding in found} == {(LOOP, "1,2,3"), (Place(), "4")}


def ended(code: str, place: Place, kind: str = "timeout") -> Result:
    finding = Finding(code=code, message="the call does not return", where=place, evidence={"kind": kind})
    verdict = Verdict.TIMEOUT if kind == "timeout" else Verdict.FAIL
    return Result(code=code, name="x", verdict=verdict, findings=(finding,))


def verdicts(*results: Result) -> dict[str, tuple[Verdict, int]]:
    """Verdict and number of findings by code."""
    found = deduplicate(results, registry.entries())
    assert Report(command="run", subject={}, options={}, environment={}, results=found).decision is Decision.NO_GO
    return {result.code: (result.verdict, len(result.findings)) for result in found}


def test_one_hang_is_one_verdict() -> None:
    assert verdicts(ended("FWD208", BELOW), ended("HNG101", LOOP), ended("FWD206", LOOP)) == {
        "HNG101": (Verdict.TIMEOUT, 1),
        "FWD206": (Verdict.SKIP, 0),
        "FWD208": (Verdict.SKIP, 0),
    }


def test_a_skipped_check_says_beside_which_hang() -> None:
    found = deduplicate([ended("HNG101", LOOP), ended("FWD206", LOOP)], registry.entries())
    assert found[0].findings[0].also == ("FWD206",)
    assert found[1].reason == "means nothing while HNG101 fails: a call it makes ends in the same place"


def test_a_hang_that_no_sweep_met_is_reported_by_the_first_check_that_did() -> None:
    passed = Result(code="HNG101", name="x", verdict=Verdict.PASS)
    assert verdicts(passed, ended("FWD208", LOOP), ended("GRD101", LOOP)) == {
        "HNG101": (Verdict.PASS, 0),
        "FWD208": (Verdict.TIMEOUT, 1),
        "GRD101": (Verdict.SKIP, 0),
    }


def test_a_hang_in_another_place_is_another_verdict() -> None:
    assert verdicts(ended("HNG101", LOOP), ended("FWD206", ELSEWHERE))["FWD206"] == (Verdict.TIMEOUT, 1)


@pytest.mark.parametrize("place", [LOOP, Place()])
def test_one_death_is_one_verdict(place: Place) -> None:
    assert verdicts(ended("HNG101", place, "died"), ended("FWD206", place, "died")) == {
        "HNG101": (Verdict.FAIL, 1),
        "FWD206": (Verdict.SKIP, 0),
    }


def test_a_hang_and_a_death_nobody_can_place_are_two() -> None:
    assert verdicts(ended("HNG101", Place(), "died"), ended("FWD206", Place()))["FWD206"] == (Verdict.TIMEOUT, 1)


def test_what_failed_beside_a_hang_is_no_skip() -> None:
    finding = Finding(code="GRD201", message="no gradient", where=replace(LOOP, line=4))
    failed = Result(code="GRD201", name="x", verdict=Verdict.FAIL, findings=(finding,))
    assert verdicts(ended("HNG101", LOOP), failed)["GRD201"] == (Verdict.FAIL, 1)
