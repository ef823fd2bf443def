"""NSAForCausalLM computes what the Transformer does, to the last bit, and refuses by name what it cannot."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from nsa import Transformer

transformers = pytest.importorskip("transformers", reason="transformers is not installed: it is the extra hf")
hf = import_module("nsa.hf")
CACHE_NAME = import_module("nsa.hf.cache").CACHE_NAME


VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_embeddings": False},
    "mlp": {"phi": "mlp", "gate": "sigmoid"},
    "conv": {"phi": "conv", "shared_kv": True},
    "alone": {"branch": "sel"},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_are_those_of_the_transformer_to_the_last_bit(
    make_transformer: Callable[..., Transformer], ids: torch.Tensor, changes: dict[str, Any]
) -> None:
    transformer = make_transformer(**changes)
    assert torch.equal(hf.from_transformer(transformer)(ids).logits, transformer(ids))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_gradients_are_those_of_the_transformer_to_the_last_bit(
    make_transformer: Callable[..., Transformer], ids: torch.Tensor, changes: dict[str, Any]
) -> None:
    transformer = make_transformer(**changes)
    model = hf.from_transformer(transformer)
    transformer(ids).sin().sum().backward()
    model(ids).logits.sin().sum().backward()
    expected = {name: parameter.grad for name, parameter in transformer.named_parameters()}
    for name, parameter in model.named_parameters():
        gradient = expected[name.removeprefix("model.transformer.").replace("lm_head", "head")]
        assert (parameter.grad is None) == (gradient is None), name
        assert parameter.grad is None or torch.equal(parameter.grad, gradient), name


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_the_same_seed_draws_the_weights_of_the_transformer(
    make_transformer: Callable[..., Transformer], is_tied: bool
) -> None:
    config = make_transformer(tie_embeddings=is_tied, phi="mlp").config
    torch.manual_seed(3)
    expected = Transformer(config).state_dict()
    torch.manual_seed(3)
    drawn = hf.transformer_tensors(hf.NSAForCausalLM(hf.NSAConfig.from_model_config(config)))
    assert list(drawn) == list(expected)
    assert all(torch.equal(drawn[name], expected[name]) for name in expected)


def test_the_loss_is_the_cross_entropy_of_the_next_token(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model().float()
    labels = ids.clone()
    labels[:, :7] = -100
    answer = model(ids, labels=labels)
    expected = cross_entropy(answer.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    torch.testing.assert_close(answer.loss, expected, rtol=1e-6, atol=0)


def test_the_loss_is_a_sum_over_the_items_of_a_larger_batch(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model().float()
    whole = model(ids, labels=ids).loss
    items = torch.tensor(3 * 39)
    parts = [model(row[None], labels=row[None], num_items_in_batch=items).loss for row in ids]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-6, atol=0)


def test_labels_that_are_shifted_already_give_the_same_loss(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model().float()
    shifted = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    assert torch.equal(model(ids, labels=ids).loss, model(ids, shift_labels=shifted).loss)


def test_embeddings_may_be_given_in_place_of_ids(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    assert torch.equal(model(ids).logits, model(inputs_embeds=model.get_input_embeddings()(ids)).logits)


def test_some_logits_alone_are_those_of_all(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    whole = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=3).logits, whole[:, -3:], rtol=0, atol=1e-13)
    chosen = torch.tensor([4, 11])
    torch.testing.assert_close(model(ids, logits_to_keep=chosen).logits, whole[:, chosen], rtol=0, atol=1e-13)


def test_hidden_states_are_what_goes_through_the_blocks(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    answer = model(ids, output_hidden_states=True)
    first, second, last = answer.hidden_states
    transformer = model.model.transformer
    assert torch.equal(first, transformer.embedding(ids))
    assert torch.equal(second, transformer.blocks[0](first))
    assert torch.equal(model.lm_head(last), answer.logits)
    assert model(ids).hidden_states is None


@pytest.mark.parametrize("is_reentrant", [True, False], ids=["reentrant", "not-reentrant"])
def test_gradient_checkpointing_gives_the_same_gradients_and_keeps_less(
    make_model: Callable[..., Any], ids: torch.Tensor, is_reentrant: bool
) -> None:
    model = make_model().train()
    saved: list[int] = []

    def gradients() -> list[torch.Tensor | None]:
        model.zero_grad()
        count = 0

        def keep(x: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            loss = model(ids, labels=ids).loss
        loss.backward()
        saved.append(count)
        return [parameter.grad for parameter in model.parameters()]

    plain = gradients()
    model.activation_checkpointing_enable({"use_reentrant": is_reentrant})
    model.enable_input_require_grads()
    checkpointed = gradients()
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))  # type: ignore[arg-type]
    assert saved[1] < saved[0] / 3


def test_one_block_in_so_many_is_checkpointed(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model, computed = make_model(n_layers=4).train(), []
    for number, block in enumerate(model.model.transformer.blocks):
        block.mlp.register_forward_pre_hook(lambda module, given, number=number: computed.append(number))
    model.activation_checkpointing_enable(every_n_layers=3)
    model(ids, labels=ids).loss.backward()
    assert sorted(computed) == [0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize("name", ["reference", "vectorized", "fused", "auto", "eager", "sdpa"])
def test_an_implementation_is_chosen_by_name_and_serves(
    make_model: Callable[..., Any], ids: torch.Tensor, name: str
) -> None:
    model = make_model()
    expected = model(ids).logits
    model.set_attn_implementation(name)
    torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-12)
    served = {"eager": "vectorized", "sdpa": "fused"}.get(name, name)
    assert {block.attention.impl for block in model.model.transformer.blocks} == {served}
    hf.register()

    built = transformers.AutoModelForCausalLM.from_config(model.config, attn_implementation=name)
    assert built.config._attn_implementation == name


def test_an_implementation_that_cannot_serve_says_why(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    for name, why in {
        "triton": "the Triton kernel needs a CUDA device",
        "flash_attention_2": "flash-attn needs",
    }.items():
        model.set_attn_implementation(name)
        with pytest.raises(ValueError, match=why):
            model(ids)
    with pytest.raises(ValueError, match=r'"flex_attention"` is not supported: it must be one of reference, .*sdpa'):
        model.set_attn_implementation("flex_attention")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "attentions": ({"output_attentions": True}, "output_attentions must be False"),
    "bidirectional": ({"is_causal": False}, "is_causal must be True"),
    "misspelt": (
        {"num_items_in_bach": 3},
        "the forward pass has no num_items_in_bach: did you mean num_items_in_batch",
    ),
    "mask-4d": ({"attention_mask": torch.ones(3, 1, 40, 40)}, r"attention_mask must have shape \[3, 40\]"),
    "mask-values": ({"attention_mask": torch.full((3, 40), 0.5)}, "attention_mask must hold zeros and ones alone"),
    "mask-short": ({"attention_mask": torch.ones(3, 39)}, r"attention_mask must have shape \[3, 40\]"),
    "positions": ({"position_ids": torch.arange(5, 45)[None]}, "position_ids must count the tokens of each row"),
    "packed-cache": (
        {"position_ids": torch.arange(20).repeat(2)[None], "use_cache": True},
        "packed into a row have no",
    ),
    "cu-seqlens": ({"cu_seq_lens_q": torch.tensor([0, 40])}, "must be given both"),
    "sequence-numbers": ({"seq_idx": torch.zeros(1, 40)}, "seq_idx must come with position_ids or cu_seq_lens_q"),
    "some-hidden-states": ({"output_hidden_states": [1]}, "output_hidden_states must be True, for all, or False"),
    "nothing": ({"input_ids": None}, "give either input_ids or inputs_embeds"),
}


@torch.no_grad()
@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_do_is_refused_by_name(
    make_model: Callable[..., Any], ids: torch.Tensor, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_model()(**({"input_ids": ids} | given))


def test_a_cache_is_refused_while_gradients_are_on(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    assert model(ids).get(CACHE_NAME) is None
    with pytest.raises(ValueError, match=r"cache must be used under torch\.no_grad"):
        model(ids, use_cache=True)
    with torch.no_grad():
        assert model(ids)[CACHE_NAME].get_seq_length() == 40
        assert model(ids, use_cache=False).get(CACHE_NAME) is None


def test_tuples_are_answered_where_asked_for(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    loss, logits = model(ids, labels=ids, return_dict=False)
    assert torch.equal(logits, model(ids).logits)
    assert loss.ndim == 0


def test_the_base_model_is_what_the_head_reads(make_model: Callable[..., Any], ids: torch.Tensor) -> None:
    model = make_model()
    assert isinstance(model.base_model, hf.NSAModel)
    assert torch.equal(model.lm_head(model.base_model(ids).last_hidden_state), model(ids).logits)
