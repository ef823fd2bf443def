"""Asks many requests, each of a child of its own, so many at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.isolation.worker_process import Message, WorkerProcess

Ended = Callable[[int, Message | Caught], object]


def side_by_side(
    room: str,
    requests: Sequence[Message],
    seconds: float,
    at_a_time: int,
    ended: Ended,
    listeners: Sequence[Callable[[Message], object]] = (),
) -> None:
    """Call `ended` with the number of each request that was met and its answer, or what was raised, as they come.

    `listeners`, one for each request where there are any, are given its events.

    What `ended` raises, or a KeyboardInterrupt, ends all that still run, and is raised here.
    """
    children: list[WorkerProcess] = []
    is_over: list[bool] = []

    def asked(number: int, request: Message) -> Message:
        listen = listeners[number] if listeners else lambda event: None
        with WorkerProcess(room) as child:
            children.append(child)
            if is_over:
                child.kill()
            return child.ask(request, seconds, listen=listen)

    with ThreadPoolExecutor(at_a_time) as pool:
        waiting: dict[Any, int] = {}
        try:
            waiting = {
                pool.submit(attempt, lambda n=n, each=each: asked(n, each)): n for n, each in enumerate(requests)
            }
            for done in as_completed(waiting):
                ended(waiting[done], done.result())
        finally:
            is_over.append(True)
            for future in waiting:
                future.cancel()
            for child in children:
                child.kill()
