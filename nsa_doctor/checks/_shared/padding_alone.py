"""What a row of nothing but padding does to whoever reads it, and to the gradients of all."""

from collections.abc import Iterator

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.empty_rows import EmptyRow, empty_row
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.subject.contract import Subject


def of_padding_alone(subject: Subject, code: str) -> Iterator[Finding | Note]:
    """A finding where several queries that are no padding read NaN, or where it is cleaned in vain; else a note."""
    with unobserved():
        found = attempt(lambda: empty_row(subject))
    if not isinstance(found, EmptyRow):
        return
    who = "its own tokens" if found.is_of_tokens else "queries that are no padding"
    cleaned = ", which is cleaned behind it" * found.is_cleaned
    message = (
        f"a row of which a mask hides every token gives {who} NaN by a softmax over -inf alone{cleaned}, and a loss of "
        f"the other row alone gives {found.num_gradients} parameters a gradient that is not finite"
    )
    if not found.is_expected:
        yield Note(message=message, where=found.place)
        return
    yield Finding(
        message=message,
        where=found.place,
        evidence={"in": "row", "gradients": found.num_gradients},
        repro=command_for(subject, code),
    )
