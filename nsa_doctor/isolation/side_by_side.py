"""Asks many requests, each of a child of its own, so many at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.isolation.worker_process import Message, WorkerProcess

Ended = Callable[[int, Message | Caught], object]


def side_by_side(room: str, requests: Sequence[Message], seconds: float, at_a_time: int, ended: Ended) -> None:
    """Call `ended` with the number of each request that was met and its answer, or what was raised, as they come.

    What `ended` raises, or a KeyboardInterrupt, ends all that still run, and is raised here.
    """
    children: list[WorkerProcess] = []
    is_over: list[bool] = []

    def asked(request: Message) -> Message:
        with WorkerProcess(room) as child:
            children.append(child)
            if is_over:
                child.kill()
            return child.ask(request, seconds)

    with ThreadPoolExecutor(at_a_time) as pool:
        waiting: dict[Any, int] = {}
        try:
            waiting = {pool.submit(attempt, lambda each=each: asked(each)): n for n, each in enumerate(requests)}
            for done in as_completed(waiting):
                ended(waiting[done], done.result())
        finally:
            is_over.append(True)
            for future in waiting:
                future.cancel()
            for child in children:
                child.kill()
