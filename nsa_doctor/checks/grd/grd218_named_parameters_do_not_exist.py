"""GRD218 named-parameters-do-not-exist

Detects: a loop over named parameters that initialises those of a name which none has, and which stands nowhere else in
the sources: the name of another code base, or of before a change.
Matters: what it was to initialise starts as it is, and nothing says so; deep models then learn worse, or diverge.
Fix: ask for the names that `named_parameters()` gives, and assert that each is met.

Example:
    # faulty
    if name.endswith("c_proj.weight"):  # which is called out_proj here
        nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * num_layers))
    # correct
    if name.endswith("out_proj.weight"):
        nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * num_layers))
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.named_loops import unmet_names
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.identity import sources_beside
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    module = built(subject).module
    files = sources_beside(module)
    if not files:
        raise NotApplicableError("no source of it can be read")
    for each in unmet_names(module, files):
        asked = " or ".join(repr(text) for text in dict.fromkeys(each.texts))
        yield Finding(
            message=f"no parameter has {asked} in its name: what is initialised under that condition is nothing",
            where=replace(definition_place(each.holder), **vars(each.line)),
            evidence={"names": ",".join(each.texts)},
            repro=command_for(subject, "GRD218"),
        )


def planted(subject: Subject) -> Subject:
    class Initialised(nn.Module):
        """The subject, with parameters initialised by a name that they do not have."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            for name, parameter in self.named_parameters():
                if name.endswith("projection_of_another.weight"):
                    nn.init.zeros_(parameter)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output

    return replace(subject, build=lambda _seed: Initialised(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted)
