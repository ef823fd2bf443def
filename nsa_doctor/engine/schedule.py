"""Works off tasks with several supervisors at once, each after those it waits for."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.isolation.supervisor import Supervisor, SupervisorClosedError

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Task:
    """Something to do with a supervisor; it answers `codes` and waits until those of `waits_for` are answered.

    `work` returns what to tell of it. Tasks that wait for each other are done in the order they are given.
    """

    name: str
    codes: frozenset[str]
    waits_for: frozenset[str]
    work: Callable[[Supervisor], str]


def work_off(
    tasks: Sequence[Task],
    supervisors: Sequence[Supervisor],
    listen: Callable[[str, int, int], None],
    stop_early: Callable[[], bool] = lambda: False,
) -> None:
    """Do all tasks, one at a time in each supervisor; no further ones once `stop_early` says so.

    Raises what a task, `listen` or `stop_early` raised, once the others are interrupted; KeyboardInterrupt at once.
    """
    shared = _Shared(list(tasks), stop_early)
    for supervisor in supervisors:
        supervisor.history, supervisor.tell = supervisors[0].history, shared.tell
    threads = [threading.Thread(target=shared.serve, args=(supervisor,)) for supervisor in supervisors]
    num_passed_on = num_done = 0
    try:
        for thread in threads:
            thread.start()
        while shared.caught is None and (
            any(thread.is_alive() for thread in threads) or num_passed_on < len(shared.messages)
        ):
            while num_passed_on < len(shared.messages):
                text, is_done = shared.messages[num_passed_on]
                num_passed_on, num_done = num_passed_on + 1, num_done + is_done
                listen(text, num_done, len(tasks))
            next((thread for thread in threads if thread.is_alive()), threads[0]).join(_POLL_SECONDS)
    finally:
        shared.stop()
        for supervisor in supervisors:
            supervisor.interrupt()
        for thread in threads:
            if thread.ident is not None:  # an interruption may come before all have started
                thread.join()
    if shared.caught is not None:
        raise shared.caught.error


class _Shared:
    """What the threads have in common: what is left to do, what is done, and who failed."""

    def __init__(self, tasks: list[Task], stop_early: Callable[[], bool]) -> None:
        self.messages: list[tuple[str, bool]] = []  # and whether something is done with it
        self.caught: Caught | None = None
        self._waiting = tasks
        self._open = {code for task in tasks for code in task.codes}
        self._stop_early = stop_early
        self._num_at_work = 0
        self._is_stopped = False
        self._changed = threading.Condition()

    def serve(self, supervisor: Supervisor) -> None:
        """Take tasks until none is left; an exception, from wherever it comes, is kept and stops all threads."""
        answer = attempt(lambda: self._work(supervisor))
        if isinstance(answer, Caught):
            with self._changed:
                if not isinstance(answer.error, SupervisorClosedError):
                    self.caught = self.caught or answer
                self._is_stopped = True
                self._changed.notify_all()

    def tell(self, text: str) -> None:
        """Pass on what goes on in a task."""
        with self._changed:
            self.messages.append((text, False))

    def stop(self) -> None:
        """Take no further task."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _work(self, supervisor: Supervisor) -> None:
        while (task := self._take()) is not None:
            message = task.work(supervisor)
            with self._changed:
                self.messages.append((message, True))
                self._is_stopped = self._is_stopped or self._stop_early()
                self._open -= task.codes
                self._num_at_work -= 1
                self._changed.notify_all()

    def _take(self) -> Task | None:
        with self._changed:
            while not self._is_stopped and self._waiting:
                ready = next((task for task in self._waiting if not task.waits_for & self._open), None)
                if ready is None and not self._num_at_work:  # they wait for each other
                    ready = self._waiting[0]
                if ready is not None:
                    self._waiting.remove(ready)
                    self._num_at_work += 1
                    return ready
                self._changed.wait()
            return None
