"""FUN505 serves-by-another-kernel

Detects: a function that calls torch's own attention: a note, not a finding, unless another check finds it wrong.
Matters: a kernel that falls back to the one it is compared with is right and as fast as that one; nothing was written.
Fix: where a fallback is meant, say so; where a kernel is claimed, see that it is reached.

Example:
    # faulty
    out = my_kernel(q, k, v) if FAST else scaled_dot_product_attention(q, k, v)
    # correct
    out = my_kernel(q, k, v)
"""

from collections.abc import Iterator

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.probes.functions import shapes
from nsa_doctor.probes.functions.delegation import kernels_called
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.subject.function import FunctionSubject


def run(subject: FunctionSubject) -> Iterator[Finding | Note]:
    called = kernels_called(subject, problem_of(subject, shapes.base(subject)))
    if called and subject.place.file:
        yield Note(message=f"{subject.name} is served by {', '.join(called)}", where=subject.place)


def planted(subject: FunctionSubject) -> FunctionSubject:
    from torch.nn.functional import scaled_dot_product_attention

    from nsa_doctor.checks._shared.of_function import injected

    def another(q, k, v, is_causal=False, **options):  # type: ignore[no-untyped-def]
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    return injected(subject, another)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="function", profile="smoke", blocked_by=("FUN101",), priority=560
)
