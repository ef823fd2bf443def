"""Caches of blocks that are changed by hand: what a crop or a choice of rows leaves behind shows some steps later."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

WIDTH, BLOCK = 8, 16


class Blocks(nn.Module):
    """Adds to each token the sum of the means of all whole blocks before it; a state keeps means and a rest."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def run(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = []
        for token in self.map(x).unbind(1):
            outputs.append(token + state["blocks"].sum(1))
            rest = torch.cat((state["rest"], token[:, None]), 1)
            if rest.shape[1] % BLOCK == 0:
                state = {
                    "blocks": torch.cat((state["blocks"], rest[:, -BLOCK:].mean(1, keepdim=True)), 1),
                    "rest": rest,
                }
            else:
                state = {**state, "rest": rest}
        return torch.stack(outputs, 1), state

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"blocks": x.new_zeros(len(x), 0, WIDTH), "rest": x.new_zeros(len(x), 0, WIDTH)}

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.start(x))[0]


def examined(code: str, forgets: str, most: int = 99) -> Result:
    def crop(module: nn.Module, state: dict[str, Tensor], num_kept: int, num_removed: int) -> Any:
        if num_removed > most:
            raise ValueError(f"no more than {most} tokens can be taken back")
        cut = {"rest": state["rest"][:, :num_kept], "blocks": state["blocks"][:, : num_kept // BLOCK]}
        return {name: state[name] if name == forgets else each for name, each in cut.items()}

    def reorder(module: nn.Module, state: dict[str, Tensor], rows: Tensor) -> Any:
        return {name: each if name == forgets else each[rows] for name, each in state.items()}

    subject = Subject(
        name="blocks",
        build=lambda seed: (torch.manual_seed(seed), Blocks())[1],
        forward=lambda module, x: module(x),
        prefill=lambda module, x: module.run(x, module.start(x)),
        step=lambda module, x, state: module.run(x, state),
        crop=crop,
        reorder=reorder,
        input="embeddings",
        width=WIDTH,
        max_length=128,
        packages=("tests",),
    )
    return run_check(registry.load(code), subject)


@pytest.mark.parametrize("forgets", ["rest", "blocks"])
@pytest.mark.parametrize("code", ["DEC113", "DEC114"])
def test_what_is_forgotten_of_blocks_is_found(code: str, forgets: str) -> None:
    (finding,) = examined(code, forgets).findings
    assert forgets in str(finding.evidence["field"])


@pytest.mark.parametrize("code", ["DEC113", "DEC114"])
def test_what_forgets_nothing_passes(code: str) -> None:
    assert examined(code, "").verdict is Verdict.PASS


def test_a_crop_that_refuses_to_go_far_back_passes() -> None:
    result = examined("DEC114", "", most=4)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
