"""A look at a thread from another one outlasts whatever that thread does meanwhile."""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.isolation import worker_process as isolate
from nsa_doctor.isolation.shared_record import FILE_BYTES, SIGHTING, SharedRecord
from nsa_doctor.probes.hooks import stack_sampler as lookouts
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.stack_sampler import Sighting, StackSampler
from nsa_doctor.worker import main as child

LONGEST = 20.0  # seconds, of what takes one


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookouts, "_LOOK_SECONDS", 0.001)


class Rude:
    """Whoever asks for its class is the first to hear of it."""

    @property
    def __class__(self) -> type:
        raise RuntimeError("deque mutated during iteration")

    def hang(self, released: threading.Event) -> None:
        released.wait(LONGEST)


@pytest.fixture
def hanging() -> Iterator[Callable[..., threading.Thread]]:
    """`hanging(call)` is a thread in a call that is given an event and waits for it."""
    released, threads = threading.Event(), []

    def start(call: Callable[[threading.Event], object]) -> threading.Thread:
        threads.append(threading.Thread(target=call, args=(released,), daemon=True))
        threads[-1].start()
        time.sleep(0.05)
        return threads[-1]

    yield start
    released.set()
    for thread in threads:
        thread.join(LONGEST)


def test_a_module_that_is_built_during_a_look_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, module = StackSampler(), nn.Linear(1, 1)
    sampler.know(module)

    def found_while_another_is_built(_: nn.Module) -> list[tuple[str, int, int, str, str]]:
        return [("a.py", 1, 9, "layers.1", "Layer")]

    for root in sampler._roots:
        found = root.module
        root.module = lambda found=found: (sampler.know(nn.Linear(1, 1)), found())[1]
    monkeypatch.setattr(lookouts, "module_code", found_while_another_is_built)
    assert sampler._by_line(Place(file="a.py", line=3)).module == "layers.1"


def test_the_latest_modules_are_known() -> None:
    sampler, modules = StackSampler(), [nn.Linear(1, 1) for _ in range(10)]
    for module in modules:
        sampler.know(module)
    assert [root.module() for root in sampler._roots] == modules[:1:-1]


@pytest.mark.usefixtures("short_looks")
def test_an_object_that_refuses_to_be_asked_is_no_obstacle(hanging: Callable[..., threading.Thread]) -> None:
    sighting = StackSampler(thread=hanging(Rude().hang).ident).sight()
    assert (sighting.place.file, sighting.place.function) == (__file__, "hang")


@pytest.mark.usefixtures("short_looks")
@pytest.mark.parametrize("faulty", ["_stack", "_seen", "_by_line"])
def test_a_look_that_raises_costs_that_look_alone(
    hanging: Callable[..., threading.Thread], monkeypatch: pytest.MonkeyPatch, faulty: str
) -> None:
    looks, healthy = [], getattr(StackSampler, faulty)

    def sometimes(sampler: StackSampler, *given: Any) -> Any:
        looks.append(given)
        if len(looks) % 2:
            raise RuntimeError("deque mutated during iteration")
        return healthy(sampler, *given)

    monkeypatch.setattr(StackSampler, faulty, sometimes)
    sighting = StackSampler(thread=hanging(lambda released: released.wait(LONGEST)).ident).sight()
    assert looks
    assert isinstance(sighting, Sighting)


@pytest.mark.usefixtures("short_looks")
def test_nothing_but_failing_looks_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("deque mutated during iteration")

    for name in ("_stack", "_seen", "owner"):
        monkeypatch.setattr(StackSampler, name, fail)
    assert StackSampler().sight() == Sighting()


class Failing:
    """A lookout that fails as often as it is asked to."""

    def __init__(self, times: int) -> None:
        self.times = times

    def listen(self) -> None:
        pass

    def sight(self) -> Sighting:
        self.times -= 1
        if self.times >= 0:
            raise RuntimeError("deque mutated during iteration")
        return Sighting(place=Place(file="a.py", line=3))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_thread_that_looks_survives_a_look_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child.Channel, "_watch_compilers", lambda *_: None)  # it would look for ever
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as file:
        file.truncate(FILE_BYTES)
        page = SharedRecord(file.fileno(), SIGHTING)

        def asked() -> dict[str, Any] | None:
            page.write(None)
            os.write(writing, b"?")
            deadline = time.monotonic() + LONGEST
            while (words := page.read()) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            return words

        channel = object.__new__(child.Channel)
        channel._questions, channel._file, channel._is_line_recorded = reading, file.fileno(), False
        channel.watch(Failing(2))
        failed = asked(), asked()
        after = asked()
        os.close(writing)
        page.close()
    assert all(isolate._is_own_work(words) for words in failed)
    assert after is not None
    assert after["place"]["file"] == "a.py"


def test_frames_that_go_on_during_a_look_change_nothing_about_the_answer() -> None:
    is_over = threading.Event()
    sampler = StackSampler()

    def build() -> None:
        while not is_over.is_set():
            sampler.know(nn.Linear(1, 1))

    builder = threading.Thread(target=build)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    builder.start()
    try:
        for _ in range(300):
            sampler.describe(sys._getframe(), 1)
    finally:
        is_over.set()
        builder.join()
        sys.setswitchinterval(interval)


class Unreadable:
    """A frame of another thread: its line may be read, its local variables may not."""

    f_code, f_lineno, f_back = Rude.hang.__code__, 1, None

    @property
    def f_locals(self) -> dict[str, Any]:
        raise AssertionError("read from another thread")


def test_a_watched_frame_is_placed_in_the_module_that_runs_without_its_variables() -> None:
    places, found = Places(FrameFilter()), []

    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found.append(places.of_watched_frame(Unreadable()))
            return x

    root = nn.Sequential(Looks())
    places.know(root)
    with places.watching():
        root(torch.zeros(1))
    assert (found[0].module, found[0].function) == ("0", "hang")
