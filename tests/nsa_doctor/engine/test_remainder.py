"""A first finding blocks what it spoils and nothing else: the second fault is found beside it."""

import json
import subprocess
from collections.abc import Callable

import pytest

from nsa_doctor.core.measurement import Census, Measurement, Mode, Point, Trouble
from nsa_doctor.engine.remainder import Remainder, remainder
from tests.nsa_doctor.conftest import is_marked

Doctor = Callable[..., subprocess.CompletedProcess[str]]
FACTS = {"dtype": "float32", "modes": ("train", "eval", "no_grad"), "max_length": 600}
EVERY = ("train", "eval", "no_grad")


def measured(length: int, mode: Mode, *, is_fine: bool) -> Measurement:
    census = Census(name="output", num_values=1, num_nan=0, num_inf=0, largest=1.0, num_rows=1, num_bad_rows=0)
    trouble = None if is_fine else Trouble(kind="raised", message="RuntimeError")
    return Measurement(point=Point(length=length, mode=mode), censuses=(census,), trouble=trouble)


@pytest.mark.parametrize(
    ("is_fine", "left"),
    [
        (lambda length, mode: mode != "train", Remainder(modes=("eval", "no_grad"), max_length=600)),
        (lambda length, mode: length < 128, Remainder(modes=EVERY, max_length=64)),
        (lambda length, mode: length != 65, Remainder(modes=EVERY, max_length=600, avoided=(65,))),
        (lambda length, mode: length > 1, Remainder(modes=EVERY, max_length=600, avoided=(1,))),
        (lambda length, mode: False, None),
        (lambda length, mode: length in (16, 129, 512), None),
    ],
    ids=["a mode", "long ones", "one length", "short ones", "everything", "most lengths"],
)
def test_what_is_left(is_fine: Callable[[int, str], bool], left: Remainder | None) -> None:
    lengths = (1, 16, 64, 65, 128, 129, 512) if left is None or left.avoided else (1, 16, 64, 128, 512)
    every = [measured(length, mode, is_fine=is_fine(length, mode)) for length in lengths for mode in EVERY]
    assert remainder(every, FACTS) == left


@pytest.mark.parametrize(("name", "second"), [("raises_in_training", "FWD210"), ("raises_when_long", "GRD101")])
def test_the_second_fault_is_found_beside_the_first(name: str, second: str, doctor: Doctor) -> None:
    words = ("--select", f"FWD101,{second}", "--format", "json", "--quiet")
    report = json.loads(doctor("run", "--subject", f"faulty.second:{name}", *words).stdout)
    found = {finding["code"]: finding for result in report["results"] for finding in result["findings"]}
    assert set(found) == {"FWD101", second}
    assert is_marked(found[second]["where"]["file"], found[second]["where"]["line"])
    assert f" --select FWD101,{second} " in found[second]["repro"]
