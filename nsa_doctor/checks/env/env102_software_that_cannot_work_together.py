"""ENV102 software-that-cannot-work-together

Detects: a driver too old for torch's CUDA, a GPU that torch has no code for, a triton other than torch asks for, a
flash-attn that cannot be imported, a torch without CUDA beside an NVIDIA device.
Matters: kernels fail at their first launch, or a slow fallback takes their place without a word.
Fix: install the versions named; `nsa-doctor env` prints a block to paste into an issue.

Example:
    # faulty
    requirements = ["torch==2.11.0", "triton==3.0.0"]  # torch asks for another triton
    # correct
    requirements = ["torch==2.11.0"]  # brings the triton that it was built with
"""

from collections.abc import Iterator
from dataclasses import replace

from nsa_doctor.core.check import Check
from nsa_doctor.core.environment import Environment, misfits
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.environment import environment
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    facts = subject.environment or environment()
    for misfit in misfits(facts):
        yield Finding(
            message=misfit.message,
            evidence={"parts": ",".join(misfit.parts), "torch": facts.torch, "driver": facts.driver},
            repro=command_for(subject, "ENV102"),
        )


def planted(subject: Subject) -> Subject:
    old_driver = Environment(torch="2.13.0+cu130", torch_cuda=(13, 0), driver="535.104.05", driver_cuda=(12, 2))
    return replace(subject, environment=old_driver)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke")
