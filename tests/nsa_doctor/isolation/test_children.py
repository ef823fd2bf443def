"""A child started either way runs its program with the words, the files and the streams that it was given."""

import os
import tempfile
from pathlib import Path

import pytest

from nsa_doctor.isolation.start import Children, start_child

PROGRAM = """
import os, sys
def main():
    with os.fdopen(int(sys.argv[1]), "w") as out:
        out.write(f"{sys.argv[2:]} {os.getsid(0) == os.getpid()} {sys.stdin.read()!r}")
    print("for nobody", flush=True)
    sys.exit("it ends")
"""


@pytest.fixture(params=[False, True], ids=["an interpreter", "a fork"])
def forked_children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways, here."""
    monkeypatch.setattr(Children, "are_forked", request.param)


@pytest.mark.usefixtures("forked_children")
@pytest.mark.parametrize("has_a_file", [True, False])
def test_it_has_what_it_was_given_and_nothing_else(
    has_a_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_program_of_a_child.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as file:
        child = start_child(
            "a_program_of_a_child", [str(writing), "two words"], (writing,), file if has_a_file else None
        )
        os.close(writing)
        with os.fdopen(reading) as told:
            assert told.read() == "['two words'] True ''"
        assert child.wait(60) == 1
        file.seek(0)
        assert (child.stderr is None) == has_a_file
        errors = file.read()
        if child.stderr is not None:
            with child.stderr:
                errors += child.stderr.read()
    assert errors == b"it ends\n"
    assert capfd.readouterr() == ("", "")
