"""What is looked at between steps: needles by depth, gates, and the picture of it all."""

import json
import math

import pytest
import torch

from nsa import Transformer, load_config
from nsa.config import with_changes
from nsa.data import open_loader
from nsa.train import train
from nsa.train.gates import look_at_gates
from nsa.train.objective import Objective
from nsa.train.plot import draw
from nsa.train.retrieval import answers_by_depth
from nsa.train.table import read_table
from nsa.train.world import World


@pytest.fixture
def needles(config):
    """Held-out rows that ask about needles, and a model for them."""
    changes = ["data.dataset=needle", "model.vocab_size=256", "train.seq_len=256", "train.batch_size=4"]
    asked = with_changes(config(model={"vocab_size": 256}), changes)
    with open_loader(asked, split="heldout") as loader:
        batches = [next(loader) for _ in range(2)]
    return asked, batches


class Omniscient(Transformer):
    """Knows the next token of every row it is shown, up to a depth."""

    def __init__(self, config, batches, *, is_right):
        super().__init__(config)
        self.batches, self.is_right = batches, is_right

    def hidden_states(self, ids, cache=None, cu_seqlens=None):
        batch = next(each for each in self.batches if torch.equal(each.tokens[:, :-1], ids))
        targets = batch.tokens[:, 1:].clone()
        for row, columns in enumerate(batch.answers.columns):
            for question, column in enumerate(columns.tolist()):
                if not self.is_right(float(batch.answers.depths[row, question])):
                    targets[row, column] = 0
        return torch.nn.functional.one_hot(targets, 256).float()

    def logits(self, hidden):
        return hidden


@pytest.mark.parametrize("limit", [0.0, 0.5, 1.0])
def test_needles_are_counted_at_the_depth_they_lie_at(limit, needles):
    config, batches = needles
    model = Omniscient(config.model, batches, is_right=lambda depth: depth < limit)
    records = answers_by_depth(model, batches, World(), 7)
    assert sum(record.asked for record in records) == sum(int((each.answers.columns >= 0).sum()) for each in batches)
    assert all(record.right == (record.asked if record.depth < limit else 0) for record in records)
    assert [record.depth for record in records] == [index / 8 for index in range(6)]  # none lies near its question


def test_rows_that_ask_nothing_have_no_needles(config):
    with open_loader(with_changes(config(), ["model.vocab_size=256"])) as loader:
        assert answers_by_depth(Transformer(config().model), [next(loader)], World(), 0) == []


def test_a_run_on_needles_tells_how_many_were_found(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("nsa.train.results.draw", lambda *_: None)
    changes = ["data.dataset=needle", "model.vocab_size=256", "train.seq_len=256", "train.steps=2"]
    folder = train(with_changes(config(model={"vocab_size": 256}), changes)).folder
    rows = read_table(folder / "retrieval.csv")
    assert {row["step"] for row in rows} == {"0", "2"}
    assert "needles found by depth (0 is the start): " in capsys.readouterr().out
    assert len(json.loads((folder / "metrics.json").read_text())["needles_found_by_depth"]) == len(rows) / 2


def test_looking_at_gates_changes_nothing(config):
    model = Transformer(config(model={"n_layers": 3}).model)
    before = torch.get_rng_state()
    records = look_at_gates(Objective(model), torch.arange(17)[None], 4)
    assert torch.equal(torch.get_rng_state(), before)
    assert [(record.step, record.layer) for record in records] == [(4, 0), (4, 1), (4, 2)]
    assert all(record.compressed + record.selected + record.sliding == pytest.approx(1) for record in records)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_the_norm_of_a_gate_shows_the_least_change_of_its_parameters(config):
    model = Transformer(config(model={"n_layers": 2}).model)
    before = [record.norm for record in look_at_gates(Objective(model), torch.arange(17)[None], 0)]
    weight = model.blocks[1].attention.gate.fc2.weight
    with torch.no_grad():
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(1.0))
        model.blocks[0].attention.out_proj.weight.mul_(2)
    after = [record.norm for record in look_at_gates(Objective(model), torch.arange(17)[None], 1)]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]


# The picture.


@pytest.mark.parametrize("entropy", [None, 0.7], ids=["unknown", "known"])
def test_a_run_is_drawn(entropy, finished, tmp_path):
    for name in ("training.csv", "gates.csv", "evaluations.csv"):
        (tmp_path / name).write_text((finished / name).read_text())
    content = draw(tmp_path, 32, entropy, 1 / 3).read_bytes()
    assert content.startswith(b"\x89PNG")


def test_losses_that_are_not_finite_are_drawn_around(tmp_path):
    (tmp_path / "training.csv").write_text("step,loss\n1,3.0\n2,nan\n3,inf\n4,\n5,2.0\n")
    assert draw(tmp_path, 32, None, 1 / 3) is not None


def test_nothing_is_drawn_of_nothing(tmp_path):
    assert draw(tmp_path, 32, None, 1 / 3) is None


def test_the_showcase_starts_where_it_should():
    config = load_config("train_showcase")
    torch.manual_seed(config.train.seed)
    with open_loader(config) as loader:
        batch = next(loader)
    loss = Objective(Transformer(config.model))(batch.tokens, batch.documents).item() / (8 * 128)
    assert loss == pytest.approx(math.log(256), abs=0.15)
