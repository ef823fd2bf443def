"""What docs/hugging_face.md shows works as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from nsa import ModelConfig, Transformer
from nsa.train.checkpoint import Snapshot, write_checkpoint

pytest.importorskip("transformers", reason="transformers is not installed: it is the extra hf")

PAGE = (Path(__file__).parents[3] / "docs" / "hugging_face.md").read_text(encoding="utf-8")
FIRST, SECOND = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_first_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(FIRST, names)
    assert list(names["tokens"].shape) == [2, 120]
    assert torch.isfinite(names["loss"])


def test_the_second_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = ModelConfig(dim=16, n_heads=2, n_kv_groups=1, d_k=4, d_v=4)
    snapshot = Snapshot(
        step=200, model=Transformer(config).state_dict(), state={"config": {"model": config.model_dump(mode="json")}}
    )
    write_checkpoint(tmp_path / "artifacts" / "checkpoints", snapshot, 1)
    (tmp_path / "ours").mkdir()
    exec(SECOND, {})
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {"model.safetensors", "model.pt"}
    assert (tmp_path / "theirs" / "config.json").is_file()
