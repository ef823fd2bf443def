"""Findings about a source of batches."""

from nsa_doctor.artifacts.data.subject import DataSubject
from nsa_doctor.core.finding import Finding, Scalar
from nsa_doctor.core.measurement import Place


def about(subject: DataSubject, message: str, where: Place | None = None, **evidence: Scalar) -> Finding:
    """A finding about the source itself, unless a line at fault is known."""
    place = where if where is not None and where.file else subject.where
    return Finding(message=message, where=place, evidence={"data": subject.name, **evidence}, repro=subject.reproduce)
