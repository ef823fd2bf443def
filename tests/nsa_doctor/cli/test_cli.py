"""The command line: one sentence and an exit code for what a person gets wrong, and no torch before it is needed."""

import json
import os
import platform
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from signal import SIGHUP, SIGTERM

import pytest

from nsa_doctor.cli.main import serve
from nsa_doctor.core import registry
from nsa_doctor.core import writing as output
from nsa_doctor.core.finding import ExitCode
from nsa_doctor.core.writing import CannotWriteError, check_writable, write_whole
from tests.nsa_doctor.conftest import HERE, environment

Doctor = Callable[..., subprocess.CompletedProcess[str]]

REFUSED = [  # words, what the sentence must hold
    (["sweep", "--seq", "0"], "got '0'"),
    (["sweep", "--seq=-5"], "got '-5'"),
    (["sweep", "--seq", "12,abc"], "got 'abc'"),
    (["sweep", "--dtype", "bf16"], "--dtype cannot be 'bf16': did you mean bfloat16"),
    (["sweep", "--dtype", "int8"], "allowed are float32, float64, bfloat16, float16"),
    (["sweep", "--device", "tpu"], "--device cannot be 'tpu'"),
    (["sweep", "--values", "random"], "--values cannot be 'random'"),
    (
        ["sweep", "--subject", "mine"],
        "--subject must be package.module:factory, hf:MODEL_TYPE or one of nsa-model, got 'mine'",
    ),
    (["run", "--subject", "mine"], "--subject must be package.module:factory, fn:package.module:function, hf:"),
    (["run", "--subject", "attn.py:Mine"], "got 'attn.py:Mine': write attn:Mine"),
    (["go-no-go", "--subject", "./sub/attn.py:Mine"], "got './sub/attn.py:Mine': write sub.attn:Mine"),
    (["sweep", "--subject", "pkg/__init__.py:Mine"], "got 'pkg/__init__.py:Mine': write pkg:Mine"),
    (["run", "--subject", "attn.py"], "write attn:NAME, NAME being a class or a factory of that file"),
    (["run", "--subject", "fn:a/kern.py:attend", "--like", "flash"], "write fn:a.kern:attend"),
    (["sweep", "--subject", "a.b:c", "--config", "x.yaml"], "has no effect with --subject"),
    (["sweep", "--input", "tokens"], "--input is for a --subject"),
    (["sweep", "--subject", "a:b", "--input", "words"], "--input cannot be 'words'"),
    (["sweep", "--spec", "bidirectional"], "--spec is for a --subject"),
    (["run", "--train", "a:b"], "--train is for a --subject"),
    (["run", "--subject", "a:b", "--train", "a.b"], "--train must be package.module:function, got 'a.b'"),
    (["run", "--size", "real"], "--size is for a --subject hf:"),
    (["run", "--subject", "a:b", "--size", "real"], "--size is for a --subject hf:"),
    (["run", "--subject", "fn:a:b", "--like", "sdpa", "--size", "real"], "--size is for modules"),
    (["run", "--subject", "hf:llama", "--size", "huge"], "--size cannot be 'huge': allowed are small, real"),
    (["run", "--subject", "a:b", "--spec", "bidirectionl"], "--spec cannot be 'bidirectionl': did you mean bidirect"),
    (["go-no-go", "--subject", "a:b", "--spec", "bidirectional,causal"], "--spec cannot be 'causal'"),
    (["sweep", "--seed", "-1"], "--seed must be from 0"),
    (["sweep", "--seed", "x"], "Invalid value for '--seed'"),
    (["sweep", "--timeout", "0"], "--timeout must be a number of seconds above 0"),
    (["sweep", "--timeout", "nan"], "--timeout must be a number of seconds above 0"),
    (["run", "--compile-timeout", "-1"], "--compile-timeout must be a number of seconds from 0 on, got -1"),
    (["sweep", "--format", "pdf"], "--format cannot be 'pdf'"),
    (
        ["sweep", "--output", "/nowhere/report.json"],
        "/nowhere/report.json: cannot be written: No such file or directory",
    ),
    (["sweep", "--output", "/"], "is a folder"),
    (["sweep", "--sqe", "128"], "No such option: --sqe"),
    (["sweep", "--seq", "128", "--seq"], "requires an argument"),
    (["sweep", "--seq", "128", "--seq=abc"], "got 'abc'"),
    (["run", "--select", "FWD", "--select", "XYZ"], "XYZ"),
    (["run", "--select", "XYZ", "--jobs", "1", "--select=FWD"], "XYZ"),
    (["sweep", "128"], "unexpected extra argument"),
    (["smoke", "--steps", "1" + "0" * 400], "--steps must be from"),
    (["regressions", "--format", "md", "--jobs", "0"], "--jobs must be from 1"),
    (["swep"], "No such command 'swep'"),
    (["explain", "NAN01"], "unknown check 'NAN01': did you mean NAN101 output-not-finite\n"),
    (["explain", "output-not-finit"], "did you mean NAN101 output-not-finite\n"),
    (["explain", "gate"], "did you mean GAT"),
    (["explain", "xyzzy"], "unknown check 'xyzzy': nsa-doctor list shows every code\n"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[" ".join(case[0]) for case in REFUSED])
def test_a_wrong_command_line_is_one_sentence_and_exit_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nsa-doctor: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--subject", "faulty.nowhere:make"], "cannot be imported: ModuleNotFoundError"),
        pytest.param(
            ["--device", "cuda"],
            "torch sees no CUDA device; use --device cpu",
            marks=pytest.mark.filterwarnings("ignore"),
        ),
    ],
)
def test_what_only_the_child_can_know_is_reported_as_briefly(doctor: Doctor, words: list[str], message: str) -> None:
    answer = doctor("sweep", *words, env={**environment(), "CUDA_VISIBLE_DEVICES": ""})
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1
    assert message in answer.stderr


@pytest.mark.parametrize("option", ["--policy", "--run", "--baseline", "--subject", "--config"])
def test_a_sentence_has_an_end_whatever_it_is_about(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert serve(["go-no-go", option, "n" * 5000]) == 2
    assert len(capsys.readouterr().err) < 1000
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["go-no-go", "--subject", "no_such_package.module:make"],
        ["go-no-go", "--jobs", "0"],
        ["smoke", "--jobs", "0"],
    ],
    ids=" ".join,
)
def test_a_command_line_that_is_refused_leaves_no_folder_behind(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert serve([*words, "--quiet"]) == 2
    assert serve([*words, "--quiet", "--output", "a/b/c"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    assert not list(tmp_path.iterdir())


def test_a_fault_of_the_doctors_own_is_exit_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "manuals", lambda: {}["gone"])
    assert serve(["list"]) == 4
    assert capsys.readouterr().err == "nsa-doctor: internal error: KeyError: 'gone'; --traceback shows where\n"


def test_an_interruption_before_the_work_is_exit_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "manuals", interrupted)
    assert serve(["list"]) == 130


def test_a_refusal_is_exit_2_wherever_typer_keeps_its_exceptions() -> None:
    program = (
        "import sys, typer\n"
        "class Moved(typer.BadParameter): pass\n"
        "class MovedAgain(Moved): pass\n"
        "typer.BadParameter = MovedAgain\n"
        "from nsa_doctor.cli.main import serve; sys.exit(serve(['sweep', '--sqe', '128']))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment()
    )
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)


def test_the_help_cuts_no_summary_of_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert serve(["--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:")[2].partition("Exit codes")[0].strip().splitlines()
    assert len(commands) >= 19
    assert [line for line in commands if line.endswith("...")] == []


def test_the_help_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["--help"]) == 0
    listing = capsys.readouterr().out.partition("Exit codes:")[2]
    assert {int(number) for number in re.findall(r"\d+", listing)} == {*ExitCode, 128 + SIGTERM, 128 + SIGHUP}


def test_list_names_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{code}  {manual.name}" in listed for code, manual in registry.manuals().items())


def test_explain_alone_lists_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["explain"]) == serve(["list"]) == 0
    once = capsys.readouterr().out
    assert once[: len(once) // 2] == once[len(once) // 2 :]


def test_a_check_is_explained_by_its_name_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["explain", "output-not-finite"]) == 0
    assert capsys.readouterr().out.startswith("NAN101 output-not-finite\n")


@pytest.mark.parametrize(
    ("command", "is_silenced"), [("run", True), ("sweep", True), ("go-no-go", False), ("matrix", False)]
)
def test_the_help_of_quiet_says_which_reports_it_silences(
    command: str, is_silenced: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert serve([command, "--help"]) == 0
    (line,) = [each.strip() for each in capsys.readouterr().out.splitlines() if "--quiet" in each]
    assert ("with --output no report here" in line) is is_silenced
    assert is_silenced or line.endswith("No progress.")


@pytest.mark.parametrize("words", [["-h"], ["sweep", "-h"], ["go-no-go", "-h"]], ids=" ".join)
def test_the_short_option_of_help_is_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(words) == serve([*words[:-1], "--help"]) == 0
    once = capsys.readouterr().out
    assert once[: len(once) // 2] == once[len(once) // 2 :]


def test_the_version_names_torchs_without_importing_it() -> None:
    program = (
        "import sys; from nsa_doctor.cli.main import serve; code = serve(['--version']); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment()
    )
    assert answer.stdout == (
        f"nsa-doctor {version('nsa-doctor')} (torch {version('torch')}, Python {platform.python_version()})\n"
    )


def test_no_word_at_all_is_answered_with_what_to_begin_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve([]) == 2
    first, *examples = capsys.readouterr().err.splitlines()
    assert first.startswith("nsa-doctor: a command is needed")
    words = ("init", "run", "run", "watch", "explain")
    assert [line.split()[:2] for line in examples] == [["nsa-doctor", word] for word in words]


def test_explain_gives_the_manual(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["explain", "nan101"]) == 0
    explained = capsys.readouterr().out
    assert explained.startswith("NAN101 output-not-finite\n\nDetects: ")
    assert "\nMatters: " in explained
    assert "\nFix: " in explained
    assert "\nExample:\n    # faulty\n" in explained


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_what_reads_no_file_starts_without_pydantic(word: str) -> None:
    program = (
        "import sys; from nsa_doctor.cli.main import serve; code = serve(sys.argv[1:]); "
        "assert 'pydantic' not in sys.modules; sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", program, word], check=True, capture_output=True, env=environment())


@pytest.mark.parametrize("words", [["--help"], ["sweep", "--help"], ["list"], ["explain", "NAN101"]])
def test_what_needs_no_torch_imports_none(words: list[str]) -> None:
    program = (
        "import sys; from nsa_doctor.cli.main import serve; code = serve(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'nsa'} & set(sys.modules); assert not heavy, heavy; sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, env=environment())


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m nsa_doctor list | head -n 1; exit ${{PIPESTATUS[0]}}"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=environment())
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith(min(registry.manuals()))


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("2>&-", 0), (">/dev/full", 2)])
def test_closed_and_full_streams_end_without_a_traceback(closed: str, code: int) -> None:
    command = f"{sys.executable} -m nsa_doctor explain NAN101 {closed}"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=environment())
    assert "Traceback" not in answer.stdout + answer.stderr
    assert answer.returncode == code


def test_a_narrow_encoding_is_written_around() -> None:
    code = "import sys; from nsa_doctor.core.writing import say; say('caf\\u00e9\\n', sys.stdout)"
    env = {**environment(), "PYTHONIOENCODING": "ascii"}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert answer.stdout == "caf\\xe9\n"


def test_an_old_report_stays_whole_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(output.CannotWriteError, match="No space left on device"):
        output.write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_replaces_what_a_link_points_to(tmp_path: Path) -> None:
    target, link = tmp_path / "real.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    output.write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def on_a_terminal(*words: str, **variables: str) -> tuple[int, str]:
    """Exit code and everything a terminal was sent."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "nsa_doctor", *words]
    env = {**environment(), "TERM": "xterm-256color", **variables}
    with subprocess.Popen(command, stdout=follower, stderr=follower, stdin=follower, env=env, cwd=HERE) as process:
        os.close(follower)
        sent = b""
        while True:
            try:
                data = os.read(leader, 65536)
            except OSError:
                break
            if not data:
                break
            sent += data
    os.close(leader)
    return process.returncode, sent.decode()


def test_a_terminal_gets_a_bar_and_without_colour_only_words() -> None:
    words = ["sweep", "--seq", "16", "--subject", "faulty.forward:constant", "--input", "embeddings"]
    code, sent = on_a_terminal(*words, NO_COLOR="1")
    assert code == 1
    assert "starting" in sent
    assert "NAN101" in sent
    assert "\x1b[31m" not in sent
    assert "\x1b[1;31m" not in sent


def test_traceback_shows_where_the_subject_raised(doctor: Doctor) -> None:
    words = ["--seq", "17", "--subject", "faulty.unruly:raises", "--input", "embeddings", "--quiet"]
    answer = doctor("sweep", *words, "--traceback")
    assert answer.returncode == 1
    assert "Traceback (most recent call last):" in answer.stdout
    assert 'raise ValueError("blocks must divide the length")' in answer.stdout
    assert answer.stderr == ""


def test_standard_output_can_be_the_report_file(doctor: Doctor) -> None:
    words = ["--seq", "16", "--subject", "faulty.healthy:causal", "--format", "json", "--output", "/dev/stdout"]
    answer = doctor("sweep", *words, "--quiet")
    assert answer.returncode == 0
    assert json.loads(answer.stdout)["decision"] == "GO"


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this machine has no /dev/fd")
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_file_that_is_open_is_added_to_and_not_replaced(tmp_path: Path, is_linked: bool) -> None:
    log, link = tmp_path / "log", tmp_path / "link"
    with log.open("a") as stream:
        stream.write("before, ")
        stream.flush()
        path = Path(f"/dev/fd/{stream.fileno()}")
        link.symlink_to(path)
        check_writable(link if is_linked else path)
        write_whole(link if is_linked else path, "the report, ")
        stream.write("after")
    assert log.read_text() == "before, the report, after"


def test_what_is_not_open_cannot_be_written() -> None:
    with pytest.raises(CannotWriteError, match="/dev/fd/987: cannot be written"):
        check_writable(Path("/dev/fd/987"))
