from collections.abc import Callable

import pytest
import torch

from nsa import Transformer, generate

MakeModel = Callable[..., Transformer]


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 29, (2, 30))


@pytest.mark.parametrize("is_batched", ["1", "0"], ids=["batched-prefill", "sequential-prefill"])
def test_greedy_takes_the_likeliest_token_of_a_full_forward(
    make_model: MakeModel, ids: torch.Tensor, is_batched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSA_PREFILL_BATCHED", is_batched)
    model, expected = make_model(phi="conv"), ids
    for _ in range(12):
        likeliest = model(expected)[:, -1:].argmax(-1)
        expected = torch.cat((expected, likeliest), dim=1)
    got = generate(model, ids, 12)
    assert torch.equal(got, expected)
    assert got[:, 30:].unique().numel() > 3  # not stuck on one token


def test_a_seed_reproduces_what_was_drawn(make_model: MakeModel, ids: torch.Tensor) -> None:
    model = make_model()
    drawn = [
        generate(model, ids, 8, temperature=1.5, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[2][:, :30], ids)


def test_drawing_from_the_single_likeliest_is_greedy(make_model: MakeModel, ids: torch.Tensor) -> None:
    model = make_model()
    assert torch.equal(generate(model, ids, 8, temperature=3.0, top_k=1), generate(model, ids, 8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("temperature", [1e-30, 1e-40, 5e-324], ids=str)
def test_the_lowest_temperatures_are_greedy(
    make_model: MakeModel, ids: torch.Tensor, dtype: torch.dtype, temperature: float
) -> None:
    model = make_model().to(dtype)
    logits = model(ids)[:, -1]
    assert ((logits == logits.amax(-1, keepdim=True)).sum(-1) == 1).all()  # no tie to be drawn from
    assert torch.equal(generate(model, ids, 1, temperature=temperature), generate(model, ids, 1))


def test_draws_follow_the_softmax_of_the_logits(make_model: MakeModel) -> None:
    model = make_model()
    prompt = torch.tensor([[3, 1, 4]])
    drawn = generate(model, prompt.expand(5_000, -1), 1, temperature=0.8, top_k=5)[:, -1]
    best, index = model(prompt)[0, -1].topk(5)
    expected = (best / 0.8).softmax(0)
    seen = torch.bincount(drawn, minlength=29).double() / drawn.numel()
    assert seen.count_nonzero() <= 5
    deviation = (expected * (1 - expected) / drawn.numel()).sqrt()
    assert ((seen[index] - expected).abs() <= 5 * deviation).all()


def test_generate_leaves_model_and_gradients_alone(make_model: MakeModel, ids: torch.Tensor) -> None:
    model = make_model().train()
    out = generate(model, ids, 3)
    assert model.training
    assert not out.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(generate(model, ids, 0), ids)
    assert generate(model, ids.int(), 2).dtype == torch.int32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tokens": -1}, "num_tokens must be at least 0, got -1"),
        ({"temperature": -0.5}, "temperature must be finite and at least 0, got -0.5"),
        ({"temperature": float("nan")}, "temperature must be finite and at least 0, got nan"),
        ({"top_k": 5}, "top_k has no effect at temperature 0"),
        ({"temperature": 1.0, "top_k": 30}, "top_k must be between 1 and the vocabulary's 29, got 30"),
        ({"ids": torch.zeros(1, 0, dtype=torch.int64)}, "ids must hold at least one row of one token"),
    ],
    ids=["num-tokens", "negative", "nan", "top-k-when-greedy", "top-k", "no-prompt"],
)
def test_nonsense_is_refused(
    make_model: MakeModel, ids: torch.Tensor, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        generate(**{"model": make_model(), "ids": ids, "num_tokens": 1, **options})  # type: ignore[arg-type]
