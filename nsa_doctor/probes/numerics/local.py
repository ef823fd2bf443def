"""Measures in this very process, for checks, which a child process runs as a whole."""

from dataclasses import dataclass, field

from nsa_doctor.core.measurement import Diagnosis, Measurement, Point
from nsa_doctor.probes.model.measure import measure
from nsa_doctor.probes.model.perform import Conditions
from nsa_doctor.probes.numerics.nonfinite_origin import diagnose
from nsa_doctor.probes.numerics.raised_origin import locate_raise
from nsa_doctor.subject.contract import Subject


@dataclass(frozen=True)
class LocalMeasurer:
    """Measures and traces one subject here."""

    subject: Subject
    conditions: Conditions = field(default_factory=Conditions)

    def measure(self, point: Point) -> Measurement:
        """Run the subject once and count."""
        return measure(self.subject, point, self.conditions)

    def diagnose(self, point: Point, raises: bool = False) -> Diagnosis:
        """Run it again, traced."""
        return (locate_raise if raises else diagnose)(self.subject, point, self.conditions)
