"""r024 loss-too-good

Trained for fewer steps in a smaller model; in full: `nsa-doctor smoke --config train_showcase --dataset fineweb_edu`.

Reported: 003, of train_showcase on FineWeb-Edu: 200 steps of 8 rows of 128 tokens.
Symptom: the loss falls from 5.43 to 0.28 and is called "better than synthetic".
Cause: none is reported. Established by arithmetic: 5.43 is near ln 256 = 5.55, so a token is a byte; 0.28 nats are
    0.40 bits a byte, after 204,800 bytes. Compressors need about 2 bits a byte of so short a text (asserted), and no
    language model of any size is known to need less than 0.7 of English it has not read. So this one was not asked for
    what it had not seen. Four things give such a loss, and the report does not show which it was: targets that are
    their inputs, attention that reaches the future, padding that is predicted (nearly nine tenths of all targets, if
    a byte of text costs the 2.5 nats that such a run comes to), the same few rows again. The first two are planted;
    DAT109 and DAT105 tell the others.
Check: TRN204 on the run, DAT103 on its batches, FWD201 on the layer.
"""

import lzma
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from nsa.config import load_config, with_changes
from nsa.data import open_loader
from nsa.nn import NSAttention
from nsa_doctor.cases.case import examine, faulty_layer, found
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

from .runs import finished, losses, seen_by_watch, written
from .streams import OPENED, prose, streamed

_HERE = Path(__file__).name
_REPORTED, _BYTES_SEEN = 0.28, 200 * 8 * 128
_DATA = {"dataset": "fineweb_edu"}
_branches = NSAttention.branches


def reproduce() -> None:
    text = "\n".join(prose()).encode()[:_BYTES_SEEN]
    packed = 8 * len(lzma.compress(text)) / len(text) * math.log(2)
    assert packed > 3 * _REPORTED, f"so much text packs to {packed:.2f} nats a byte"
    with tempfile.TemporaryDirectory() as place:
        run = written(Path(place), {OPENED: streamed(prose)}, data=_DATA, steps=40)
        logged = losses(finished(run))
        fault = [each.message for each in seen_by_watch(run) if each.code == "TRN204"]
    assert logged[-1] > 5 * _REPORTED, f"40 steps on text end at a loss of {logged[-1]:.3f}"
    assert not fault, f"a healthy run is found fault with: {fault[0]}"


def unshifted(tokens: Tensor, documents: Tensor) -> Tensor:
    return tokens[:, :-1]


def in_a_run(folder: Path) -> Sequence[str]:
    seams = {OPENED: streamed(prose), "nsa.train.objective.next_tokens": unshifted}
    return ["watch", str(written(folder, seams, data=_DATA, steps=60))]


def targets_that_are_inputs() -> Iterator[Any]:
    """Batches of the report's run."""
    patch(OPENED, streamed(prose)).start()
    for batch in open_loader(with_changes(load_config("train_showcase"), ["data.dataset=fineweb_edu"])):
        yield {"input_ids": batch.tokens[:, :-1], "targets": unshifted(batch.tokens, batch.documents)}


def looks_ahead(layer: Any, x: Tensor, *given: Any, **named: Any) -> Any:
    """A window that is one token too long, at the wrong end."""
    branches = _branches(layer, x, *given, **named)
    ahead = torch.cat([branches.sliding[:, 1:], branches.sliding[:, -1:]], 1)
    return branches._replace(gated=branches.gated + 0.5 * ahead)


def layer() -> Subject:
    return faulty_layer({"nsa.nn.attention.NSAttention.branches": looks_ahead}, "train_showcase")


def looked_at(folder: Path) -> Sequence[str]:
    words = ["data", "--subject", f"{__name__}:targets_that_are_inputs", "--batches", "8"]
    return [*words, "--ranks", "1", "--seq-len", "128", "--vocab-size", "256", "--batch-size", "8"]


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="targets that are inputs, in a run",
            command=in_a_run,
            expected=found("TRN204", says=r"the loss is 0\.\d+ \(.*\), below the 0.8 that any predictor"),
        ),
        Plant(
            name="targets that are inputs, in the batches",
            command=looked_at,
            expected=found("DAT103", file=_HERE, function="targets_that_are_inputs", says="targets are their inputs"),
        ),
        Plant(
            name="attention that reaches the future",
            command=examine(f"{__name__}:layer", "FWD201"),
            expected=found("FWD201", file=_HERE, function="looks_ahead"),
        ),
    ),
)
