"""r023 verdict-on-another-model

Reported: 003, which ran train_showcase.yaml, and recommends 50,000 to 200,000 steps of larger-scale training.
Symptom: the small model's run is certified, and the conclusion is about the 125M model ("<1GB GPU memory for 125M
    model", "proceed with confidence").
Cause: evidence and subject differ, as the report's own header shows: dim 128 and 8 heads at 128 tokens, and not dim
    768, 12 heads and 12 layers at 1,024. Established: the claim is wrong by arithmetic alone. The weights of
    m7c_125m_fast_log in float32 with gradient and two moments of Adam are more than 1 GB before the first activation
    (asserted on the model itself). A verdict is bound to the configuration that was examined.
Check: go-no-go, which ends UNKNOWN and names both configurations.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from nsa.config import load_config
from nsa.nn import Transformer
from nsa_doctor.artifacts.training_run.matching import mismatches
from nsa_doctor.artifacts.training_run.reading import read_run
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.core.finding import Decision, Report

from .runs import of_config

_GIGABYTE = 10**9
_COPIES = 4  # the weight, its gradient and two moments
_FLOAT_BYTES = 4
_DIFFERENCES = ("of another configuration (train_showcase) than nsa (m7c_125m_fast_log)", "dim 128 and not 768")
_GATE = """\
profile: smoke
require:
  - codes: [TRN]
    because: report 003 counts a run without stalls, with a loss that falls, as enough
    where_offered: true
limits:
  - measure: steps
    at_least: 3
    because: the run has to have been made
"""


def reproduce() -> None:
    model = load_config("m7c_125m_fast_log").model
    with torch.device("meta"):
        numbers = sum(each.numel() for each in Transformer(model).parameters())
    assert numbers * _FLOAT_BYTES * _COPIES > _GIGABYTE, f"{numbers:,} parameters fit a gigabyte with their moments"
    with tempfile.TemporaryDirectory() as place:
        run = read_run(of_config(Path(place), "train_showcase", steps=3))
    for name, is_same in (("train_showcase", True), ("m7c_125m_fast_log", False)):
        sentences = list(mismatches(run, _subject(name)))
        assert bool(sentences) is not is_same, (
            f"as evidence about {name}, the run of train_showcase gets the sentences {sentences}"
        )


def _subject(name: str) -> dict[str, object]:
    """What a report says of a configuration that was examined."""
    from nsa_doctor.core.identity import digest

    model = load_config(name).model.model_dump(mode="json")
    return {"name": name, "identity": {"configuration": model, "configuration_hash": digest(model)}}


def small_run_for_a_large_model(folder: Path) -> Sequence[str]:
    gate = folder / "gate.yaml"
    gate.write_text(_GATE, encoding="utf-8")
    run = of_config(folder, "train_showcase", steps=3)
    return ["go-no-go", "--config", "m7c_125m_fast_log", "--run", str(run), "--gate", str(gate)]


def unknown(report: Report) -> str:
    """What is wrong with the verdict; it must not be that something else was missing."""
    why = report.verdict.why if report.verdict is not None else ()
    if report.decision is not Decision.UNKNOWN or len(why) != 1:
        return f"the decision is {report.decision.value}, and had to be UNKNOWN for one reason: {why}"
    missing = [difference for difference in _DIFFERENCES if difference not in why[0]]
    return f"it does not say {missing}: {why[0]}" if missing else ""


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(Plant(name="the run of report 003", command=small_run_for_a_large_model, expected=unknown),),
)
