"""`nsa-doctor anomaly`: a run of the checks that look into backward, at given lengths."""

from dataclasses import replace

from nsa_doctor import registry
from nsa_doctor.laboratory import Assignment
from nsa_doctor.run import RunRequest

CODES = (
    *("HNG101", "FWD101", "FWD102"),  # what keeps the others from looking
    *("NAN101", "NAN102", "GRD201", "GRD202", "GRD203", "GRD401", "GRD402"),
)


def request(assignment: Assignment, lengths: tuple[int, ...]) -> RunRequest:
    """The run that examines exactly these lengths, each check for as long as it needs."""
    return RunRequest(
        assignment=replace(assignment, lengths=lengths, are_all_lengths=True, profile="full"),
        checks=tuple(registry.select(CODES, (), "full")),
        selected=CODES,
        command="anomaly",
    )
