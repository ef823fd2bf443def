"""The bugs planted in larger code bases apply, each to the lines that a diagnosis has to name."""

from pathlib import Path

import pytest

from tests.gallery_code.planting import Bug, Variant, lay_out, lines_at_fault
from tests.gallery_code.recall import HOSTS, changes_of

BUGS = [(host, bug) for host in HOSTS for bug in changes_of(host)[0]]
VARIANTS = [(host, variant) for host in HOSTS for variant in changes_of(host)[1]]


@pytest.mark.parametrize(("host", "bug"), BUGS, ids=[f"{host}-{bug.name}" for host, bug in BUGS])
def test_a_bug_changes_the_lines_that_it_names(host: str, bug: Bug, tmp_path: Path) -> None:
    package = lay_out(host, bug, tmp_path)
    text = (package / bug.file).read_text(encoding="utf-8")
    compile(text, bug.file, "exec")
    assert lines_at_fault(bug, package)
    assert text != (lay_out(host, None, tmp_path / "healthy") / bug.file).read_text(encoding="utf-8")


@pytest.mark.parametrize(("host", "variant"), VARIANTS, ids=[f"{host}-{each.name}" for host, each in VARIANTS])
def test_a_variant_applies(host: str, variant: Variant, tmp_path: Path) -> None:
    package = lay_out(host, variant, tmp_path)
    compile((package / variant.file).read_text(encoding="utf-8"), variant.file, "exec")


def test_there_are_enough_of_each() -> None:
    assert len(HOSTS) >= 4
    assert (len(BUGS), len(VARIANTS)) == (196, 40)
    assert len({(host, bug.name) for host, bug in BUGS}) == len(BUGS)


def test_a_text_that_is_not_there_is_refused(tmp_path: Path) -> None:
    host, bug = BUGS[0]
    missing = Bug(**{**vars(bug), "old": "no such text"})
    with pytest.raises(ValueError, match="must have the text once, has it 0 times"):
        lay_out(host, missing, tmp_path)
