"""Rows that processes share, over gloo: outputs, gradients and chosen blocks of one process, and refusals."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nsa.nn.context import why_not_shared
from nsa.ops.geometry import Geometry
from nsa_doctor.probes.model.state import can_be_forked
from tests.nsa.nn.shared_rows import SCENARIOS, found_by_processes

ROOT = Path(__file__).parents[3]
NUM_TERMS = 64  # of rounding that may add up, each as large as the peak
EXCLUDED = "ValueError: context excludes cache and cu_seqlens: it shares rows of one whole sequence"
PART = (
    "ValueError: x must be a part of a sequence that context can share: 3 processes share sequences of a multiple of 12"
)
STRIDES = "tokens (2 chunks each, of whole strides of 2)"
REFUSALS = {
    "cache": EXCLUDED,
    "one-token-and-cache": EXCLUDED,
    "cu-seqlens": EXCLUDED,
    "cu-seqlens-of-a-model": EXCLUDED,
    "no-whole-strides": f"{PART} {STRIDES}, 12 at least, got 57",
    "too-short": f"{PART} {STRIDES}, 36 at least, got 12",
    "own-of-odd": "ValueError: x must have a multiple of 6 tokens for 3 processes, got 19",
    "second-derivative": "RuntimeError: second derivatives are not computed across processes",
}
# As `python -m` does; calls of nsa are checked there as in the other tests.
CHECKED = """
import runpy, sys
from jaxtyping import install_import_hook
install_import_hook("nsa", "beartype.beartype")
runpy.run_module("tests.nsa.nn.shared_rows", run_name="__main__", alter_sys=True)
"""

pytestmark = pytest.mark.timeout(240)  # a process that imports torch, beside other workers' tests


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `shared_rows` found in each scenario: forks of this process share rows, which need not import torch."""
    folder = tmp_path_factory.mktemp("processes")
    if can_be_forked():
        made: dict[str, Any] = json.loads(found_by_processes(folder))
        return made
    command = [sys.executable, "-c", CHECKED, str(folder)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_outputs_and_gradients_are_those_of_one_process(name: str, shared: dict[str, Any]) -> None:
    eps, errors = shared[name]["eps"], shared[name]["errors"]
    assert errors.keys() > {"output"}
    wrong = {tensor: error for tensor, error in errors.items() if error is not None and not error <= NUM_TERMS * eps}
    assert not wrong


def test_a_gradient_is_missing_for_gates_that_nothing_reads_alone(shared: dict[str, Any]) -> None:
    missing = {name: {key for key, error in shared[name]["errors"].items() if error is None} for name in SCENARIOS}
    gates = {f"blocks.0.attention.gate.{layer}.{kind}" for layer in ("fc1", "fc2") for kind in ("weight", "bias")}
    assert {name: keys for name, keys in missing.items() if keys} == {"compressed-alone": gates, "sliding-alone": gates}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_blocks_chosen_are_those_of_one_process(name: str, shared: dict[str, Any]) -> None:
    assert shared[name]["alike"]
    assert all(shared[name]["alike"])


@pytest.mark.parametrize("name", REFUSALS)
def test_every_process_refuses_what_cannot_be_shared(name: str, shared: dict[str, Any]) -> None:
    assert [refusals[name] for refusals in shared["refusals"]] == [REFUSALS[name]] * 3


def test_a_process_outside_the_group_is_refused(shared: dict[str, Any]) -> None:
    refused = "ValueError: group must hold this process to share sequences with it"
    assert [refusals["not-of-the-group"] for refusals in shared["refusals"]] == [None, None, refused]


@pytest.mark.parametrize(
    ("num_tokens", "num_processes", "says"),
    [
        (4096, 2, None),
        (64, 2, None),
        (64, 1, None),
        (0, 2, "64 at least, got 0"),
        (4096, 3, "a multiple of 96 tokens"),
        (4097, 2, "a multiple of 64 tokens"),
    ],
)
def test_why_not_names_the_lengths_that_are_shared(num_tokens: int, num_processes: int, says: str | None) -> None:
    said = why_not_shared(num_tokens, num_processes, Geometry())
    assert said is None if says is None else says in str(said)
