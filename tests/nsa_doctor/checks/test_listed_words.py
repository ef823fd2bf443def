"""Words that a variable may hold, as a docstring lists them or an error says, are tried."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from nsa_doctor.adapters.load import SubjectRequest, load_subject
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check

# Of a package of its own: variables that are named in any module of a package are the subject's.
SOURCE = '''
    """A part with several paths, of which a word of the environment chooses one.

    PATHS_SPOKEN   auto, plain, eager
    """

    import os

    from torch import nn

    KNOWN = ("auto", "plain", "eager")


    def chosen(name):
        word = os.environ.get(name, "auto")
        if word not in KNOWN:
            raise ValueError(f"{name} must be one of {', '.join(KNOWN)}, got {word}")
        return word


    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(8, 8)

        def forward(self, x):
            if chosen("VARIABLE") == "eager":
                return self.map(x) * FACTOR  # here
            return self.map(x)
'''


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, float], Result]:
    monkeypatch.syspath_prepend(tmp_path)

    def run(variable: str, factor: float) -> Result:
        name = f"paths_{variable.lower()}_{int(10 * factor)}"
        source = dedent(SOURCE).replace("VARIABLE", variable).replace("FACTOR", str(factor))
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        subject = load_subject(SubjectRequest(spec=f"{name}:Part", input="embeddings", width=8, lengths=(16,)))
        return run_check(registry.load("ENV104"), subject)

    return run


@pytest.mark.parametrize("variable", ["PATHS_SPOKEN", "PATHS_BY_ERROR"])
def test_words_that_are_listed_are_tried(variable: str, examine: Callable[[str, float], Result]) -> None:
    (finding,) = examine(variable, 1.5).findings
    assert (finding.evidence["setting"], finding.evidence["value"]) == (variable, "eager")
    lines = Path(finding.where.file).read_text(encoding="utf-8").splitlines()
    assert lines[finding.where.line - 1].endswith("# here")


def test_a_word_that_changes_nothing_passes(examine: Callable[[str, float], Result]) -> None:
    result = examine("PATHS_SPOKEN", 1.0)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
