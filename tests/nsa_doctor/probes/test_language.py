"""Each property of a language model finds its fault, holds of a healthy model, and is shown by its script."""

import pytest
import torch

from nsa_doctor.adapters.hugging_face.build import build_model
from nsa_doctor.core.conformance import PROPERTY_NAMES
from nsa_doctor.probes.language.properties import PROPERTIES, Bench
from tests.nsa_doctor.adapters.test_hugging_face import installed as installed

FOUND_BY = {
    "positions": "decode",
    "padding": "padding",
    "rows": "batch",
    "future": "causal",
    "packing": "packed",
    "sdpa": "twins",
    "recompute": "grad",
    "argmax": "generate",
}


@pytest.fixture
def bench(request: pytest.FixtureRequest, installed: None) -> Bench:
    return Bench(build_model(request.param))


@pytest.mark.parametrize("bench", ["tiny"], indirect=True)
def test_every_property_holds_of_a_healthy_model(bench: Bench):
    cells = [bench.measured(name) for name in PROPERTIES]
    assert {cell.property_name: cell.status for cell in cells} == dict.fromkeys(PROPERTIES, "holds")
    assert not any(cell.script for cell in cells)


@pytest.mark.parametrize(
    ("bench", "name"), [(f"tiny_{fault}", name) for fault, name in FOUND_BY.items()], indirect=["bench"]
)
def test_a_fault_is_found_and_plain_torch_shows_it(bench: Bench, name: str, capsys: pytest.CaptureFixture[str]):
    cell = bench.measured(name)
    assert cell.status == "differs", cell
    assert (cell.dtype, torch.is_grad_enabled()) == ("float32", True)
    exec(cell.script, {})
    torch.set_grad_enabled(True)
    assert float(capsys.readouterr().out.rpartition(":")[2]) > cell.bound


@pytest.mark.parametrize("bench", ["tiny_positions"], indirect=True)
def test_what_needs_positions_is_named(bench: Bench):
    assert "without position_ids" in bench.measured("chunk").text
    assert bench.measured("generate").status == "holds"


def test_every_property_has_its_name():
    assert tuple(PROPERTIES) == PROPERTY_NAMES
