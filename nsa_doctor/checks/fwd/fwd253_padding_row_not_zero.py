"""FWD253 padding-row-not-zero

Detects: an embedding with a `padding_idx` whose row is not zero in the module as it is built, where tokens beside
padding differ from those with a row of zeros. Where nothing reads the row, where something trains it, as an output
that has the same weight, and of vectors that were trained elsewhere, nothing is said.
Matters: torch gives that row no gradient, so that it stays what chance made it, and each padded token adds it to what
sums or mixes tokens.
Fix: set the row to zero behind whatever draws the weights again: `embedding.weight[embedding.padding_idx] = 0`.

Example:
    # faulty
    self.embedding = nn.Embedding(vocabulary, dim, padding_idx=0)
    for parameter in self.parameters():
        nn.init.xavier_normal_(parameter)
    # correct
    for parameter in self.parameters():
        nn.init.xavier_normal_(parameter)
    with torch.no_grad():
        self.embedding.weight[0] = 0
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.like import HUGGING_FACE
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.padding_rows import departure_with, is_fed, is_trained, padding_rows
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH, _PADDING = 19, 6


def run(subject: Subject) -> Iterator[Finding]:
    if subject.input != "tokens" or subject.max_length < _LENGTH + _PADDING:
        raise NotApplicableError("it takes no ids, or too few")
    if subject.name.startswith(HUGGING_FACE):
        raise NotApplicableError("its weights are not those that its type draws")
    sp = comparable_module(subject)
    if subject.padded is None and _takes_more(sp.module):
        raise NotApplicableError(
            "it takes a mask or lengths beside its ids, which are not known to be those of padding"
        )
    for row in padding_rows(subject):
        if row.number >= subject.width or not is_fed(sp, row, _LENGTH) or is_trained(sp, row, _LENGTH):
            continue
        found = departure_with(sp, row, _LENGTH, _PADDING)
        if found is not None:
            yield Finding(
                message=f"row {row.number} of {row.path}, its padding_idx, is not zero and gets no gradient; with "
                f"{_PADDING} of that id behind them tokens differ from those with zeros there: {found.text}",
                where=replace(row.place, module=row.path, module_class="Embedding"),
                evidence={"row": row.number, "length": _LENGTH, "padding": _PADDING},
                repro=command_for(subject, "FWD253"),
            )
            return


def _takes_more(module: nn.Module) -> bool:
    """Whether its forward takes what may tell padding from tokens."""
    names = list(inspect.signature(module.forward).parameters)[1:]
    return any(re.search(r"mask|len|pad", name) for name in names)


def planted(subject: Subject) -> Subject:
    class Summing(nn.Module):
        """To what the subject gives, the mean of an embedding of the ids is added."""

        def __init__(self, seed: int) -> None:
            super().__init__()
            self.inner = subject.build(seed)
            self.embedding = nn.Embedding(subject.width, 4, padding_idx=0)
            nn.init.normal_(self.embedding.weight)

        def forward(self, ids: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, ids)
            return output + self.embedding(ids).to(output.dtype).mean((1, 2))[:, None, None]

    return replace(subject, build=Summing, forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "FWD206", "NAN101"),
    unless=("stochastic",),
    priority=460,
)
