"""Parts that a subject does not offer are named for people, by the seam as well, and the most frequent of them."""

from dataclasses import fields, replace

import pytest

from nsa_doctor.core.finding import Report, Result, Verdict
from nsa_doctor.core.seams import SEAMS, offers_no, parts_not_offered
from nsa_doctor.render.overview import not_checked
from nsa_doctor.subject.contract import Subject

EMPTY = Report(command="run", subject={}, options={}, environment={})


def test_every_seam_is_a_field_of_a_subject_and_has_a_phrase_of_its_own() -> None:
    assert set(SEAMS) <= {field.name for field in fields(Subject)}
    assert len(set(SEAMS.values())) == len(SEAMS)
    assert not [phrase for phrase in SEAMS.values() if "_" in phrase or not phrase[0].islower()]


def test_a_reason_names_parts_for_people_and_their_seams() -> None:
    reason = offers_no(("prefill", "packed"))
    assert reason == "it offers no way to read a prompt (seam prefill) and no way to pack sequences (seam packed)"
    assert list(parts_not_offered(reason)) == ["way to read a prompt", "way to pack sequences"]
    assert list(parts_not_offered("it has no gate that could be found")) == []


def test_a_part_without_a_phrase_is_named_as_it_is() -> None:
    assert offers_no(("of_a_plugin",), "my_pkg:make") == "my_pkg:make offers no of_a_plugin"


def idle(*needed: tuple[str, ...]) -> Report:
    skipped = Result(code="FWD101", name="x", verdict=Verdict.SKIP, is_required=False)
    return replace(EMPTY, results=tuple(replace(skipped, reason=offers_no(seams)) for seams in needed))


@pytest.mark.parametrize(
    ("needed", "parts"),
    [
        ([("oracle",)], "no reference to compare with; a report as json names all"),
        (
            [("oracle",), ("packed",), ("padded",), ("prefill", "step"), ("step",), ("packed",)],
            "no way to pack sequences, no way to decode a token, no reference to compare with, …; "
            "a report as json names all",
        ),
        ([("of_a_plugin",)], "a report as json says which"),
    ],
    ids=["one", "many", "unknown"],
)
def test_what_does_not_apply_says_which_parts_most_checks_miss(needed: list[tuple[str, ...]], parts: str) -> None:
    (line,) = not_checked(idle(*needed))
    assert line == f"does not apply: {len(needed)} FWD, for parts it does not offer ({parts})"
