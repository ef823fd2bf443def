"""FWD102 wrong-output-shape

Detects: an output that is no floating-point tensor of one row per token, as the input had them.
Matters: broadcasting hides a missing or extra token until the loss compares the wrong ones.
Fix: return [B, S, dim] for embeddings, or logits [B, S, vocabulary] for tokens; cut padding off before returning.

Example:
    # faulty
    x = F.pad(x, (0, 0, 0, -x.shape[1] % block))
    return self.attend(x)  # more rows than tokens
    # correct
    num_tokens = x.shape[1]
    x = F.pad(x, (0, 0, 0, -num_tokens % block))
    return self.attend(x)[:, :num_tokens]
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.swept import lengths_of, swept
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.engine.measure_points import points
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    yield from swept(subject, CHECK.answers, points(lengths_of(subject)), forward_only=True)


def planted(subject: Subject) -> Subject:
    def drops_the_partial_block(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        return output[:, : output.shape[1] // 4 * 4]

    return replace(subject, forward=drops_the_partial_block)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    priority=250,
    answers=("wrong shape",),
    fuzzed=("wrong shape",),
    commands=("anomaly", "throughput"),
)
