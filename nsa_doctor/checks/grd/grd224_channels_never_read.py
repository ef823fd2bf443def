"""GRD224 channels-never-read

Detects: some output channels of a linear layer or a convolution that get no gradient and change no output at several
lengths and with several weights, while the other channels of the layer do: a part of a fused projection that is taken
out and not read, or that another is read for. Where most are not read, or those of its like in another layer are, it is
a note; logits that round a vocabulary up are left alone, and a few that stand for nothing.
Matters: what was meant to be read, a gate or a half of the channels, has another value, and a part of the parameters
never learns.
Fix: read the part; where none is meant to be, make the layer as much narrower.

Example:
    # faulty
    shift, scale, gate_a, gate_m = self.ada(c).chunk(4, -1)
    x = x + gate_a * self.attend(x)
    x = x + gate_a * self.mlp(x)
    # correct
    x = x + gate_m * self.mlp(x)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import MOST_FINDINGS
from nsa_doctor.checks._shared.unread_channels import Unread, unread_channels
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.unread_targets import unread_targets
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding | Note]:
    groups: dict[tuple[str, int, tuple[int, ...]], list[Unread]] = {}
    for each in unread_channels(subject):
        groups.setdefault((each.place.file, each.place.line, each.channels), []).append(each)
    for same in list(groups.values())[:MOST_FINDINGS]:
        first, place = same[0], same[0].place
        others = f" (and {len(same) - 1} more)" if len(same) > 1 else ""
        name, line = next(iter(unread_targets(place)), ("", place.line))
        why = f"; nothing reads {name}" if name else ""
        message = (
            f"{len(first.channels)} of the {first.of} output channels of {first.path or 'the module'}{others} "
            f"({_ranges(first.channels)}) get no gradient and change no output, at several lengths and weights"
        )
        if first.is_meant:
            beside = f"; those of {first.beside} do" if first.beside else ""
            yield Note(message=f"{message}{beside}", where=place)
            continue
        yield Finding(
            message=f"{message}{why}",
            where=replace(place, line=line),
            evidence={"channels": len(first.channels), "of": first.of, "layers": ",".join(each.path for each in same)},
            repro=command_for(subject, "GRD224"),
        )


def _ranges(channels: Sequence[int]) -> str:
    """0 to 3, 8 to 11, …."""
    runs: list[list[int]] = []
    for each in channels:
        if runs and each == runs[-1][-1] + 1:
            runs[-1][-1] = each
        else:
            runs.append([each, each])
    shown = ", ".join(f"{first} to {last}" if first < last else f"{first}" for first, last in runs[:3])
    return shown + (", …" if len(runs) > 3 else "")


def planted(subject: Subject) -> Subject:
    class Halved(nn.Module):
        """The subject behind a projection to four channels, of which two are not read."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.gates = subject.build(subject.seed), nn.Linear(1, 4)

        def forward(self, x: Tensor) -> Tensor:
            shift, scale, _gate = self.gates(x.mean(-1, keepdim=True)).split((1, 1, 2), -1)
            output: Tensor = subject.forward(self.inner, x * scale + shift)
            return output

    return replace(subject, build=lambda _seed: Halved(), forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "FWD206", "GRD401"),
    explained_by=("GRD201", "GRD202", "GRD208", "GRD212"),
)
