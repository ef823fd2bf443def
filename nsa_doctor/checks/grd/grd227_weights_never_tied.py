"""GRD227 weights-never-tied

Detects: a method that by its name ties parameters (`tie_weights`, `share_embeddings`, …), that would make one of two
and does not run while the module is built: nothing names it, or the constructors of its neighbours in the file call
theirs and this one does not; and a layer whose weight begins as a copy of an embedding's, both of which are trained,
where neither names nor comments say that two are wanted.
Matters: two matrices are trained where one is meant; the model is larger, and not the one that checkpoints, papers and
its neighbours have.
Fix: call it at the end of `__init__` (`self.tie_weights()`), or remove it; give the parameter itself
(`self.head.weight = self.embed.weight`), and no clone of it.

Example:
    # faulty
    def __init__(self, words, dim):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, dim), nn.Linear(dim, words, bias=False)

    def tie_weights(self):
        self.head.weight = self.embed.weight
    # correct
    def __init__(self, words, dim):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, dim), nn.Linear(dim, words, bias=False)
        self.tie_weights()

    def tie_weights(self):
        self.head.weight = self.embed.weight
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.copied_weights import copied_weights
from nsa_doctor.probes.model.untied_weights import untied_weights
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    for each in untied_weights(subject):
        first, second = each.pair
        why = f"; the constructor of {each.neighbour} calls its own" if each.neighbour else ""
        yield Finding(
            message=(
                f"{each.place.module_class}.{each.name} makes one of {first} and {second}, and nothing calls it where "
                f"the module is built: they are two parameters{why}"
            ),
            where=each.place,
            evidence={"method": each.name, "parameters": f"{first},{second}"},
            repro=command_for(subject, "GRD227"),
        )
    for copied in copied_weights(subject):
        yield Finding(
            message=(
                f"{copied.head} begins as a copy of {copied.embedding}, in memory of its own: they are equal when the "
                f"module is built, and are trained apart"
            ),
            where=copied.place,
            evidence={"parameters": f"{copied.embedding},{copied.head}"},
            repro=command_for(subject, "GRD227"),
        )


def planted(subject: Subject) -> Subject:
    class Tied(nn.Module):
        """The subject, times what two layers make of its output, which are meant to be one."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.one, self.other = inner, nn.Linear(1, 1), nn.Linear(1, 1)

        def tie_planted_parameters(self) -> None:
            self.other.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output + self.other(self.one(output[..., :1].float())).to(output)

    return replace(subject, build=lambda seed: Tied(subject.build(seed)), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",))
