"""A configuration with values changed on a command line."""

import pytest

from nsa.config import load_config, parse_config, with_changes
from nsa.strict import ConfigError

MODEL = {"dim": 64, "n_heads": 4, "n_kv_groups": 2, "d_k": 16, "d_v": 8}


def test_a_change_is_read_as_in_a_file() -> None:
    base = load_config("train_showcase")
    changed = with_changes(base, ["train.lr=2e-3", "model.dim=64", "nsa.w=32", "train.out_dir=a b", "train.steps=7"])
    assert (changed.train.lr, changed.train.steps, changed.train.out_dir) == (2e-3, 7, "a b")
    assert (changed.model.dim, changed.model.w, changed.model.n_sel) == (64, 32, base.model.n_sel)
    assert with_changes(base, []) == base


def test_a_change_leaves_what_follows_from_others_alone() -> None:
    base = parse_config({"model": MODEL | {"vocab_size": 100}})
    assert with_changes(base, ["train.steps=3"]).model.vocab_size == 100


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("lr=3", "a change must read section.key=value, got 'lr=3' (str)"),
        ("train.lr", "a change must read section.key=value, got 'train.lr' (str)"),
        ("train.lr=", "train.lr must be a valid number, got nothing"),
        ("train.lr=[", "train.lr: line 1, column 2: while parsing a flow node, expected the node content, but found "),
        ("train.rate=3", "unknown key train.rate (value 3 (int)): "),
        ("trian.lr=3", "unknown section trian (value {'lr': 3} (dict)): did you mean train"),
        ("nsa.dim=3", "unknown key nsa.dim (value 3 (int)): "),
        ("\x1b.\n=\x00", r"'\x1b.\n': must be printable text"),
    ],
    ids=["no-section", "no-value", "empty", "no-yaml", "key", "section", "wrong-section", "hostile"],
)
def test_a_bad_change_is_refused_in_one_sentence(change: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_changes(load_config("train_showcase"), [change])
    assert str(caught.value).startswith(sentence)
    assert str(caught.value).isprintable()
