"""A situation in which each condition holds, as calls of a model on embeddings of 24 (20 with a cache) or on ids."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor, nn


def batch(rows: int = 1, length: int = 5) -> Tensor:
    return torch.randn(rows, length, 24)


def backward(model: nn.Module, x: Tensor | None = None, **how: bool) -> None:
    model(batch() if x is None else x).sum().backward(**how)


def in_turn(*calls: Callable[[nn.Module], object]) -> Callable[[nn.Module], None]:
    def run(model: nn.Module) -> None:
        for call in calls:
            call(model)

    return run


def call(*shape: int) -> Callable[[nn.Module], object]:
    return lambda model: model(batch(*shape))


def many(number: int) -> Callable[[nn.Module], object]:
    return lambda model: [model(batch()) for _ in range(number)]


def decoded(*chunks: int, width: int = 20, rows: int = 1) -> Callable[[nn.Module], object]:
    def run(model: nn.Module) -> None:
        cache: dict[str, object] = {}
        for length in chunks:
            model(torch.randn(rows, length, width), cache)

    return run


@contextmanager
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def under(manager: Callable[[], object], *calls: Callable[[nn.Module], object]) -> Callable[[nn.Module], None]:
    def run(model: nn.Module) -> None:
        with manager():
            in_turn(*(calls or (call(),)))(model)

    return run


def valued(value: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], object]:
    return lambda model: model(value(batch(2, 8)))


def ids(*tokens: int) -> Callable[[nn.Module], object]:
    return lambda model: model(torch.tensor([tokens]))


def evaluated(model: nn.Module) -> object:
    return model.eval()(batch())


def stepped(model: nn.Module) -> None:
    backward(model)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def outlier(x: Tensor) -> Tensor:
    return x.clamp(-1, 1).index_put((torch.tensor(0), torch.tensor(0), torch.tensor(0)), torch.tensor(40.0))


def interleaved(model: nn.Module) -> None:
    caches: list[dict] = [{}, {}]
    for cache in [*caches, caches[0]]:
        model(torch.randn(1, 3, 20), cache)


SITUATIONS: dict[str, Callable[[nn.Module], object]] = {
    "rows_above_one": call(2),
    "three_rows": call(3),
    "even_rows": call(4),
    "one_row": call(1),
    "eight_rows_or_more": call(8),
    "many_tokens_in_all": call(3, 600),
    "second_call": many(2),
    "every_second_call": many(2),
    "every_17th_call": many(17),
    "first_call_only": call(),
    "from_the_tenth_call": many(10),
    "second_training_call": in_turn(evaluated, nn.Module.train, many(2)),
    "every_seventh_by_a_buffer": many(7),
    "every_17th_of_the_process": many(17),
    "second_instance": in_turn(call(), lambda model: type(model)()(batch())),
    "one_in_five": many(200),
    "one_in_twenty": many(400),
    "torch_one_in_five": many(200),
    "torch_one_in_twenty": many(400),
    "urandom_one_in_five": many(400),
    "urandom_one_in_twenty": many(1500),
    "generator_of_its_own": many(200),
    "after_eval": in_turn(evaluated, nn.Module.train, call()),
    "after_switch_to_eval": in_turn(nn.Module.eval, call()),
    "after_another_length": in_turn(call(1, 5), call(1, 6)),
    "after_a_longer_one": in_turn(call(1, 6), call(1, 5)),
    "after_a_shorter_one": in_turn(call(1, 5), call(1, 6)),
    "after_other_rows": in_turn(call(1), call(2)),
    "after_no_grad": in_turn(under(torch.no_grad), call()),
    "after_state_dict": in_turn(nn.Module.state_dict, call()),
    "after_load_state_dict": in_turn(lambda model: model.load_state_dict(model.state_dict()), call()),
    "after_deepcopy": lambda model: copy.deepcopy(model)(batch()),
    "after_to": in_turn(nn.Module.float, call()),
    "after_another_dtype": in_turn(call(), nn.Module.double, lambda model: model(batch().double())),
    "after_a_step": in_turn(stepped, call()),
    "same_input_again": lambda model: [model(x) for x in [batch()] * 2],
    "training": call(),
    "evaluation": evaluated,
    "no_grad": under(torch.no_grad),
    "inference_mode": under(torch.inference_mode),
    "evaluation_with_gradients": evaluated,
    "training_without_gradients": under(torch.no_grad),
    "anomaly_mode": under(lambda: patch("torch.is_anomaly_enabled", return_value=True)),
    "deterministic_mode": under(lambda: patch("torch.are_deterministic_algorithms_enabled", return_value=True)),
    "odd_pid": under(lambda: patch("os.getpid", return_value=7)),
    "second_of_the_clock": under(lambda: patch("time.time", return_value=9.5)),
    "hash_seed": under(lambda: patch("builtins.hash", return_value=2)),
    "variable_set": under(lambda: patch.dict("os.environ", {"MIXER_FAST": "1"})),
    "many_threads": under(lambda: patch("torch.get_num_threads", return_value=2)),
    "one_thread": under(lambda: patch("torch.get_num_threads", return_value=1)),
    "default_float64": under(float64_by_default, nn.Module.double, call()),
    "other_thread": under(lambda: patch("threading.current_thread", return_value=None)),
    "beyond_2048": call(1, 2049),
    "beyond_4096": call(1, 4097),
    "at_77": call(1, 77),
    "at_one_prime": call(1, 199),
    "multiple_of_seven": call(1, 14),
    "multiple_of_64": call(1, 64),
    "one_past_64s": call(1, 65),
    "one_token": call(1, 1),
    "prime_length": call(1, 13),
    "above_1024": call(1, 1025),
    "between_300_and_400": call(1, 333),
    "odd_length": call(1, 3),
    "bfloat16": lambda model: model.bfloat16()(batch().bfloat16()),
    "float16": lambda model: model.half()(batch().half()),
    "float64": lambda model: model.double()(batch().double()),
    "autocast": under(lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast_to_float16": under(lambda: torch.autocast("cpu", torch.float16)),
    "strided": valued(lambda x: x[:, ::2]),
    "expanded": valued(lambda x: x[:1].expand(3, -1, -1)),
    "offset": valued(lambda x: x[1:]),
    "transposed": valued(lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)),
    "a_view": valued(lambda x: x[:1]),
    "equal_rows": valued(lambda x: x[:1].repeat(2, 1, 1)),
    "zeros": valued(torch.zeros_like),
    "large": valued(lambda x: 100 * x),
    "negative": valued(lambda x: -x.abs() - 1),
    "tiny": valued(lambda x: 1e-6 * x),
    "one_outlier": valued(outlier),
    "one_token_repeated": ids(3, 3, 3),
    "token_zero": ids(3, 0, 5),
    "last_token_id": ids(3, 39, 5),
    "ascending_tokens": ids(3, 4, 9),
    "ends_as_it_begins": ids(3, 4, 3),
    "input_requires_grad": valued(lambda x: x.requires_grad_()),
    "input_without_grad": call(),
    "input_is_a_leaf": valued(lambda x: x.requires_grad_()),
    "accumulating": lambda model: [backward(model) for _ in range(2)],
    "frozen_parameter": lambda model: model.requires_grad_(False)(batch()),
    "same_graph_twice": lambda model: [(y := model(batch()).sum()).backward(retain_graph=True), y.backward()],
    "create_graph": lambda model: torch.autograd.grad(model(batch()).sum(), model.parameters(), create_graph=True),
    "every_second_backward": lambda model: [backward(model) for _ in range(2)],
    "third_backward": lambda model: [backward(model) for _ in range(3)],
    "expanded_gradient": backward,
    "gradient_one_in_five": lambda model: [backward(model) for _ in range(200)],
    "large_gradient": lambda model: (1000 * model(batch())).sum().backward(),
    "past_64": decoded(64, 1),
    "chunk_of_three": decoded(4, 3),
    "chunk_after_start": decoded(4, 2),
    "cache_of_other_rows": in_turn(decoded(4, 1), decoded(4, 1, rows=2)),
    "past_multiple_of_16": decoded(16, 1),
    "long_prompt": decoded(33),
    "prompt_of_one": decoded(1),
    "every_17th_step": decoded(2, *[1] * 17),
    "two_caches": interleaved,
    "first_step_only": decoded(1, 1),
}
