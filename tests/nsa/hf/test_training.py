"""The Trainer of transformers and the adapters of PEFT train the model."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: it is the extra hf")
hf = import_module("nsa.hf")


STEPS = 20


def rows(number: int) -> list[dict[str, list[int]]]:
    """Rows that count upwards from somewhere, of several lengths: easy to learn."""
    lengths = [24 + 8 * (index % 3) for index in range(number)]
    return [
        {"input_ids": [(3 + index + step) % 26 + 3 for step in range(length)]} for index, length in enumerate(lengths)
    ]


def padded(examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Rows of one batch, filled up on the left."""
    longest = max(len(each["input_ids"]) for each in examples)
    filled = [[0] * (longest - len(each["input_ids"])) + each["input_ids"] for each in examples]
    ids = torch.tensor(filled)
    is_predicted = (ids != 0) & (ids.roll(1, 1) != 0)  # the first token of a row is behind nothing
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.masked_fill(~is_predicted, -100)}


def trained(model: Any, folder: Path, **changes: Any) -> tuple[list[float], Any]:
    """The losses of a few steps, and the trainer."""
    pytest.importorskip("accelerate", reason="accelerate is not installed: the Trainer needs it")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=STEPS // 2,
        report_to=[],
        use_cpu=True,
        seed=0,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{"per_device_train_batch_size": 4, **changes},
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows(48), data_collator=padded)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], trainer


@pytest.mark.filterwarnings("ignore")  # of transformers and accelerate, about each other
@pytest.mark.parametrize("changes", [{}, {"gradient_checkpointing": True, "gradient_accumulation_steps": 2}], ids=str)
def test_the_trainer_trains_saves_and_goes_on(
    make_transformer: Callable[..., Any], tmp_path: Path, changes: dict[str, Any]
) -> None:
    model = hf.from_transformer(make_transformer().float())
    losses, trainer = trained(model, tmp_path, **changes)
    assert len(losses) == STEPS
    assert losses[-1] < 0.6 * losses[0]
    saved = hf.NSAForCausalLM.from_pretrained(tmp_path / f"checkpoint-{STEPS}")
    ids = torch.tensor(rows(1)[0]["input_ids"])[None]
    assert torch.equal(saved(ids).logits, trainer.model.eval()(ids).logits)
    evaluated = trainer.evaluate(rows(8))["eval_loss"]
    assert evaluated < losses[0]
    again = hf.from_transformer(make_transformer().float())
    resumed = transformers.Trainer(model=again, args=trainer.args, train_dataset=rows(48), data_collator=padded)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS // 2}"))
    assert torch.equal(again.eval()(ids).logits, trainer.model.eval()(ids).logits)


@pytest.mark.filterwarnings("ignore")
def test_accumulated_steps_have_the_loss_of_the_whole_batch(make_model: Callable[..., Any], tmp_path: Path) -> None:
    model = make_model().float()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    whole, _ = trained(model, tmp_path / "whole")
    model.load_state_dict(state)
    parts, _ = trained(model, tmp_path / "parts", gradient_accumulation_steps=4, per_device_train_batch_size=1)
    torch.testing.assert_close(torch.tensor(parts), torch.tensor(whole), rtol=1e-3, atol=1e-3)


TARGETS: dict[str, dict[str, Any]] = {
    "linear": {"target_modules": "all-linear"},
    "projections": {"target_modules": [], "target_parameters": ["qkv.q", "qkv.v_sel", "qkv.v_win"]},
    "output-and-mlp": {"target_modules": ["out_proj", "gate_up", "down"]},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("targets", TARGETS.values(), ids=TARGETS)
def test_adapters_of_peft_are_trained_saved_and_merged(
    make_transformer: Callable[..., Any], tmp_path: Path, targets: dict[str, Any]
) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    base = hf.from_transformer(make_transformer().float())
    before = {name: value.clone() for name, value in base.state_dict().items()}
    adapted = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=32, **targets))
    losses, _ = trained(adapted, tmp_path / "run")
    assert losses[-1] < losses[0]
    ids = torch.tensor(rows(1)[0]["input_ids"])[None]
    with torch.no_grad():
        expected = adapted.eval()(ids).logits
        continued = adapted.generate(input_ids=ids, max_new_tokens=5, do_sample=False, pad_token_id=0)
        adapted.save_pretrained(tmp_path / "adapter")
        fresh = hf.from_transformer(make_transformer().float())
        fresh.load_state_dict(before)
        loaded = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
        torch.testing.assert_close(loaded(ids).logits, expected)
        merged = loaded.merge_and_unload()
        torch.testing.assert_close(merged(ids).logits, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(merged.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0), continued)
