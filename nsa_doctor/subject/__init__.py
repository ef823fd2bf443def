"""The Subject contract: what an implementation offers to be examined."""

from nsa_doctor.core.seams import SEAMS as SEAMS
from nsa_doctor.subject.contract import InputKind as InputKind
from nsa_doctor.subject.contract import Subject as Subject
from nsa_doctor.subject.contract import SubjectUnusableError as SubjectUnusableError
from nsa_doctor.subject.contract import WrongOutputError as WrongOutputError
