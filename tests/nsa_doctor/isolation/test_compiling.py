"""A call that compiles is no call that hangs, and one that only says so is."""

import pytest

from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.isolation.start import Children
from nsa_doctor.isolation.supervisor import Supervisor
from tests.gallery.faulty.compiling import DIM
from tests.nsa_doctor.conftest import HERE

SECONDS = 2.5


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(Children, "are_forked", False)


def supervisor(name: str, **options) -> Supervisor:
    how = {"lengths": (4,), "explore": True, "threads": 1, "timeout": SECONDS, "width": DIM, "input": "embeddings"}
    return Supervisor(ExaminationRequest(spec=f"faulty.compiling:{name}", **how | options))


def loaded(examined: Supervisor) -> list:
    try:
        return examined.load()
    finally:
        examined.close()


def test_a_program_of_a_compiler_may_take_longer_than_a_call() -> None:
    assert loaded(supervisor("assembles", timeout=2.0)) == []


@pytest.mark.full
def test_without_time_for_compiling_the_limit_of_a_call_holds() -> None:
    measured = loaded(supervisor("assembles", timeout=2.0, compile_timeout=0.0))[0]
    assert (measured.trouble.kind, measured.trouble.place.function) == ("timeout", "_run_a_program")


@pytest.mark.full
def test_what_compiles_for_too_long_is_ended_and_the_report_says_for_how_long() -> None:
    measured = loaded(supervisor("assembles", timeout=1.0, compile_timeout=1.5))[0]
    assert measured.trouble.kind == "timeout"
    assert "no answer within 1 s after 1 s of compiling" in measured.trouble.message


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("calls_a_loop_compiling", "compile_kernel"),
        pytest.param("waits_for_an_idle_assembler", "_run_a_program", marks=pytest.mark.full),
    ],
)
def test_what_is_only_called_compiling_is_not_excused(name: str, function: str) -> None:
    measured = loaded(supervisor(name, timeout=1.5))[0]
    assert measured.trouble.kind == "timeout"
    assert "compiling" not in measured.trouble.message
    assert measured.trouble.place.function == function


def test_compiling_is_reported_every_ten_seconds() -> None:
    heard: list[str] = []
    listen = supervisor("assembles")
    listen.tell = heard.append
    hear = listen._listener()
    for seconds in (1.0, 10.2, 11.2, 20.5):
        hear({"event": "compiling", "what": "ptxas", "seconds": seconds})
    hear({"event": "calling", "length": 4})
    hear({"event": "compiling", "what": "Triton", "seconds": 10.0})
    assert heard == ["compiling (ptxas), 10 s", "compiling (ptxas), 20 s", "compiling (Triton), 10 s"]


@pytest.mark.full
def test_torch_compile_may_take_longer_than_a_call(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # nothing is compiled already
    assert loaded(supervisor("traces", timeout=1.5)) == []


@pytest.mark.full
def test_a_device_that_is_waited_for_without_an_end_is_the_subjects_time() -> None:
    request = ExaminationRequest(
        spec="fn:faulty.waits_for_device:attend", like="sdpa", declared=("causal",), timeout=SECONDS, threads=1
    )
    (measured,) = loaded(Supervisor(request))
    assert measured.trouble.kind == "timeout"
    assert measured.trouble.phase == "a kernel of its backward"
