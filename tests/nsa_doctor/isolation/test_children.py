"""A child started either way runs its program with the words, the files and the streams that it was given."""

import os
from pathlib import Path

import pytest

from nsa_doctor.isolation.start import Children, KeptProcess

PROGRAM = """
import os, sys
def main():
    with os.fdopen(int(sys.argv[1]), "w") as out:
        out.write(f"{sys.argv[2:]} {os.getsid(0) == os.getpid()} {sys.stdin.read()!r}\\n")
    print("for nobody", flush=True)
    sys.exit("it ends")
"""


@pytest.fixture(params=[False, True], ids=["an interpreter", "a fork"])
def forked_children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways, here."""
    monkeypatch.setattr(Children, "are_forked", request.param)


@pytest.mark.usefixtures("forked_children")
def test_it_has_what_it_was_given_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_program_of_a_child.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    reading, writing = os.pipe()
    child = KeptProcess("a_program_of_a_child", [str(writing), "two words"], (writing,), writing)
    os.close(writing)
    with os.fdopen(reading) as output:
        assert output.read().splitlines() == [
            "['two words'] True ''",
            "",
            '{"event": "ended", "status": 1, "left": {}}',
        ]
    child.end()
    assert child.wait() == 1
    with child.errors:
        assert child.errors.read() == b"it ends\n"
    assert capfd.readouterr() == ("", "")
