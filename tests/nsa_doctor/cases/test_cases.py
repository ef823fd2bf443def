"""Regression cases: how they are found and reported, and that a case which proves nothing fails."""

import ast
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nsa_doctor.cases import catalogue, running
from nsa_doctor.cases import worker_main as child
from nsa_doctor.cases.case import found
from nsa_doctor.cases.catalogue import Card, cards, read_card
from nsa_doctor.cases.record import Case, CaseOutcome, NotForThisMachineError, Plant, Sight
from nsa_doctor.cases.running import CasesRequest, run_cases
from nsa_doctor.cases.skeleton import write_skeleton
from nsa_doctor.cases.table import markdown, terminal
from nsa_doctor.cli.main import serve
from nsa_doctor.core.finding import Finding, Report, Result, Verdict
from nsa_doctor.core.measurement import Place
from nsa_doctor.isolation.start import Children

REGRESSIONS = Path(__file__).parents[3] / "regressions"
DOC = "r998 some-symptom\n\nReported: 1.\nSymptom: a | b.\nCause: c.\nCheck: d.\n"


def card(path: Path = Path("r998_some_symptom.py")) -> Card:
    return Card(
        id="r998", name="some-symptom", reported="1.", symptom="a | b.", cause="c.", check="d.", module="x", path=path
    )


def report(*findings: Finding) -> Report:
    result = Result(code="GAT101", name="a", verdict=Verdict.FAIL, findings=findings)
    return Report(command="run", subject={}, options={}, environment={}, results=(result,))


ZERO = Finding(
    message="weights are zero", code="GAT101", where=Place(module="gate.fc2", file="/a/gate.py", function="forward")
)


def test_the_table_of_the_readme_is_that_of_the_cases():
    assert (REGRESSIONS / "README.md").read_text(encoding="utf-8").endswith(markdown(cards().values()))


def test_every_case_is_found_and_reported():
    assert [path.stem[:4] for path in sorted(REGRESSIONS.glob("r[0-9]*.py"))] == list(cards())


def test_a_table_escapes_what_would_end_a_cell():
    assert "| a \\| b. |" in markdown([card()])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must start with"),
        ('"""Some text."""', "must start with"),
        ('"""r998 other-symptom\n\nReported: 1.\n"""', "must be called as"),
        ('"""r998 some-symptom\n\nReported: 1.\nSymptom: b.\n"""', "must have Reported, Symptom, Cause, Check"),
    ],
)
def test_a_docstring_that_tells_less_is_refused(tmp_path, text, complaint):
    path = tmp_path / "r998_some_symptom.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        read_card("x", path)


def test_a_new_case_fails_until_it_is_filled_in(tmp_path, monkeypatch):
    package = tmp_path / "freshcases"
    package.mkdir()
    (package / "__init__.py").write_text("")
    path = write_skeleton(package, "some-symptom", ["r001", "r997"])
    assert (path.name, read_card("x", path).name) == ("r998_some_symptom.py", "some-symptom")
    monkeypatch.syspath_prepend(tmp_path)
    outcome = child.run_case("freshcases.r998_some_symptom")
    assert (outcome.status, "NotImplementedError" in outcome.reason) == ("broken", True)
    with pytest.raises(FileExistsError):
        write_skeleton(package, "some-symptom", ["r001", "r997"])


@pytest.mark.parametrize("name", ["", "Two Words", "a_b", "../out", "-a"])
def test_a_name_that_cannot_be_a_symptom_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="in words and hyphens"):
        write_skeleton(tmp_path, name, [])


def run(monkeypatch, reproduce=lambda: None, *, command=lambda folder: ["explain", "GAT101"], expected=lambda text: ""):
    plant = Plant(name="one", command=command, expected=expected)
    case = Case(doc=DOC, reproduce=reproduce, plants=(plant,))
    monkeypatch.setattr(child, "_load", lambda module: case)
    return child.run_case("regressions.r998_some_symptom")


def test_a_bug_that_is_back_says_so(monkeypatch):
    def reproduce():
        raise AssertionError("it is here again")

    outcome = run(monkeypatch, reproduce)
    assert (outcome.status, outcome.reason) == ("back", "AssertionError: it is here again")


def test_a_case_that_fails_by_itself_is_broken_and_not_absent(monkeypatch):
    def reproduce():
        raise KeyError("typo")

    assert run(monkeypatch, reproduce).status == "broken"


def test_a_plant_that_ends_in_no_report_is_missed(monkeypatch):
    outcome = run(monkeypatch, command=lambda folder: ["gate-stats", str(folder / "nothing.pt")])
    assert outcome.status == "missed"
    assert "no report, exit code 2" in outcome.reason


def test_a_case_without_a_plant_that_was_tried_is_broken(monkeypatch):
    def elsewhere(folder):
        raise NotForThisMachineError("it needs a GPU")

    outcome = run(monkeypatch, command=elsewhere)
    assert (outcome.status, outcome.reason) == ("broken", "no plant of it was tried")
    assert outcome.sights[0].skipped == "it needs a GPU"


def test_only_a_bug_of_the_doctor_itself_goes_without_a_plant():
    for path in REGRESSIONS.glob("r[0-9]*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(each, ast.keyword) and each.arg == "unplanted" for each in ast.walk(tree)):
            imported = [each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
            assert not [name for name in imported if name.partition(".")[0] == "nsa"], f"{path.name} needs a plant"


def test_a_case_that_says_why_it_has_no_plant_ends_by_its_own_run(monkeypatch):
    def back():
        raise AssertionError("it is here again")

    for reproduce, ending in (
        (lambda: None, ("absent", "not planted: a reason")),
        (back, ("back", "AssertionError: it is here again")),
    ):
        case = Case(doc=DOC, reproduce=reproduce, unplanted="a reason")
        monkeypatch.setattr(child, "_load", lambda module, case=case: case)
        outcome = child.run_case("regressions.r998_some_symptom")
        assert (outcome.status, outcome.reason) == ending
    monkeypatch.setattr(child, "_load", lambda module: Case(doc=DOC, reproduce=lambda: None))
    assert child.run_case("regressions.r998_some_symptom").status == "broken"


def test_what_was_expected_is_compared_with_the_first_finding():
    assert found("GAT101", module="gate.fc2", file="gate.py", function="forward", says="are zero")(report(ZERO)) == ""
    assert "nothing was found" in found("GAT101")(report())
    assert "found was GAT101" in found("NAN101")(report(ZERO))
    assert "had to at 'gate.fc1'" in found("GAT101", module="gate.fc1")(report(ZERO))
    assert "had to at 'other.py'" in found("GAT101", file="other.py")(report(ZERO))
    assert "does not say 'nan'" in found("GAT101", says="nan")(report(ZERO))


@pytest.fixture(params=[pytest.param(True, id="forked"), pytest.param(False, id="fresh")])
def can_fork(request, tmp_path, monkeypatch):
    """Cases are forked or fresh, and import from the test's folder."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(running, "CAN_FORK", request.param)
    monkeypatch.setattr(Children, "are_forked", False)


@pytest.fixture
def run_source(can_fork, tmp_path):
    """Runs a case that has this text after its docstring."""

    def run_source(text, seconds=20.0, jobs=1):
        (tmp_path / "r998_some_symptom.py").write_text(f'"""{DOC}"""\n{text}')
        made = Card(**{**vars(card()), "module": "r998_some_symptom"})
        return run_cases(CasesRequest(cards=(made,), seconds=seconds, jobs=jobs), imported=())[0]

    return run_source


class Pipe:
    """Tells who lives: `hold` is a program that holds it for a minute, and it ends once none is left that does."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        mark = str(path.with_name("held"))
        held = f"held = open({str(path)!r}, 'w'); held.write('here'); held.flush(); open({mark!r}, 'w').close()"
        self.hold = f"import time; {held}; time.sleep(60)"
        self.until_held = f"import os, time\nwhile not os.path.exists({mark!r}): time.sleep(0.01)\n"
        self.hold_in_another = (
            f"import subprocess, sys\nANOTHER = subprocess.Popen([sys.executable, '-c', {self.hold!r}])\n"
        )

    def read(self) -> bytes:
        ready, _, _ = select.select([self._reader], [], [], 20.0)
        assert ready, "one that holds it lives on"
        return os.read(self._reader, 99)

    def close(self) -> None:
        os.close(self._reader)


@pytest.fixture
def pipe(tmp_path):
    made = Pipe(tmp_path / "pipe")
    yield made
    made.close()


def test_a_case_that_does_not_end_is_ended_with_all_it_started(run_source, pipe):
    outcome = run_source(f"{pipe.hold_in_another}import time\ntime.sleep(60)\n", seconds=2.0)
    assert outcome.status == "broken"
    assert re.fullmatch(r"it did not end within 2 s: it is at .*/r998_some_symptom.py:\d+ \(<module>\)", outcome.reason)
    assert (pipe.read(), pipe.read()) == (b"here", b"")


def test_a_case_that_ends_leaves_nothing_that_it_started(run_source, pipe):
    outcome = run_source(f"{pipe.hold_in_another}{pipe.until_held}os._exit(3)\n")
    assert outcome.reason.startswith("the process ended with exit code 3")
    assert (pipe.read(), pipe.read()) == (b"here", b"")


def test_an_interrupt_ends_what_runs_and_waits_for_none_of_it(can_fork, pipe, tmp_path):
    (tmp_path / "r998_one.py").write_text(pipe.until_held)
    (tmp_path / "r999_other.py").write_text(pipe.hold)
    made = tuple(Card(**{**vars(card()), "id": name[:4], "module": name}) for name in ("r998_one", "r999_other"))

    def interrupt(text, done, total):
        times.append(time.monotonic())
        raise KeyboardInterrupt

    times = []
    with pytest.raises(KeyboardInterrupt):
        run_cases(CasesRequest(cards=made, seconds=20.0, jobs=2), interrupt, imported=())
    assert time.monotonic() - times[0] < 10.0  # of the 20 s that the other may take
    assert (pipe.read(), pipe.read()) == (b"here", b"")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only what stays in the session of a process is found")
def test_no_part_of_a_case_outlives_who_asked_for_it(pipe, tmp_path):
    text = ONE_OF_EACH.replace("    assert not THINGS", f"    {pipe.hold}; assert not THINGS")
    (tmp_path / "r998_some_symptom.py").write_text(f'"""{DOC}"""\n{text}')
    program = (
        "from nsa_doctor.cases.running import *; from pathlib import Path\n"
        "made = dict.fromkeys(('name', 'reported', 'symptom', 'cause', 'check'), '')\n"
        "case = Card(id='r998', module='r998_some_symptom', path=Path(), **made)\n"
        "run_cases(CasesRequest(cards=(case,), jobs=2), imported=())"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REGRESSIONS.parent}"}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as asking:
        assert pipe.read() == b"here"
        asking.kill()
    assert pipe.read() == b""


def test_a_case_that_dies_says_how(run_source):
    dies = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    assert run_source(dies).reason.startswith("the process died by signal 11 (SIGSEGV)")
    leaves = "import os, sys\nsys.stderr.write('no more')\nsys.stderr.flush()\nos._exit(7)\n"
    assert run_source(leaves).reason == "the process ended with exit code 7: no more"


ONE_OF_EACH = """
from pathlib import Path
from nsa_doctor.cases.record import Case, Plant
THINGS = []
def reproduce():
    assert not THINGS, "what was planted is in the way"
def plants(folder):
    THINGS.append(1)
    return ["explain", "GAT101"] if (folder / "..").exists() else []
CASE = Case(doc=__doc__, reproduce=reproduce, plants=tuple(
    Plant(name=name, command=plants, expected=lambda text: "") for name in ("one", "two")
))
"""


@pytest.mark.parametrize("jobs", [1, 3])
def test_what_a_case_proves_comes_in_its_order_however_many_at_a_time(run_source, jobs):
    outcome = run_source(ONE_OF_EACH, jobs=jobs)
    assert (outcome.status, [sight.name for sight in outcome.sights]) == ("missed", ["one", "two"])


def test_a_part_of_a_case_that_dies_breaks_it(run_source):
    text = ONE_OF_EACH.replace("    THINGS.append(1)", "    import os; os._exit(3)")
    outcome = run_source(text, jobs=2)
    assert outcome.status == "broken"
    assert re.fullmatch(r"ChildProcessError: part [23] of 3: the process ended with exit code 3", outcome.reason)


def test_a_part_of_a_case_that_dies_ends_the_others(run_source, pipe):
    text = ONE_OF_EACH.replace("    assert not THINGS", f"    {pipe.hold}; assert not THINGS")
    dies = "    exec(" + repr(pipe.until_held) + ", {}); import os; os._exit(3)"
    outcome = run_source(text.replace("    THINGS.append(1)", dies), jobs=2)
    assert outcome.reason == "ChildProcessError: part 2 of 3: the process ended with exit code 3"
    assert (pipe.read(), pipe.read()) == (b"here", b"")


def test_a_process_that_is_no_part_of_a_case_does_not_break_it(run_source):
    other = "import subprocess, time\nOTHER = subprocess.Popen(['true'])\ntime.sleep(0.3)\n"
    assert run_source(other + ONE_OF_EACH, jobs=3).status == "missed"


def test_a_case_has_the_folder_and_the_environment_of_who_asks(run_source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAID", "so")
    asserts = "assert (os.getcwd(), os.environ['SAID']) == ({folder!r}, 'so'), (os.getcwd(), os.environ)"
    text = (
        "import os\nfrom nsa_doctor.cases.record import Case\ndef reproduce():\n    "
        + asserts.format(folder=str(tmp_path))
        + "\nCASE = Case(doc='', reproduce=reproduce, unplanted='it is made up')\n"
    )
    assert run_source(text).status == "absent"


def test_a_warm_process_that_dies_breaks_the_cases_and_hangs_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "WARM_ROOM", "antigravity_of_no_machine")
    (tmp_path / "antigravity_of_no_machine.py").write_text("import os; os.kill(os.getpid(), 9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (outcome,) = run_cases(CasesRequest(cards=(card(),)))
    assert outcome.status == "broken"
    assert outcome.reason.startswith("the process that runs the cases gives no answer: the process died by signal 9")


def test_the_terminal_shows_what_was_seen_and_where():
    sight = Sight(name="one", command="nsa-doctor run", findings=(ZERO,), decision="NO-GO")
    text = terminal(
        [card()], [CaseOutcome(id="r998", status="absent", sights=(sight,))], shows_sights=True, colour=False
    )
    for part in ("$ nsa-doctor run", "GAT101 weights are zero", "gate.fc2", "fix", "1 case: 1 absent"):
        assert part in text


def test_the_terminal_names_files_as_a_person_here_would():
    finding = Finding(message="a", code="GAT101", where=Place(file=str(Path.cwd() / "regressions" / "x.py"), line=3))
    sight = Sight(name="one", command="nsa-doctor run", findings=(finding,))
    text = terminal(
        [card()], [CaseOutcome(id="r998", status="absent", sights=(sight,))], shows_sights=True, colour=False
    )
    assert "at   regressions/x.py:3" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["r999"], "there is no case 'r999'; cases are r0"),
        (["--jobs", "0"], "--jobs must be from 1"),
        (["--timeout", "0"], "--timeout must be"),
        (["--format", "html"], "--format must be terminal, json or md"),
        (["new"], "new takes one name"),
        (["new", "Bad Name"], "in words and hyphens"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(capsys, words, message):
    assert serve(["regressions", *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_no_package_with_cases_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "_packages", list)
    assert serve(["regressions"]) == 2
    assert "no package offers regression cases" in capsys.readouterr().err
