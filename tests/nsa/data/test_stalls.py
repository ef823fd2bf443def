"""A loader that blocks, raises or ends early names its stage and its source in time, and leaves no thread behind."""

import os
import pickle
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from nsa.data import Batch, DataError, Loader, LoaderStalledError, open_loader
from nsa.data.documents import Shard
from nsa.data.feeder import AHEAD, Feeder
from nsa.data.order import Order, Position
from nsa.data.progress import Progress
from tests.nsa.data.configured import configured, texts_of, write_jsonl

pytest.importorskip("datasets", reason="needs datasets, of the extra train")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a blocked thread waits for; opened when the test is over, after which no thread may be left."""
    event = threading.Event()
    yield event
    event.set()
    for thread in our_threads():
        thread.join(5)
    assert our_threads() == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "shard.jsonl", texts_of(50))


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "nsa-data"]


def waited_for(loader: Loader) -> Batch:
    """The next batch, however busy the machine is."""
    for _ in range(100):
        with suppress(LoaderStalledError):
            return next(loader)
    pytest.fail("no batch came")


def blocking(gate: threading.Event, examples: Any = ()) -> Any:
    def read(*_: Any) -> Iterator[Any]:
        yield from examples
        gate.wait()

    return read


def test_a_blocked_read_is_named(path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa.data.documents._read_text", blocking(gate, [{"text": '{"text": "some text"}'}] * 64))
    with open_loader(configured(f"jsonl:{path}"), limit_seconds=0.2) as loader:
        waited_for(loader)
        with pytest.raises(LoaderStalledError) as caught:
            list(islice(loader, 99))
        gate.set()
    assert (caught.value.stage, caught.value.source) == ("read", str(path))
    assert 0 < caught.value.seconds < 5
    assert str(caught.value).startswith(
        f"no batch came within 0.2 s: the loader has been at stage read of {path} for 0."
    )


def test_a_blocked_opening_is_named(path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa.data.documents._read_text", lambda *_: gate.wait() and [])
    with open_loader(configured(f"jsonl:{path}"), limit_seconds=0.2) as loader:
        with pytest.raises(LoaderStalledError, match="at stage open of"):
            next(loader)
        gate.set()


def test_a_blocked_hub_is_named(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: gate.wait())
    with open_loader(configured("fineweb_edu"), limit_seconds=0.2) as loader:
        with pytest.raises(LoaderStalledError, match="at stage open of HuggingFaceFW/fineweb-edu for"):
            next(loader)
        gate.set()


def test_a_blocked_tokenizer_is_named_with_its_document(
    path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsa.data.tokenizer._bytes", lambda _: gate.wait())
    with open_loader(configured(f"jsonl:{path}", heldout_every=10**6), limit_seconds=0.2) as loader:
        with pytest.raises(LoaderStalledError, match=r"at stage tokenize of .*line 1 and 31 after it for"):
            next(loader)
        gate.set()


def test_a_stage_is_timed_from_the_last_thing_done(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count(0.0)
    monkeypatch.setattr("nsa.data.progress.time.monotonic", lambda: next(ticks))
    progress = Progress()
    examples = [{"text": str(number)} for number in range(500)]
    shard = Shard("shard", lambda start: examples[start:], lambda example, _: str(example["text"]), "row")
    documents = Order("rows", (shard,), False, 2**31 - 1, 1, 1, progress).documents(Position())
    list(islice(documents, 400))
    assert progress.now[:2] == ("read", "shard")
    assert progress.now[2] < 5


def test_the_limit_comes_from_the_configuration(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa.data.sources.synthetic_row", lambda *_, **__: gate.wait())
    with open_loader(configured("synthetic", limit_seconds=0.15)) as loader:
        with pytest.raises(LoaderStalledError, match=r"no batch came within 0\.15 s: .* at stage make of synthetic"):
            next(loader)
        gate.set()


def test_after_a_stall_the_same_batch_may_be_waited_for(
    path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"text": line} for line in path.read_text().splitlines()]

    def read(*_: Any) -> Iterator[Any]:
        gate.wait()
        yield from lines

    with open_loader(configured(f"jsonl:{path}")) as plain:
        expected = next(plain)
    monkeypatch.setattr("nsa.data.documents._read_text", read)
    with open_loader(configured(f"jsonl:{path}"), limit_seconds=0.2) as loader:
        with pytest.raises(LoaderStalledError):
            next(loader)
        gate.set()
        assert waited_for(loader).tokens.equal(expected.tokens)


def test_a_stall_crosses_to_another_process_whole() -> None:
    error = pickle.loads(pickle.dumps(LoaderStalledError("read", 1.5, "a.jsonl", 1.0)))
    assert type(error) is LoaderStalledError
    assert (error.stage, error.seconds, error.source) == ("read", 1.5, "a.jsonl")
    assert str(error) == "no batch came within 1 s: the loader has been at stage read of a.jsonl for 1.5 s"


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        pytest.param(RuntimeError("boom\nmore"), "cannot be read: RuntimeError: boom (stage read)", id="any"),
        pytest.param(ConnectionError("gone"), "cannot be read: ConnectionError: gone (stage read)", id="connection"),
        pytest.param(
            PermissionError(13, "Permission denied"), "cannot be read: Permission denied (stage read)", id="oserror"
        ),
        pytest.param(MemoryError(), "cannot be read: MemoryError: no reason given (stage read)", id="memory"),
        pytest.param(RuntimeError("\x1b[31mred"), r"RuntimeError: '\x1b[31mred' (stage read)", id="escaped"),
    ],
)
def test_whatever_a_read_raises_is_one_sentence(
    raised: Exception, said: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any) -> Iterator[Any]:
        raise raised
        yield

    monkeypatch.setattr("nsa.data.documents._read_text", read)
    with open_loader(configured(f"jsonl:{path}")) as loader:
        with pytest.raises(DataError) as first:
            next(loader)
        with pytest.raises(DataError) as second:
            next(loader)
    assert str(first.value).startswith(f"{path}: ")
    assert str(first.value).endswith(said)
    assert str(second.value) == str(first.value)


def test_batches_made_before_a_failure_are_given_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> Iterator[Any]:
        yield from [{"text": '{"text": "0123456789"}'}] * 20
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("nsa.data.documents._read_text", read)
    config = configured(f"jsonl:{path}", seq_len=9, rows=4, heldout_every=10**6)
    with open_loader(config) as loader:
        assert [next(loader).step for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(DataError, match="Input/output error"):
            next(loader)


def test_rubbish_in_place_of_examples_is_one_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa.data.documents._read_text", lambda *_: [{"text": '{"text": ["a"]}'}])
    with open_loader(configured(f"jsonl:{path}")) as loader, pytest.raises(DataError) as caught:
        next(loader)
    assert str(caught.value) == f"{path}, line 1: field text must be text, got ['a'] (list)"


def test_rows_that_end_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa.data.sources.count", lambda first: range(first, 9))
    with open_loader(configured("synthetic", rows=4)) as loader:
        list(islice(loader, 2))
        with pytest.raises(DataError, match=r"synthetic: .*: ended after 2 batches, and data never should"):
            next(loader)


def test_closing_leaves_no_thread_behind(path: Path, gate: threading.Event) -> None:
    loader = open_loader(configured(f"jsonl:{path}"))
    next(loader)
    assert len(our_threads()) == 1
    loader.close()
    loader.close()
    assert our_threads() == []
    with pytest.raises(DataError, match="the loader is closed"):
        next(loader)


def test_a_forgotten_loader_leaves_no_thread_behind(path: Path, gate: threading.Event) -> None:
    next(open_loader(configured(f"jsonl:{path}")))
    assert our_threads() == []


def test_a_loader_never_asked_starts_no_thread(path: Path) -> None:
    with open_loader(configured(f"jsonl:{path}")):
        assert our_threads() == []


def test_only_so_many_batches_are_made_ahead(gate: threading.Event) -> None:
    made: list[int] = []
    reached = threading.Event()

    def make(_: Progress) -> Iterator[int]:
        for number in range(100):
            made.append(number)
            if number == AHEAD + 1:
                reached.set()
            yield number

    feeder = Feeder(make)
    assert feeder.next(5.0) == 0
    assert reached.wait(5)  # one is taken, AHEAD lie ready, and one more waits for its place
    assert len(made) == AHEAD + 2
    assert [feeder.next(5.0) for _ in range(99)] == list(range(1, 100))
    feeder.close()


class _Terminated(BaseException):
    pass


def test_a_signal_interrupts_the_wait(path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(*_: Any) -> None:
        raise _Terminated

    previous = signal.signal(signal.SIGTERM, handle)
    monkeypatch.setattr("nsa.data.documents._read_text", lambda *_: gate.wait() and [])
    killer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    try:
        with open_loader(configured(f"jsonl:{path}"), limit_seconds=60) as loader:
            killer.start()
            with pytest.raises(_Terminated):
                next(loader)
            gate.set()
    finally:
        killer.join()
        signal.signal(signal.SIGTERM, previous)


def test_a_signals_handler_may_close_the_loader(
    path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsa.data.documents._read_text", lambda *_: gate.wait() and [])
    loader = open_loader(configured(f"jsonl:{path}"), limit_seconds=60)

    def handle(*_: Any) -> None:
        gate.set()
        loader.close()

    previous = signal.signal(signal.SIGTERM, handle)
    killer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    try:
        killer.start()
        with pytest.raises(DataError, match="the loader is closed"):
            next(loader)
    finally:
        killer.join()
        signal.signal(signal.SIGTERM, previous)
