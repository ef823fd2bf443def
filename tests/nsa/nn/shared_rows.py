"""Layers and models whose rows several processes share, beside one that has them whole; prints how far apart as JSON.

python -m tests.nsa.nn.shared_rows FOLDER     the processes find each other by a file in it
"""

import json
import os
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from torch import distributed
from torch.utils.checkpoint import checkpoint

from nsa import ModelConfig, NSAttention, Transformer
from nsa.nn import Context
from tests.nsa.nn.conftest import SMALL, randomise

NUM_PROCESSES = 3
LONGEST_SECONDS = 60.0
ONE = {"n_layers": 1}
# Tokens, processes, and what differs from the small model; `layer` is attention alone, `remade` recomputes blocks in
# the backward pass, `held` holds the slots of the whole sequence fixed.
SCENARIOS = {
    "two": (64, 2, {}),
    "three": (60, 3, {}),
    "long": (136, 2, ONE),
    "shortest": (8, 2, ONE),
    "one-group": (40, 2, {**ONE, "n_kv_groups": 1}),
    "a-group-per-head": (40, 2, {**ONE, "n_kv_groups": 4}),
    "mlp": (64, 2, {**ONE, "phi": "mlp"}),
    "conv": (64, 2, {**ONE, "phi": "conv", "shared_kv": True}),
    "window-of-several-chunks": (64, 2, {**ONE, "w": 40}),
    "window-of-one": (64, 2, {**ONE, "w": 1}),
    "no-overlap": (64, 2, {**ONE, "l": 2, "n_sel": 3}),
    "large-blocks": (96, 2, {**ONE, "l": 8, "d": 4, "l_sel": 16, "n_sel": 3}),
    "reference": (32, 2, {**ONE, "impl": "reference"}),
    "compressed-alone": (64, 2, {**ONE, "branch": "cmp"}),
    "sliding-alone": (64, 2, {**ONE, "branch": "win"}),
    "held": (64, 2, {**ONE, "held": True}),
    "layer": (64, 2, {"layer": True}),
    "layer-of-three": (84, 3, {"layer": True, "phi": "mlp", "w": 30}),
    "layer-held": (40, 2, {"layer": True, "held": True}),
    "remade": (64, 2, {"remade": True}),
    "float32": (64, 2, {"dtype": torch.float32}),
    "bfloat16": (64, 2, {**ONE, "dtype": torch.bfloat16, "held": True}),
}


def found_by_processes(folder):
    """What each scenario came to, as JSON, in processes that are forks of this one."""
    read, write = os.pipe()
    children = [start(rank, folder, write) for rank in range(NUM_PROCESSES)]
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    ends, codes = time.monotonic() + LONGEST_SECONDS, []
    for child in children:
        while (found := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < ends:
            time.sleep(0.02)
        if found[0] == 0:
            os.kill(child, 9)
            found = os.waitpid(child, 0)
        codes.append(os.waitstatus_to_exitcode(found[1]))
    assert codes == [0] * NUM_PROCESSES, codes
    return text


def start(rank, folder, pipe):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        store = distributed.FileStore(str(folder / "store"), NUM_PROCESSES)
        seconds = timedelta(seconds=LONGEST_SECONDS / 2)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=NUM_PROCESSES, timeout=seconds)
        groups = {2: distributed.new_group([0, 1], timeout=seconds), NUM_PROCESSES: None}
        found = {}
        for name, (num_tokens, size, changes) in SCENARIOS.items():
            if rank < size:
                found[name] = compared(num_tokens, Context(groups[size]), **changes)
        found["refusals"] = [None] * NUM_PROCESSES
        distributed.all_gather_object(found["refusals"], refused(Context(), groups[2]))
        if rank == 0:
            os.write(pipe, json.dumps(found).encode())
        distributed.barrier()
        distributed.destroy_process_group()
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)


def compared(num_tokens, context, dtype=torch.float64, impl="auto", remade=False, held=False, layer=False, **changes):
    """The errors of the outputs and of every gradient, and whether each layer chose the same blocks."""
    torch.manual_seed(0)
    config = ModelConfig.model_validate({**SMALL, **changes})
    model = (NSAttention if layer else Transformer)(config, impl)
    randomise(model)
    model = model.to(dtype)
    x = torch.randn(2, num_tokens, config.dim, dtype=dtype, requires_grad=True)
    given = x if layer else torch.randint(config.vocab_size, (2, num_tokens))
    own = context.own(x).detach().requires_grad_() if layer else context.own(given)
    chosen = [hold(attention, is_held=held) for attention in ([model] if layer else attentions_of(model))]
    for block in model.blocks if remade else ():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    parameters = list(model.parameters())
    out = model(given)
    weight = torch.randn(out.shape, dtype=torch.float64)
    wanted, found = ([*parameters, x], [*parameters, own]) if layer else (parameters, parameters)
    expected = torch.autograd.grad((out * weight).sum(), wanted, allow_unused=True)
    part = model(own, context=context)
    got = torch.autograd.grad((part * context.own(weight)).sum(), found, allow_unused=True)
    for gradient in got[: len(parameters)]:
        if gradient is not None:
            distributed.all_reduce(gradient, group=context.group)
    whole = context.whole(part)[0]
    names = ["output", *(name for name, _ in model.named_parameters())]
    pairs = [(whole, out), *zip(got, expected, strict=False)]
    if layer:
        names, pairs[-1] = [*names, "input"], (context.whole(got[-1])[0], expected[-1])
    peak = max(float(gradient.abs().max()) for gradient in expected if gradient is not None)
    errors = {name: error(*pair, peak / 10) for name, pair in zip(names, pairs, strict=True)}
    alike = [torch.equal(context.own(one), shared) for (one, *_), (shared, *_) in chosen]
    return {"errors": errors, "alike": alike, "eps": torch.finfo(dtype).eps}


def attentions_of(model):
    return [block.attention for block in model.blocks]


def hold(attention, *, is_held):
    """The slots of the calls to come, whole and shared; with `is_held` shared calls are given those of whole ones."""
    branches, whole, shared = attention.branches, [], []

    def noted(x, cache=None, cu_seqlens=None, slots=None, context=None):
        if is_held and context is not None:
            slots = context.own(whole[0])
        found = branches(x, cache, cu_seqlens, slots, context)
        (whole if context is None else shared).append(found.slots)
        return found

    attention.branches = noted
    return whole, shared


def error(got, expected, least_peak):
    """Relative to the peak, and `least_peak` for what is zero but for rounding; None where neither has a gradient."""
    if got is None or expected is None:
        return None if got is expected else float("inf")
    got, expected = got.detach(), expected.detach()
    return float((got - expected).abs().max() / expected.abs().max().clamp(min=least_peak))


def refused(context, other):
    """What is said of calls that cannot be served, by name."""
    torch.manual_seed(0)
    config = ModelConfig.model_validate({**SMALL, **ONE})
    model = Transformer(config)
    layer, x = model.blocks[0].attention, torch.randn(1, 20, config.dim)
    ends = torch.tensor([0, 20], dtype=torch.int32)
    calls = {
        "cache": lambda: layer(x, layer.new_cache(), context=context),
        "one-token-and-cache": lambda: layer(x[:, :1], layer.new_cache(), context=context),
        "cu-seqlens": lambda: layer(x, cu_seqlens=ends, context=context),
        "cu-seqlens-of-a-model": lambda: model(torch.zeros(1, 20, dtype=torch.long), cu_seqlens=ends, context=context),
        "no-whole-strides": lambda: layer(x[:, :19], context=context),
        "too-short": lambda: NSAttention(config.model_copy(update={"l": 8}))(x[:, :4], context=context),
        "own-of-odd": lambda: context.own(x[:, :19]),
        "second-derivative": lambda: derivative(NSAttention(config, "reference"), x[:, :12], context),
        "not-of-the-group": lambda: Context(other),
    }
    return {name: sentence(call) for name, call in calls.items()}


def derivative(layer, x, context):
    x = x.clone().requires_grad_()
    torch.autograd.grad(layer(x, context=context).sum(), x, create_graph=True)


def sentence(call):
    try:
        call()
    except (ValueError, RuntimeError) as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    return None


if __name__ == "__main__":
    print(found_by_processes(Path(sys.argv[1])))
