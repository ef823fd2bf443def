"""Wrong edits of the banded sliding window."""

from tests.gallery_functions.files import BANDED
from tests.gallery_functions.planting import Wrong
from tests.gallery_functions.scenes import Scene

WINDOW = {"causal": True, "window": (31, 0)}
ALL = ("dk", "dq", "dv", "out")

WRONG = [
    Wrong(
        name="BANDED_WINDOW_LONG_BY_ONE",
        host=BANDED,
        kind="window",
        tensors=ALL,
        edits=(("(key > query - block)", "(key >= query - block)"),),
        says="A window of W keys sees W + 1.",
        scene=Scene(options=WINDOW),
    ),
    Wrong(
        name="BANDED_ZEROS_BEFORE_FIRST_KEY",
        host=BANDED,
        kind="padding in the softmax",
        tensors=ALL,
        edits=(("    return seen & (key >= 0) & (key < seqlen)\n", "    return seen & (key < seqlen)\n"),),
        says="The zeros in front of the first block take part in the softmax of the first W - 1 queries.",
        scene=Scene(options=WINDOW),
    ),
    Wrong(
        name="BANDED_PREVIOUS_BLOCK_WITHOUT_GRADIENT",
        host=BANDED,
        kind="accumulation",
        tensors=("dk", "dv"),
        edits=(("    own[:, :, :-1] += before[:, :, 1:]\n", ""),),
        line=("before, own = dx.chunk(2, dim=3)", "own = own.clone()", "return own"),
        says="What queries of the next block give to keys is lost: right up to W tokens.",
        scene=Scene(options=WINDOW),
        right_with={"queries": 32},
    ),
    Wrong(
        name="BANDED_LAST_BLOCK_CLEARED_AT_MULTIPLES",
        host=BANDED,
        kind="exact multiples",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "        do = _blocks(dout.to(work), num_blocks, block)\n",
                """        do = _blocks(dout.to(work), num_blocks, block)
        do[:, :, -1, seqlen % block :] = 0.0  # rows of padding
""",
            ),
        ),
        says="Rows of padding are cleared from S % W on, which at a multiple of W is the whole last block.",
        scene=Scene(queries=64, options=WINDOW),
        right_with={"queries": 70},
    ),
    Wrong(
        name="BANDED_VALUES_OF_FIRST_ROW_IN_BACKWARD",
        host=BANDED,
        kind="batch",
        tensors=("dk", "dq"),
        edits=(("ds = p * (do @ vb.mT - delta) * scale\n", "ds = p * (do @ vb[:1].mT - delta) * scale\n"),),
        says="Backward takes the values of the first row of the batch for all: right at B=1.",
        scene=Scene(options=WINDOW),
        right_with={"batch": 1},
    ),
    Wrong(
        name="BANDED_DV_IN_BFLOAT16",
        host=BANDED,
        kind="precision in backward",
        tensors=("dv",),
        edits=(
            (
                "dv = _fold_previous(p.mT @ do)\n",
                "dv = _fold_previous((p.bfloat16().mT @ do.bfloat16()).to(work))\n",
            ),
        ),
        says="dv is multiplied in bfloat16 whatever the inputs' dtype.",
        scene=Scene(options=WINDOW),
    ),
    Wrong(
        name="BANDED_BACKWARD_WITHOUT_BAND",
        host=BANDED,
        kind="mask in backward",
        tensors=("dk", "dq", "dv"),
        edits=(("p = torch.exp((s - lse).masked_fill(~band, -torch.inf))\n", "p = torch.exp(s - lse)\n"),),
        says="P is recomputed over both blocks, without the band.",
        scene=Scene(options=WINDOW),
    ),
    Wrong(
        name="BANDED_STORAGE_OFFSET_IGNORED",
        host=BANDED,
        kind="layout",
        tensors=ALL,
        edits=(("    x = x.transpose(1, 2)\n", "    x = x.as_strided(x.shape, x.stride(), 0).transpose(1, 2)\n"),),
        says="Tensors are read from the start of their storage: wrong for slices of a batch.",
        scene=Scene(layout="offset", options=WINDOW),
        right_with={"layout": "plain"},
    ),
    Wrong(
        name="BANDED_DK_WITHOUT_LAST_KEY",
        host=BANDED,
        kind="last partial tile",
        tensors=("dk", "dv"),
        edits=(
            (
                "    own = own.clone()\n",
                "    own = own.clone()\n    own[:, :, -1, -1] = 0.0  # padding\n",
            ),
        ),
        says="The last key of the last block is taken for padding: its gradient is zero at multiples of W.",
        scene=Scene(queries=64, options=WINDOW),
        right_with={"queries": 70},
    ),
    Wrong(
        name="BANDED_DQ_LACKS_PREVIOUS_BLOCK",
        host=BANDED,
        kind="accumulation",
        tensors=("dq",),
        edits=(("dq = ds @ kb\n", "dq = ds[..., block:] @ kb[..., block:, :]\n"),),
        says="dq takes the keys of the query's own block alone: right up to W tokens.",
        scene=Scene(options=WINDOW),
        right_with={"queries": 32},
    ),
]
