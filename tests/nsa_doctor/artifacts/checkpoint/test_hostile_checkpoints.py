"""Hostile, broken and odd checkpoints: none is executed, none hangs, each gets one sentence and its exit code.

Here the library reads them, all in one process; `python -m tests.hostile` gives every one to the command.
"""

import contextlib
import json
import random
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from nsa_doctor.artifacts.checkpoint import gate_stats, reader
from nsa_doctor.artifacts.checkpoint.fault import OPEN
from nsa_doctor.artifacts.checkpoint.gate_stats import stats_request
from nsa_doctor.artifacts.checkpoint.judging import judged
from nsa_doctor.artifacts.checkpoint.reader import ReadRequest, read_checkpoint
from nsa_doctor.artifacts.checkpoint.record import Reading
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Report, Result, Verdict
from nsa_doctor.policy import go_no_go
from nsa_doctor.policy.go_no_go import GoNoGoRequest
from nsa_doctor.policy.policy import Policy, load_policy
from nsa_doctor.worker.checkpoint_main import answered
from tests.hostile import code
from tests.hostile.__main__ import complaints
from tests.hostile.case import canary
from tests.hostile.corpus import every_case
from tests.hostile.many import USUAL
from tests.nsa_doctor.conftest import ROOT, environment

CASES = {case.name: case for case in every_case() if not case.is_slow}
NO_LIMITS = {"limits": ()}  # which measure a run, and none is given
POLICIES = {name: load_policy(name).model_copy(update=NO_LIMITS) for name in ("foreign", "ci", "production")}
BY_THE_COMMAND = (
    *("code-name-with-escapes", "path-fifo", "compressed", "names-that-a-terminal-obeys", "not-finite-nan-elsewhere"),
)


@dataclass(frozen=True)
class Read:
    """A file of the corpus, and what came of it."""

    folder: Path
    path: str
    answer: dict


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Read]:
    """Every case made, and all read in one process."""
    made: dict[str, tuple[Path, str]] = {}
    for name, case in CASES.items():
        folder = tmp_path_factory.mktemp("case")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about what is written here
            made[name] = folder, str(case.make(folder))
    lines = "".join(json.dumps(path) + "\n" for _, path in made.values())
    command = [sys.executable, "-m", "tests.hostile.many"]
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, cwd=ROOT, env=environment(), check=False
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert (len(answers), done.returncode) == (len(made), 0), done.stderr
    return {name: Read(*place, answer) for (name, place), answer in zip(made.items(), answers, strict=True)}


def wrong(name: str, read: dict[str, Read]) -> Iterator[str]:
    """What is not as it should be: the fault, the words, the sentence's manners, and the verdict that follows."""
    case, found = CASES[name], read[name]
    if canary(found.folder).exists():
        yield "the file's code was executed"
    reading = reading_of(found)
    if reading.fault not in (case.kinds or (None,)):
        yield f"{reading.fault}, not {' or '.join(case.kinds)}: {reading.sentence}"
    if case.says not in (reading.sentence or json.dumps(found.answer, ensure_ascii=False)):
        yield f"does not say {case.says!r}: {reading.sentence}"
    if not reading.sentence.isprintable() or len(reading.sentence) > 600 or reading.sentence.endswith((".", "!")):
        yield f"is no sentence for a terminal: {reading.sentence!r}"
    results = judged(reading, (reading.path,))
    verdicts = {result.verdict for result in results if result.is_required}
    code = 1 if Verdict.FAIL in verdicts else 3 if Verdict.SKIP in verdicts else 0
    if Verdict.CRASH in verdicts or code not in (case.codes if case.codes != {2} else {1}):
        yield f"ends in {code}: {[(result.code, result.verdict, result.reason) for result in results]}"
    if sum(len(result.findings) for result in results) > 1:
        yield "is reported more than once"


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("cut-")])
def test_a_file_is_reported_for_what_it_is(name: str, read: dict[str, Read]) -> None:
    assert list(wrong(name, read)) == []


@pytest.mark.parametrize("kind", sorted({name.rsplit("-", 1)[0] for name in CASES if name.startswith("cut-")}))
def test_a_file_that_is_cut_short_anywhere_is_reported(kind: str, read: dict[str, Read]) -> None:
    names = [name for name in CASES if name.startswith(kind)]
    assert len(names) >= 20
    assert [(name, what) for name in names for what in wrong(name, read)] == []


class Refused(NamedTuple):
    """How a command ends that refuses what it is given."""

    sentence: str


def decided(ask: Callable[[], str]) -> str | Refused:
    try:
        return ask()
    except UsageError as error:
        return Refused(str(error).removeprefix("--checkpoint "))


def with_everything_else_passed(request: GoNoGoRequest, *_: object) -> Report:
    """What the checks of the module would give for a healthy one."""
    asked = [each.manual for each in request.policy.checks if each.examines == "module"]
    results = tuple(Result(code=manual.code, name=manual.name, verdict=Verdict.PASS) for manual in asked)
    return Report(command="go-no-go", subject={"name": "a module"}, options={}, environment={}, results=results)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("cut-") or name.endswith("-1")])
def test_go_no_go_decides_as_gate_stats_by_every_policy_of_ours(
    name: str, read: dict[str, Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = reading_of(read[name])
    monkeypatch.setattr(gate_stats, "read_checkpoint", lambda *_: reading)
    monkeypatch.setattr(go_no_go, "_examined", with_everything_else_passed)
    request = stats_request(files=[reading.path], pattern=None, num_branches=3, activation=None, seed=0, timeout=60.0)
    why: list[str] = []

    def decision(policy: Policy) -> str:
        asked = GoNoGoRequest(examination_request=ExaminationRequest(), policy=policy, checkpoint=request)
        verdict = go_no_go.go_no_go(asked).verdict
        why.append(verdict.why[0])
        return verdict.decision

    alone = decided(lambda: gate_stats.gate_stats(request).decision.value)
    together = {policy: decided(partial(decision, each)) for policy, each in POLICIES.items()}
    assert together == dict.fromkeys(POLICIES, alone)
    if reading.fault not in (None, *OPEN):
        assert all(each.startswith("CKP102" if reading.fault == "unsafe" else "CKP101") for each in why)
        assert all(reading.sentence in each for each in why)
    if reading.fault in ("unsafe", "truncated", "corrupt", "incomplete"):
        assert all(("unsafe" if reading.fault == "unsafe" else "cannot be read") in each for each in why)


def reading_of(found: Read) -> Reading:
    assert "broke" not in found.answer, found.answer["traceback"]
    return Reading.from_json(found.answer["read"])


@pytest.mark.parametrize("name", BY_THE_COMMAND)
def test_the_command_ends_as_it_should(name: str, read: dict[str, Read], doctor: Callable) -> None:
    found = read[name]
    done = doctor("gate-stats", "--quiet", "--", found.path)
    assert list(complaints(CASES[name], found.folder, done.returncode, done.stdout, done.stderr)) == []


def test_the_corpus_is_armed(tmp_path: Path) -> None:
    """Python's own pickle runs the code, or a corpus that runs nothing would prove nothing."""
    harmless = []
    for name, data in code.live(tmp_path):
        program = "import pickle, sys; x = pickle.load(sys.stdin.buffer); list(x) if type(x) is map else None"
        subprocess.run([sys.executable, "-c", program], input=data, check=False, capture_output=True, cwd=ROOT)
        harmless += [] if canary(tmp_path).exists() else [name]
        canary(tmp_path).unlink(missing_ok=True)
    assert harmless == []


def test_missing_empty_cut_short_damaged_unsafe_and_not_finite_are_six_sentences(read: dict[str, Read]) -> None:
    names = ("path-missing", "file-empty", "cut-archive-0", "crc-of-a-tensor", "code-reduce-system")
    sentences = [reading_of(read[name]).sentence.split("'", 2)[2] for name in names]
    finding = next(
        finding.message
        for result in judged(reading_of(read["not-finite-nan-elsewhere"]), ())
        for finding in result.findings
    )
    shapes = [" ".join(sentence.split()[:4]) for sentence in (*sentences, finding)]
    assert len(set(shapes)) == 6, shapes


@pytest.mark.parametrize("seed", range(8))
def test_a_mutated_file_is_read_or_refused(seed: int, tmp_path: Path) -> None:
    """Whatever becomes of its bytes: no exception that nobody foresaw, no sentence that a terminal obeys."""
    numbers = random.Random(seed)
    path, file = MUTATED[seed % len(MUTATED)](tmp_path)
    original = file.read_bytes()
    for _ in range(60):
        file.write_bytes(mutated(original, numbers))
        if numbers.random() < 0.7:
            mend_sums(file)  # so that what comes behind the checksums is reached
        answer = answered({**USUAL, "path": str(path)})
        assert "broke" not in answer, answer["traceback"]
        assert answer["read"]["sentence"].isprintable()
    assert not canary(tmp_path).exists()


def archive_of(name: str) -> Callable[[Path], tuple[Path, Path]]:
    def make(folder: Path) -> tuple[Path, Path]:
        path = Path(next(case for case in every_case() if case.name == name).make(folder))
        return path, path

    return make


def part_of(name: str, pattern: str) -> Callable[[Path], tuple[Path, Path]]:
    def make(folder: Path) -> tuple[Path, Path]:
        path = Path(next(case for case in every_case() if case.name == name).make(folder))
        return path, next(path.glob(pattern))

    return make


MUTATED = (
    archive_of("healthy-training"),
    archive_of("healthy-safetensors-of-odd-dtypes"),
    archive_of("healthy-views"),
    archive_of("code-legacy-tar"),
    archive_of("legacy-without-code"),
    archive_of("sharded-healthy"),
    part_of("distributed-healthy", ".metadata"),
    part_of("distributed-healthy", "*.distcp"),
)


def mutated(content: bytes, numbers: random.Random) -> bytes:
    """A few bytes changed, lost, doubled or put in, mostly near the head."""
    data = bytearray(content)
    for _ in range(numbers.choice((1, 1, 2, 8))):
        place = numbers.randrange(len(data) if numbers.random() < 0.5 else min(len(data), 1000))
        match numbers.randrange(4):
            case 0:
                data[place] ^= 1 << numbers.randrange(8)
            case 1:
                data[place] = numbers.choice(b"\x00\xff\x80.Rc(Q\x93\x81bt")
            case 2:
                del data[place : place + numbers.choice((1, 4, 50))]
            case 3:
                data[place : place + 8] = numbers.choice((b"\xff" * 8, bytes(8), (2**62).to_bytes(8, "little")))
    return bytes(data)


def mend_sums(path: Path) -> None:
    """Makes the checksums of an archive's entries right again."""
    data = bytearray(path.read_bytes())
    place = data.find(b"PK\x01\x02")
    while place >= 0:
        with contextlib.suppress(struct.error):
            (size,), (header,) = struct.unpack_from("<I", data, place + 24), struct.unpack_from("<I", data, place + 42)
            first = header + 30 + sum(struct.unpack_from("<2H", data, header + 26))
            struct.pack_into("<I", data, place + 16, zlib.crc32(data[first : first + size]))
        place = data.find(b"PK\x01\x02", place + 4)
    path.write_bytes(data)


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`room(text)` has checkpoints read by a module of this text."""

    def use(text: str) -> None:
        (tmp_path / "a_room.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(reader, "_ROOM", "a_room")

    return use


def test_what_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: Callable[[str], None]
) -> None:
    room("import time; time.sleep(60)")
    monkeypatch.setattr(reader, "_SPARE_SECONDS", 0.0)
    reading = read_checkpoint(str(tmp_path), ReadRequest(seconds=0.2))
    assert reading.fault == "limit"
    assert reading.sentence.endswith("is not read after 0.2 s; --timeout allows more")


def test_what_ends_its_process_is_reported(tmp_path: Path, room: Callable[[str], None]) -> None:
    room("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    reading = read_checkpoint(str(tmp_path), ReadRequest())
    assert reading.fault == "limit"
    assert "died by signal 11" in reading.sentence


def test_time_that_runs_out_is_reported(tmp_path: Path) -> None:
    case = next(case for case in every_case() if case.name == "pickle-too-many-parts")
    reading = read_checkpoint(str(case.make(tmp_path)), ReadRequest(seconds=0.3))
    assert (reading.fault, "takes more than" in reading.sentence) == ("limit", True)


def test_memory_that_runs_out_is_reported(tmp_path: Path, room: Callable[[str], None]) -> None:
    less = "from nsa_doctor.artifacts.checkpoint import limits; limits.MOST_MEMORY = 2**26"
    room(f"{less}\nfrom nsa_doctor.worker.checkpoint_room import open_room")
    path = tmp_path / "wide.safetensors"
    text = b'{"":[' + b"{}," * 2_000_000 + b"0]}"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    reading = read_checkpoint(str(path), ReadRequest())
    assert reading.fault == "limit", reading
    assert "of memory to read" in reading.sentence
