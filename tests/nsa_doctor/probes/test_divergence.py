"""Where two runs begin to differ is followed back through products that flatten rows with what stands beside them."""

import inspect

import torch
from torch import Tensor, nn

from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

DIM, ROWS, LENGTH, CHUNKS = 8, 5, 12, 3


class MixesChunks(nn.Module):
    """Means of chunks come as [chunks, rows], and are taken for [rows, chunks]."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        chunks = self.down(x).unflatten(1, (CHUNKS, -1)).mean(2)
        mixed = chunks.transpose(0, 1).reshape(ROWS, CHUNKS, DIM)  # here
        before = torch.cat((torch.zeros_like(mixed[:, :1]), mixed[:, :-1]), dim=1)
        weights = torch.softmax(torch.einsum("bcd,bed->bce", before, before), -1)
        return x + torch.einsum("bce,bed->bcd", weights, before).repeat_interleave(LENGTH // CHUNKS, 1)


def test_rows_that_mix_in_a_reshape_are_found_behind_products() -> None:
    subject = Subject(
        name="tests",
        build=lambda seed: MixesChunks(),
        forward=lambda m, x: m(x),
        input="embeddings",
        width=DIM,
        packages=("tests",),
    )
    sp = built(subject)
    x = sp.input(LENGTH, ROWS)
    other = torch.cat((x[:1], sp.input(LENGTH, ROWS - 1, seed=1)))
    found = first_divergence(sp, lambda: sp(x), lambda: sp(other), {ROWS: 1})
    lines, start = inspect.getsourcelines(MixesChunks)
    assert found.place.line == start + next(n for n, line in enumerate(lines) if "# here" in line)
