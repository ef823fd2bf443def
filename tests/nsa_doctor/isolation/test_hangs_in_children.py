"""What a user reads of a call that hangs or ends its process, through child processes and all."""

import signal
import threading

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.core.finding import Decision, Verdict
from nsa_doctor.core.measurement import Point
from nsa_doctor.engine.run import RunRequest, run
from nsa_doctor.isolation import worker_process
from nsa_doctor.isolation.start import Children
from nsa_doctor.isolation.supervisor import Supervisor, SupervisorClosedError
from nsa_doctor.isolation.worker_process import WorkerProcess
from tests.nsa_doctor.conftest import HERE, is_marked

DIM = 8
SECONDS = 1.0


def slow(*values: str):
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def supervisor(name: str, **options) -> Supervisor:
    how = {"lengths": (4, 5), "explore": True, "threads": 1, "timeout": SECONDS, "width": DIM}
    return Supervisor(ExaminationRequest(spec=f"faulty.{name}", **how | {"input": "embeddings"} | options))


@pytest.fixture(autouse=True)
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not here: children are interpreters of their own, as a user's are."""
    monkeypatch.setattr(Children, "are_forked", False)


@pytest.fixture
def forked(forked_children: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are forks of this process all the same."""
    monkeypatch.setattr(Children, "are_forked", True)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("name", "kind", "function"),
    [
        ("hangs:is_killed", "died", "_kill"),
        slow("hangs:faults", "died", "_fault"),
        ("hangs:holds_the_interpreter", "timeout", "_sleep_with_the_lock_held"),
    ],
)
def test_a_forked_child_names_module_and_line_too(
    name: str, kind: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "_SIGHTING_SECONDS", 1.0)  # in vain where nothing of the child's runs
    test_what_happens_while_the_subject_is_asked_names_module_and_line(name, kind, function)


@pytest.mark.parametrize(
    ("name", "kind", "function"),
    [
        slow("hangs:spins", "timeout", "_spin"),
        slow("hangs:is_killed", "died", "_kill"),
        slow("hangs:faults", "died", "_fault"),
        slow("hangs:holds_the_interpreter", "timeout", "_sleep_with_the_lock_held"),
    ],
)
def test_what_happens_while_the_subject_is_asked_names_module_and_line(name: str, kind: str, function: str) -> None:
    examined = supervisor(name)
    try:
        trouble = examined.load()[0].trouble
    finally:
        examined.close()
    assert (trouble.kind, trouble.phase) == (kind, "forward")
    assert (trouble.place.module_text, trouble.place.function) == ("layers.1 (Layer)", function)
    assert is_marked(trouble.place.file, trouble.place.line)


@pytest.mark.parametrize("name", [slow("hangs:exits_in_the_factory"), "endless_import:make"])
def test_what_happens_before_there_is_a_module_names_the_line(name: str) -> None:
    examined = supervisor(name)
    try:
        (measured,) = examined.load()
    finally:
        examined.close()
    assert measured.trouble.phase == "loading"
    assert is_marked(measured.trouble.place.file, measured.trouble.place.line)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("name", ["hangs:spins_in_backward", slow("hangs:exits_in_backward")])
def test_an_autograd_function_that_ends_in_backward_is_its_modules(name: str) -> None:
    examined = supervisor(name, timeout=4 * SECONDS)  # time for its longest call on a busy machine
    try:
        assert examined.load() == []
        trouble = examined.measure(Point(length=4, mode="train")).trouble
    finally:
        examined.close()
    assert trouble.phase == "backward"
    assert trouble.place.module == "layers.1"
    assert is_marked(trouble.place.file, trouble.place.line)


def test_an_interruption_while_a_hang_is_looked_at_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = threading.Event()
    look = WorkerProcess._seen

    def seen(child: WorkerProcess):
        looked_at.set()
        return look(child)

    monkeypatch.setattr(WorkerProcess, "_seen", seen)
    examined = supervisor("hangs:holds_the_interpreter", timeout=0.5)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(attempt(examined.load)))
    asking.start()
    assert looked_at.wait(60)
    child = examined._child
    examined.interrupt()
    asking.join(60)
    assert isinstance(answers[0].error, SupervisorClosedError)
    assert child.ended["status"] == -signal.SIGKILL


def test_a_convolution_of_torch_in_float16_returns() -> None:
    examined = supervisor("healthy:convolved", lengths=(32,), width=16, timeout=20 * SECONDS)
    try:
        examined.load()
        measured = examined.measure(Point(length=32, dtype="float16"))
    finally:
        examined.close()
    assert measured.trouble is None


def test_a_hang_that_the_sweep_does_not_meet_is_reported_once_with_module_and_line() -> None:
    examination_request = ExaminationRequest(
        spec="faulty.hangs:spins_with_two_rows",
        input="embeddings",
        width=DIM,
        lengths=(4,),
        explore=True,
        threads=1,
        timeout=3 * SECONDS,  # a new process of a busy machine asks for its gradients too
        profile="smoke",
    )
    checks = tuple(registry.select(("HNG101", "FWD203", "FWD204", "GRD201"), (), "quick"))
    report = run(RunRequest(examination_request=examination_request, checks=checks))
    (finding,) = report.findings
    verdicts = [result.verdict for result in report.results]
    assert report.decision is Decision.NO_GO
    assert verdicts.count(Verdict.TIMEOUT) == 1
    assert finding.where.module == "layers.1"
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize(
    ("allowed", "slowest", "given"), [(1.0, 0.0, 1.0), (60.0, 0.1, 5.0), (60.0, 3.0, 12.0), (60.0, 40.0, 60.0)]
)
def test_after_a_hang_a_call_has_as_long_as_a_sound_one_may_need(allowed: float, slowest: float, given: float) -> None:
    examined = supervisor("hangs:spins", timeout=allowed)
    assert examined._patience(allowed) == allowed
    examined.history.has_hung, examined.history.slowest_seconds = True, slowest
    assert examined._patience(allowed) == given


@pytest.mark.parametrize(("slowest", "given"), [(0.1, 30.0), (2.0, 64.0), (20.0, 180.0)])
def test_many_rows_of_a_slow_module_have_the_time_they_need(slowest: float, given: float) -> None:
    examined = supervisor("hangs:spins", timeout=30.0)
    examined.history.slowest_pass = slowest
    assert examined._patience(30.0) == given
    examined.history.has_hung, examined.history.slowest_seconds = True, given
    assert examined._patience(30.0) == given
