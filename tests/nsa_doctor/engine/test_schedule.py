"""Tasks are worked off on several supervisors at once; what any of them raises ends all of them and is raised."""

import threading
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

import pytest

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.core.registry import entries
from nsa_doctor.engine import session as sessions
from nsa_doctor.engine.schedule import Task, work_off
from nsa_doctor.engine.session import Session
from nsa_doctor.isolation.postmortem import HangHistory
from nsa_doctor.isolation.supervisor import SupervisorClosedError

LONGEST = 20.0  # seconds, of what takes milliseconds


@dataclass
class Room:
    """A supervisor that does what its tasks do; `wait` lasts until it is interrupted."""

    history: HangHistory = field(default_factory=HangHistory)
    interrupted: threading.Event = field(default_factory=threading.Event)
    facts: dict[str, Any] = field(default_factory=lambda: {"seams": ()})

    def interrupt(self) -> None:
        self.interrupted.set()

    def wait(self) -> str:
        assert self.interrupted.wait(LONGEST), "nobody interrupts it"
        raise SupervisorClosedError

    def check(self, code: str, seconds: float, at_most: float) -> Result:
        return Result(code=code, name="some-name", verdict=Verdict.PASS, notes=(f"note of {code}",))


def task(name: str, work: Callable[[Room], str] | None = None, after: tuple[str, ...] = ()) -> Task:
    return Task(name, frozenset({name}), frozenset(after), work or (lambda room: name))


def outcome(
    *tasks: Task,
    jobs: int = 2,
    listen: Callable[[str, int, int], None] = lambda text, done, total: None,
    stop_early: Callable[[], bool] = lambda: False,
) -> Any:
    """What comes of it: an error, or what was heard; a test that would wait for ever fails."""
    heard: list[tuple[str, int, int]] = []
    ends: list[Any] = []

    def hear(text: str, done: int, total: int) -> None:
        heard.append((text, done, total))
        listen(text, done, total)

    rooms = [Room() for _ in range(jobs)]
    thread = threading.Thread(
        target=lambda: ends.append(attempt(lambda: work_off(tasks, rooms, hear, stop_early))), daemon=True
    )
    thread.start()
    thread.join(LONGEST)
    assert ends, "work_off does not return"
    return ends[0].error if isinstance(ends[0], Caught) else heard


@pytest.fixture(autouse=True)
def threads_end_with_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for ever must not keep the tests from ending."""
    start = threading.Thread.start

    def start_as_daemon(thread: threading.Thread) -> None:
        thread.daemon = True
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_as_daemon)


def boom(*_: Any) -> Any:
    raise RuntimeError("dictionary changed size during iteration")


@pytest.mark.parametrize("jobs", [1, 2, 3])
@pytest.mark.parametrize("faulty", ["work", "listen", "stop_early"])
def test_what_is_raised_anywhere_reaches_the_caller(faulty: str, jobs: int) -> None:
    first = task("A", boom if faulty == "work" else None)
    how = {} if faulty == "work" else {faulty: boom}
    error = outcome(first, task("B", after=("A",)), task("C", after=("B",)), jobs=jobs, **how)
    assert isinstance(error, RuntimeError)


def test_what_one_task_raises_interrupts_the_others_at_once() -> None:
    error = outcome(task("A", Room.wait), task("B", boom))
    assert isinstance(error, RuntimeError)


def test_a_threads_own_exit_is_raised_and_not_waited_for() -> None:
    def leave(room: Room) -> str:
        raise SystemExit(7)

    assert isinstance(outcome(task("A", leave), task("B", after=("A",))), SystemExit)


def test_a_task_starts_when_all_it_waits_for_are_answered() -> None:
    heard = outcome(task("C", after=("A", "B")), task("B", after=("A",)), task("A"), task("D", after=("none",)))
    order = [text for text, _, _ in heard]
    assert sorted(order) == ["A", "B", "C", "D"]
    assert order.index("A") < order.index("B") < order.index("C")
    assert [(done, total) for _, done, total in heard] == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_task_that_answers_several_codes_is_waited_for_by_each() -> None:
    several = Task("several", frozenset({"A", "B"}), frozenset(), lambda room: "several")
    heard = outcome(task("C", after=("A",)), task("D", after=("B",)), several, jobs=1)
    assert [text for text, _, _ in heard] == ["several", "C", "D"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_tasks_that_wait_for_each_other_are_done_one_after_another(jobs: int) -> None:
    heard = outcome(task("A", after=("B",)), task("B", after=("C",)), task("C", after=("A",)), jobs=jobs)
    assert [text for text, _, _ in heard] == ["A", "C", "B"]


def test_no_task_is_begun_after_it_is_enough() -> None:
    done: list[str] = []
    tasks = [task(name, lambda room, name=name: done.append(name) or name) for name in "ABC"]
    heard = outcome(*tasks, jobs=1, stop_early=lambda: len(done) >= 2)
    assert done == ["A", "B"]
    assert heard == [("A", 1, 3), ("B", 2, 3)]


class Asked(frozenset[str]):
    """Codes that are waited for; `at` is set once a supervisor asks whether they are answered, and they are not."""

    at: threading.Event

    def __and__(self, others: Set[object]) -> "frozenset[str]":
        still = super().__and__(others)
        if still:
            self.at.set()
        return still


def test_a_supervisor_without_a_task_waits_for_the_next_one() -> None:
    after_a = Asked({"A"})
    after_a.at = threading.Event()

    def work(room: Room) -> str:
        assert after_a.at.wait(LONGEST)
        time.sleep(0.05)  # until the other one waits
        return "A"

    heard = outcome(task("A", work), Task("B", frozenset({"B"}), after_a, lambda room: "B"))
    assert [text for text, _, _ in heard] == ["A", "B"]


def test_tasks_that_wait_for_each_other_are_done_after_those_that_do_not() -> None:
    heard = outcome(task("A", after=("B",)), task("B", after=("A",)), task("C"), task("D"), jobs=1)
    assert [text for text, _, _ in heard] == ["C", "D", "A", "B"]


def test_an_idle_supervisor_does_not_end_the_work_of_the_other() -> None:
    def work(room: Room) -> str:
        assert not room.interrupted.wait(0.3), "it was interrupted"
        return "A"

    assert outcome(task("A", work)) == [("A", 1, 1)]


def test_all_is_done_unless_somebody_says_that_it_is_enough() -> None:
    heard: list[str] = []
    work_off([task("A"), task("B")], [Room()], lambda text, done, total: heard.append(text))
    assert heard == ["A", "B"]


@dataclass
class Pair:
    """Two tasks that are at work at once; the one ends when the thread of the other, which raises, has ended."""

    both: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))
    first: threading.Thread = field(default_factory=threading.current_thread)

    def dying(self, error: BaseException) -> Callable[[Room], str]:
        def work(room: Room) -> str:
            self.first = threading.current_thread()
            self.both.wait(LONGEST)
            raise error

        return work

    def surviving(self, call: Callable[[], str]) -> Callable[[Room], str]:
        def work(room: Room) -> str:
            self.both.wait(LONGEST)
            self.first.join(LONGEST)
            return call()

        return work


def test_the_first_of_two_errors_is_raised() -> None:
    def fail() -> str:
        raise ValueError("the second")

    pair = Pair()
    error = outcome(task("A", pair.dying(RuntimeError("the first"))), task("B", pair.surviving(fail)))
    assert str(error) == "the first"


def test_no_task_is_begun_after_a_supervisor_was_interrupted() -> None:
    pair = Pair()
    faulty, sound = pair.dying(SupervisorClosedError()), pair.surviving(lambda: "B")
    assert outcome(task("A", faulty), task("B", sound), task("C")) == [("B", 1, 3)]


def test_no_task_is_begun_after_the_caller_was_interrupted() -> None:
    begun: list[str] = []

    def work(room: Room) -> str:
        assert room.interrupted.wait(LONGEST)
        return "B"

    def interrupt(text: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    last = task("C", lambda room: begun.append("C") or "C")
    assert isinstance(outcome(task("A"), task("B", work), last, jobs=1, listen=interrupt), KeyboardInterrupt)
    assert begun == []


def test_enough_stays_enough() -> None:
    answers, both = iter([True, False, False]), threading.Barrier(2)

    def first(room: Room) -> str:
        both.wait(LONGEST)
        return "A"

    def second(room: Room) -> str:
        both.wait(LONGEST)
        time.sleep(0.1)  # until it is enough
        return "B"

    heard = outcome(task("A", first), task("B", second), task("C"), stop_early=lambda: next(answers))
    assert [text for text, _, _ in heard] == ["A", "B"]


def test_supervisors_share_what_they_learn() -> None:
    rooms = [Room(), Room(), Room()]
    work_off([task("A")], rooms, lambda *_: None)
    assert all(room.history is rooms[0].history for room in rooms)
    assert all(room.interrupted.is_set() for room in rooms)


def test_an_interruption_of_the_caller_ends_every_thread() -> None:
    def interrupt(text: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        work_off([task("A"), task("B", Room.wait)], [Room(), Room()], interrupt)
    assert threading.active_count() == before


def test_nothing_to_do_is_done_at_once() -> None:
    assert outcome() == []


def test_a_session_can_be_read_while_other_threads_answer_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(ExaminationRequest(), frozenset(), facts={"seams": ()})
    entry = next(iter(entries().values()))
    number = iter(range(10**9))
    monkeypatch.setattr(
        Room,
        "check",
        lambda room, code, seconds, at_most, left: Result(code=str(next(number)), name="n", verdict=Verdict.PASS),
    )
    is_bad = sessions._is_bad

    def bad_after_another_answer(result: Result) -> bool:
        thread = threading.Thread(target=session.check, args=(entry, Room()))
        thread.start()
        thread.join(LONGEST)
        assert not thread.is_alive(), "an answer waits for whoever reads"
        return is_bad(result)

    session.results.update({code: Result(code=code, name="n", verdict=Verdict.PASS) for code in "AB"})
    monkeypatch.setattr(sessions, "_is_bad", bad_after_another_answer)
    assert not session.has_failed
    assert len(session.results) == 4
