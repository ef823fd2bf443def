"""Wrong edits of healthy Triton kernels, for GPUs alone: `fn:tests.gallery_functions.on_gpu:NAME`."""

from collections.abc import Callable

from tests.gallery_functions.planting import Case, Healthy, Host, Wrong, load
from tests.gallery_functions.scenes import Scene

FLASH = Host(file="triton_flash.py", function="triton_attention", like="flash")
SELECTED = Host(file="triton_selected.py", function="selected_attention", like="nsa")
CAUSAL = Scene(options={"causal": True}, dtype="bfloat16")
WINDOW = Scene(options={"causal": True, "window": (19, 0)}, dtype="bfloat16")
GROUPED = Scene(heads=4, kv_heads=2, options={"causal": True}, dtype="bfloat16")

HEALTHY = [
    Healthy(name="TRITON_FLASH", host=FLASH, says="autotuned, dq by atomic additions", scene=CAUSAL),
    Healthy(name="TRITON_FLASH_WINDOW", host=FLASH, says="a window of 20 keys", scene=WINDOW),
    Healthy(name="TRITON_FLASH_GROUPED", host=FLASH, says="two heads of queries a head of keys", scene=GROUPED),
    Healthy(name="TRITON_SELECTED", host=SELECTED, says="dk and dv by atomic additions", scene=GROUPED),
]

_STORE_DK = "dk.to(dk_ptr.dtype.element_ty), mask=is_k)"
_STORE_DV = "dv.to(dv_ptr.dtype.element_ty), mask=is_v)"
_SEEN_BACKWARD = "seen = is_row & (keys[None, :] < seqlen_k) & (distance <= left) & (distance >= -right)"
_RESCALED = "acc * factor[:, None]"
_ADD_DK = "            dk += tl.dot(tl.trans(change.to(q.dtype)), q)\n"

_DK = "tl.dot(tl.trans(change.to(q.dtype)), q), mask=is_k)"
_ADD_DV = "tl.dot(tl.trans(weights.to(dout.dtype)), dout), mask=is_v"

WRONG = [
    Wrong(
        name="TRITON_DK_5_PERCENT",
        host=FLASH,
        kind="scale of a gradient",
        tensors=("dk",),
        edits=((_STORE_DK, f"(dk * 1.05){_STORE_DK.removeprefix('dk')}"),),
        says="dk is 5 % too large, at any shape.",
        scene=CAUSAL,
    ),
    Wrong(
        name="TRITON_DV_OF_LAST_TILE",
        host=FLASH,
        kind="last tile",
        tensors=("dv",),
        edits=((_STORE_DV, f"tl.where(start_n + BLOCK_N < seqlen_k, dv, 0.0){_STORE_DV.removeprefix('dv')}"),),
        says="dv of the last tile of keys is zero.",
        scene=CAUSAL,
    ),
    Wrong(
        name="TRITON_WINDOW_OF_BACKWARD",
        host=FLASH,
        kind="window",
        tensors=("dk", "dq", "dv"),
        edits=((_SEEN_BACKWARD, _SEEN_BACKWARD.replace("distance <= left", "distance < left")),),
        says="The window of the backward pass is one key too short.",
        scene=WINDOW,
    ),
    Wrong(
        name="TRITON_DK_OF_PARTIAL_TILE",
        host=FLASH,
        kind="last tile",
        tensors=("dk",),
        edits=((_ADD_DK, f"            if start_m + BLOCK_M <= seqlen_q:\n    {_ADD_DK}"),),
        says="dk lacks the last tile of queries unless 32 divides their number.",
        scene=CAUSAL,
        right_with={"queries": 64},
    ),
    Wrong(
        name="TRITON_GROUP_DROPS_A_HEAD",
        host=FLASH,
        kind="heads of a group",
        tensors=("dk", "dq", "dv"),
        edits=(("for each in range(0, ratio):", "for each in range(0, tl.maximum(1, ratio - 1)):"),),
        says="The last query head of each group adds nothing to any gradient.",
        scene=GROUPED,
        right_with={"kv_heads": 4},
    ),
    Wrong(
        name="TRITON_NO_DELTA",
        host=FLASH,
        kind="delta",
        tensors=("dk", "dq"),
        edits=(("(tl.dot(dout, tl.trans(v)) - delta[:, None])", "tl.dot(dout, tl.trans(v))"),),
        says="The backward pass of softmax lacks delta.",
        scene=CAUSAL,
    ),
    Wrong(
        name="TRITON_DQ_NOT_ADDED",
        host=FLASH,
        kind="accumulation",
        tensors=("dq",),
        edits=(("tl.atomic_add(dq_ptr", "tl.store(dq_ptr"),),
        says="dq is what the last tile of keys wrote.",
        scene=CAUSAL,
        right_with={"queries": 32},
    ),
    Wrong(
        name="TRITON_LAST_KEY_TILE_UNMASKED",
        host=FLASH,
        kind="last tile",
        tensors=("dk", "dq", "dv", "out"),
        edits=(("seen = (keys[None, :] < seqlen_k) & (distance <= left)", "seen = (distance <= left)"),),
        says="Keys beyond the last one have a weight, with values of zero.",
        scene=Scene(dtype="bfloat16"),
        right_with={"queries": 64},
    ),
    Wrong(
        name="TRITON_ACCUMULATOR_IN_8_BITS",
        host=FLASH,
        kind="precision",
        tensors=("dk", "dq", "out"),
        edits=((f"acc = {_RESCALED} +", f"acc = ({_RESCALED}).to(tl.float8e5).to(tl.float32) +"),),
        says="The accumulator is kept in eight bits between tiles of keys.",
        scene=CAUSAL,
        right_with={"queries": 32},
    ),
    Wrong(
        name="TRITON_SELECTED_DK_5_PERCENT",
        host=SELECTED,
        kind="scale of a gradient",
        tensors=("dk",),
        edits=(("return dq, dk.to(k.dtype)", "return dq, (dk * 1.05).to(k.dtype)"),),
        says="dk is 5 % too large, at any shape.",
        scene=GROUPED,
    ),
    Wrong(
        name="TRITON_SELECTED_DV_OF_LAST_BLOCK",
        host=SELECTED,
        kind="last tile",
        tensors=("dv",),
        edits=((_ADD_DV, f"{_ADD_DV} & (slot < tl.maximum(1, count - 1))"),),
        says="The last of a query's blocks adds nothing to dv.",
        scene=GROUPED,
    ),
    Wrong(
        name="TRITON_SELECTED_ONE_HEAD_OF_DK",
        host=SELECTED,
        kind="heads of a group",
        tensors=("dk",),
        edits=((_DK, _DK.replace("change.to", "tl.where(h[:, None] == 0, change, 0.0).to")),),
        says="dk is that of the first query head of each group.",
        scene=GROUPED,
    ),
]

_FIRST = "    start_n = tl.program_id(0) * BLOCK_N\n    groups = heads // ratio\n"
_WAITS = (
    "    waiting = 1\n    while waiting > 0:\n        waiting = tl.where(tl.atomic_add(lse_ptr, 0.0) == 9e9, 0, 1)\n"
)
_FAR = "tl.store(dk_ptr + (1 << 44) + key_at * dim + d[None, :], "

SPINS = Wrong(
    name="TRITON_SPINS",
    host=FLASH,
    kind="hang",
    tensors=("dk", "dq", "dv"),
    edits=((_FIRST, _FIRST + _WAITS),),
    says="The backward kernel waits for what nobody writes, and never ends.",
    scene=CAUSAL,
)
WRITES_FAR = Wrong(
    name="TRITON_WRITES_FAR",
    host=FLASH,
    kind="memory",
    tensors=("dk",),
    edits=(("tl.store(dk_ptr + key_at * dim + d[None, :], ", _FAR),),
    says="dk is stored where no memory is.",
    scene=CAUSAL,
)
ENDINGS = (SPINS, WRITES_FAR)
BY_NAME: dict[str, Case] = {case.name: case for case in (*WRONG, *HEALTHY, *ENDINGS)}


def __getattr__(name: str) -> Callable:
    if name not in BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(BY_NAME[name])
