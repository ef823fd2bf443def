"""When a fault shows: over x and y, the input and output of the module at fault (grad and times in the backward)."""

from functools import partial

from tests.false_go.fault import Condition

NO_GRADIENT = frozenset({"gradient"})
ONE_ROW = frozenset({"rows"})
ONE_TOKEN = frozenset({"order"})
ROUNDED = frozenset({"small"})
CONSTANT = frozenset({"rows", "order", "scale", "small", "gradient", "input"})  # only what is loud shows
COUNTED = {"members": "calls = 0\n", "start": "self.calls += 1\n"}
OUTER = partial(Condition, site="model")


def after(what: str) -> dict[str, str]:
    """Members that set `was_seen` when a method of the module is called."""
    signature, call = what.split(" -> ")
    return {
        "members": f"was_seen = False\n\ndef {signature}:\n    self.was_seen = True\n    return super().{call}\n",
        "test": "self.was_seen",
    }


BATCH = (
    Condition(name="rows_above_one", group="batch", test="x.shape[0] > 1"),
    Condition(name="three_rows", group="batch", test="x.shape[0] == 3"),
    Condition(name="even_rows", group="batch", test="x.shape[0] % 2 == 0"),
    Condition(name="one_row", group="batch", test="x.shape[0] == 1", excludes=ONE_ROW),
    Condition(name="eight_rows_or_more", group="batch", test="x.shape[0] >= 8"),
    Condition(name="many_tokens_in_all", group="batch", test="x.shape[0] * x.shape[1] > 1500", length=700),
)
CALLS = (
    Condition(name="second_call", group="calls", test="self.calls == 2", **COUNTED),
    Condition(name="every_second_call", group="calls", test="self.calls % 2 == 0", **COUNTED),
    Condition(name="every_17th_call", group="calls", test="self.calls % 17 == 0", **COUNTED),
    Condition(name="first_call_only", group="calls", test="self.calls == 1", **COUNTED),
    Condition(name="from_the_tenth_call", group="calls", test="self.calls >= 10", **COUNTED),
    Condition(
        name="second_training_call",
        group="calls",
        test="self.calls == 2",
        members="calls = 0\n",
        start="self.calls += self.training\n",
    ),
    Condition(
        name="every_seventh_by_a_buffer",
        group="calls",
        start='if not hasattr(self, "times"):\n'
        '    self.register_buffer("times", torch.zeros((), dtype=torch.int64), persistent=False)\n'
        "self.times += self.training\n",
        test="self.training and int(self.times) % 7 == 0",
    ),
    Condition(
        name="every_17th_of_the_process",
        group="calls",
        top="import itertools\n\nCALLS = itertools.count(1)",
        before="call = next(CALLS)\n",
        test="call % 17 == 0",
    ),
    Condition(
        name="second_instance",
        group="calls",
        top="INSTANCES = []",
        start="if not any(each is self for each in INSTANCES):\n    INSTANCES.append(self)\n",
        test="len(INSTANCES) > 1 and INSTANCES[1] is self",
    ),
)
CHANCE = (
    Condition(name="one_in_five", group="chance", top="import random", test="random.random() < 0.2"),
    Condition(name="one_in_twenty", group="chance", top="import random", test="random.random() < 0.05"),
    Condition(name="torch_one_in_five", group="chance", test="torch.rand(()) < 0.2"),
    Condition(name="torch_one_in_twenty", group="chance", test="torch.rand(()) < 0.05"),
    Condition(name="urandom_one_in_five", group="chance", top="import os", test="os.urandom(1)[0] < 51"),
    Condition(name="urandom_one_in_twenty", group="chance", top="import os", test="os.urandom(1)[0] < 13"),
    Condition(
        name="generator_of_its_own",
        group="chance",
        top="DRAWS = torch.Generator()",
        test="torch.rand((), generator=DRAWS) < 0.2",
    ),
)
STATE = (
    Condition(
        name="after_eval",
        group="state",
        members="was_eval = False\n",
        start="self.was_eval = self.was_eval or not self.training\n",
        test="self.was_eval and self.training",
    ),
    Condition(
        name="after_switch_to_eval",
        group="state",
        test="self.was_seen",
        members="was_seen = False\n\ndef train(self, mode=True):\n    self.was_seen = self.was_seen or not mode\n"
        "    return super().train(mode)\n",
    ),
    Condition(
        name="after_another_length",
        group="state",
        members="last = None\n",
        test="self.last not in (None, x.shape[1])",
        end="self.last = x.shape[1]\n",
    ),
    Condition(
        name="after_a_longer_one",
        group="state",
        members="longest = 0\n",
        start="self.longest = max(self.longest, x.shape[1])\n",
        test="x.shape[1] < self.longest",
    ),
    Condition(
        name="after_a_shorter_one",
        group="state",
        members="shortest = 1 << 30\n",
        start="self.shortest = min(self.shortest, x.shape[1])\n",
        test="x.shape[1] > self.shortest",
    ),
    Condition(
        name="after_other_rows",
        group="state",
        members="rows = None\n",
        test="self.rows not in (None, x.shape[0])",
        end="self.rows = x.shape[0]\n",
    ),
    Condition(
        name="after_no_grad",
        group="state",
        members="had_no_grad = False\n",
        test="self.had_no_grad",
        end="self.had_no_grad = self.had_no_grad or not torch.is_grad_enabled()\n",
    ),
    Condition(
        name="after_state_dict",
        group="state",
        **after("state_dict(self, *args, **kwargs) -> state_dict(*args, **kwargs)"),
    ),
    Condition(
        name="after_load_state_dict",
        group="state",
        **after("_load_from_state_dict(self, *args) -> _load_from_state_dict(*args)"),
    ),
    Condition(name="after_deepcopy", group="state", **after("__setstate__(self, state) -> __setstate__(state)")),
    Condition(name="after_to", group="state", **after("_apply(self, *args, **kwargs) -> _apply(*args, **kwargs)")),
    Condition(
        name="after_another_dtype",
        group="state",
        members="dtypes = frozenset()\n",
        before="self.dtypes = self.dtypes | {y.dtype}\n",
        test="len(self.dtypes) > 1",
    ),
    Condition(
        name="after_a_step",
        group="state",
        members="version = None\n",
        start="version = next(self.parameters())._version\n",
        test="self.version not in (None, version)",
        end="self.version = version\n",
    ),
    OUTER(
        name="same_input_again",
        group="state",
        members="last = None\n",
        test="self.last == x.data_ptr()",
        end="self.last = x.data_ptr()\n",
    ),
)
MODE = (
    Condition(name="training", group="mode", test="self.training"),
    Condition(name="evaluation", group="mode", test="not self.training"),
    Condition(name="no_grad", group="mode", test="not torch.is_grad_enabled()", excludes=NO_GRADIENT),
    Condition(name="inference_mode", group="mode", test="torch.is_inference_mode_enabled()", excludes=NO_GRADIENT),
    Condition(name="evaluation_with_gradients", group="mode", test="not self.training and torch.is_grad_enabled()"),
    Condition(
        name="training_without_gradients",
        group="mode",
        test="self.training and not torch.is_grad_enabled()",
        excludes=NO_GRADIENT,
    ),
    Condition(name="anomaly_mode", group="mode", test="torch.is_anomaly_enabled()"),
    Condition(name="deterministic_mode", group="mode", test="torch.are_deterministic_algorithms_enabled()"),
)
PROCESS = (
    Condition(name="odd_pid", group="process", top="import os", test="os.getpid() % 2 == 1"),
    Condition(name="second_of_the_clock", group="process", top="import time", test="int(time.time()) % 3 == 0"),
    Condition(name="hash_seed", group="process", test='hash("mixer") % 2 == 0'),
    Condition(name="variable_set", group="process", top="import os", test='"MIXER_FAST" in os.environ'),
    Condition(name="many_threads", group="process", test="torch.get_num_threads() > 1"),
    Condition(name="one_thread", group="process", test="torch.get_num_threads() == 1"),
    Condition(name="default_float64", group="process", test="torch.get_default_dtype() == torch.float64"),
    Condition(
        name="other_thread",
        group="process",
        top="import threading",
        test="threading.current_thread() is not threading.main_thread()",
    ),
)
LENGTH = (
    Condition(name="beyond_2048", group="length", test="x.shape[1] > 2048", length=2048),
    Condition(name="beyond_4096", group="length", test="x.shape[1] > 4096", length=2048),
    Condition(name="at_77", group="length", test="x.shape[1] == 77", length=100),
    Condition(name="at_one_prime", group="length", test="x.shape[1] == 199", length=400),
    Condition(name="multiple_of_seven", group="length", test="x.shape[1] % 7 == 0"),
    Condition(name="multiple_of_64", group="length", test="x.shape[1] % 64 == 0", length=64),
    Condition(name="one_past_64s", group="length", test="x.shape[1] > 1 and x.shape[1] % 64 == 1", length=128),
    Condition(name="one_token", group="length", test="x.shape[1] == 1", excludes=ONE_TOKEN),
    Condition(
        name="prime_length",
        group="length",
        length=40,
        test="x.shape[1] > 5 and all(x.shape[1] % d for d in range(2, int(x.shape[1] ** 0.5) + 1))",
    ),
    Condition(name="above_1024", group="length", test="x.shape[1] > 1024", length=2048),
    Condition(name="between_300_and_400", group="length", test="300 < x.shape[1] < 400", length=512),
    Condition(name="odd_length", group="length", test="x.shape[1] % 2 == 1", excludes=ONE_TOKEN),
)
DTYPE = (
    Condition(name="bfloat16", group="dtype", test="y.dtype == torch.bfloat16", excludes=ROUNDED),
    Condition(name="float16", group="dtype", test="y.dtype == torch.float16", excludes=ROUNDED),
    Condition(name="float64", group="dtype", test="y.dtype == torch.float64"),
    Condition(name="autocast", group="dtype", test='torch.is_autocast_enabled("cpu")', excludes=ROUNDED),
    Condition(
        name="autocast_to_float16",
        group="dtype",
        test='torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.float16',
        excludes=ROUNDED,
    ),
    Condition(name="second_device", group="dtype", test="x.device.index == 1"),
)
LAYOUT = (
    OUTER(name="strided", group="layout", test="not x.is_contiguous()"),
    OUTER(name="expanded", group="layout", test="0 in x.stride()", excludes=ONE_ROW),
    OUTER(name="offset", group="layout", test="x.storage_offset() > 0"),
    OUTER(name="transposed", group="layout", test="x.stride(0) < x.stride(1)"),
    OUTER(name="a_view", group="layout", test="x._is_view()"),
)
VALUES = (
    OUTER(name="equal_rows", group="values", test="x.shape[0] > 1 and bool((x == x[:1]).all())", excludes=ONE_ROW),
    OUTER(name="zeros", group="values", test="not x.any()", excludes=CONSTANT),
    OUTER(name="large", group="values", input="embeddings", test="x.abs().max() > 50"),
    OUTER(name="negative", group="values", input="embeddings", test="bool((x < 0).all())"),
    OUTER(name="tiny", group="values", input="embeddings", test="x.abs().max() < 1e-4", excludes=CONSTANT),
    OUTER(name="one_outlier", group="values", input="embeddings", test="x.abs().max() > 20 * x.abs().mean()"),
    OUTER(
        name="one_token_repeated",
        group="values",
        input="tokens",
        test="x.shape[1] > 1 and bool((x == x[:, :1]).all())",
        excludes=CONSTANT,
    ),
    OUTER(name="token_zero", group="values", input="tokens", test="bool((x == 0).any())"),
    OUTER(name="last_token_id", group="values", input="tokens", test="bool((x == VOCAB - 1).any())"),
    OUTER(
        name="ascending_tokens",
        group="values",
        input="tokens",
        test="x.shape[1] > 2 and bool((x.diff(dim=1) > 0).all())",
    ),
    OUTER(
        name="ends_as_it_begins",
        group="values",
        input="tokens",
        test="x.shape[1] > 1 and bool((x[:, 0] == x[:, -1]).all())",
    ),
)
GRADIENT = (
    OUTER(name="input_requires_grad", group="gradient", input="embeddings", test="x.requires_grad"),
    OUTER(
        name="input_without_grad",
        group="gradient",
        input="embeddings",
        test="torch.is_grad_enabled() and not x.requires_grad",
    ),
    OUTER(name="input_is_a_leaf", group="gradient", input="embeddings", test="x.is_leaf and x.requires_grad"),
    Condition(
        name="accumulating", group="gradient", test="any(parameter.grad is not None for parameter in self.parameters())"
    ),
    Condition(
        name="frozen_parameter",
        group="gradient",
        test="not all(parameter.requires_grad for parameter in self.parameters())",
    ),
    Condition(name="same_graph_twice", group="gradient", phase="backward", test="ctx.times > 1"),
    Condition(name="create_graph", group="gradient", phase="backward", test="torch.is_grad_enabled()"),
    Condition(
        name="every_second_backward",
        group="gradient",
        phase="backward",
        members="backwards = 0\n",
        before="self.backwards += 1\n",
        test="self.backwards % 2 == 0",
    ),
    Condition(
        name="third_backward",
        group="gradient",
        phase="backward",
        members="backwards = 0\n",
        before="self.backwards += 1\n",
        test="self.backwards == 3",
    ),
    Condition(name="expanded_gradient", group="gradient", phase="backward", test="0 in grad.stride()"),
    Condition(
        name="gradient_one_in_five",
        group="gradient",
        phase="backward",
        top="import random",
        test="random.random() < 0.2",
    ),
    Condition(name="large_gradient", group="gradient", phase="backward", test="grad.abs().max() > 100"),
)
STEP = partial(Condition, site="step", group="decode", excludes=NO_GRADIENT)
DECODE = (
    STEP(name="past_64", test="past >= 64"),
    STEP(name="chunk_of_three", test="past > 0 and x.shape[1] == 3"),
    STEP(name="chunk_after_start", test="past > 0 and x.shape[1] > 1"),
    STEP(
        name="cache_of_other_rows",
        members="rows = None\n",
        end="self.rows = self.rows or x.shape[0]\n",
        test="past > 0 and self.rows not in (None, x.shape[0])",
    ),
    STEP(name="past_multiple_of_16", test="past > 0 and past % 16 == 0"),
    STEP(name="long_prompt", test="cache is not None and past == 0 and x.shape[1] > 32"),
    STEP(
        name="prompt_of_one",
        test="cache is not None and past == 0 and x.shape[1] == 1",
        excludes=NO_GRADIENT | ONE_TOKEN,
    ),
    STEP(
        name="every_17th_step",
        members="steps = 0\n",
        before="self.steps += past > 0\n",
        test="past > 0 and self.steps % 17 == 0",
    ),
    STEP(
        name="two_caches",
        members="owner = None\n",
        test="past > 0 and self.owner is not cache",
        end="self.owner = cache\n",
    ),
    STEP(name="first_step_only", test="0 < past <= 1"),
)
CONDITIONS = (*BATCH, *CALLS, *CHANCE, *STATE, *MODE, *PROCESS, *LENGTH, *DTYPE, *LAYOUT, *VALUES, *GRADIENT, *DECODE)
