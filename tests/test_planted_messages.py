"""The site shows what each check says of the fault that it plants: a message for every check, in today's words."""

import re

import pytest

from nsa_doctor.core import registry
from tests.planted_messages import WITHOUT, message, messages

QUICK = ("CKP103", "DAT105", "FUN101", "FUN505", "FWD101", "FWD201", "GRD401", "NAN101")


def words(text: str) -> str:
    """The message without its numbers, which are those of a machine."""
    return re.sub(r"-?\d[\d,.]*(e[+-]?\d+)?", "#", text)


def test_every_check_has_a_message_or_a_reason_to_have_none() -> None:
    assert sorted({**messages(), **WITHOUT}) == sorted(registry.entries()), "python -m tests.planted_messages writes it"
    assert not messages().keys() & WITHOUT.keys()
    assert all(messages().values())


def test_no_message_names_a_folder_of_the_machine_that_it_was_written_on() -> None:
    assert [code for code, text in messages().items() if re.search(r"(?<![\w.])/(tmp|home|root|work|usr)/", text)] == []


@pytest.mark.parametrize("code", QUICK)
def test_a_message_is_in_the_words_of_its_check(code: str) -> None:
    assert words(message(code)) == words(messages()[code]), f"python -m tests.planted_messages {code} writes it"
