"""`nsa-doctor anomaly`: a run of the checks that look into backward, at given lengths."""

from dataclasses import replace

from nsa_doctor.core import registry
from nsa_doctor.core.check import Command
from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.engine.run import RunRequest


def request(examination_request: ExaminationRequest, lengths: tuple[int, ...]) -> RunRequest:
    """The run that examines exactly these lengths, each check for as long as it needs."""
    codes = tuple(entry.manual.code for entry in registry.of_command(Command.ANOMALY))
    return RunRequest(
        examination_request=replace(examination_request, lengths=lengths, are_all_lengths=True, profile="full"),
        checks=tuple(registry.select(codes, (), "full")),
        selected=codes,
        command="anomaly",
    )
