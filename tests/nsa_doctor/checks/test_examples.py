"""The example of a manual is Python: code that the check is about, and the same code as it should be."""

import ast

import pytest

from nsa_doctor.core.registry import manuals

EXAMPLES = {code: manual.example for code, manual in manuals().items() if manual.example}
_FIRST, _SECOND = "# faulty\n", "\n# correct\n"
_LONGEST = 8  # lines of each part


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_is_faulty_code_and_then_the_same_correct(code: str) -> None:
    example = EXAMPLES[code]
    assert example.startswith(_FIRST)
    faulty, correct = example.removeprefix(_FIRST).split(_SECOND)
    assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(correct))
    for part in (faulty, correct):
        assert ast.parse(part).body
        assert len(part.splitlines()) <= _LONGEST


def test_no_check_of_a_module_is_added_without_an_example() -> None:
    families = ("FWD", "GRD", "NAN", "GAT", "SEL", "DEC", "HNG", "PRF")
    without = {code for code in manuals() if code.startswith(families) and code not in EXAMPLES}
    assert without <= {
        *("FWD301", "FWD302", "FWD304", "GRD101", "GRD102", "NAN106", "DEC103", "DEC105"),  # no room in the file
        *("GAT202", "GAT203", "GAT204", "HNG202", "PRF401"),  # no line of code is at fault
    }
