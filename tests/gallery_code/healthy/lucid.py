"""Changes of the host `lucid` that look suspicious and are right."""

from tests.gallery_code.planting import Variant

VARIANTS = [
    Variant(
        name="zero_output",
        file="layer.py",
        old="                nn.init.normal_(weight, std=self.config.init_std)\n",
        new=(
            "                nn.init.normal_(weight, std=self.config.init_std)\n"
            "        nn.init.zeros_(self.out.weight)\n"
        ),
        explanation="The output projection starts at zero, learns from the first step, and the rest from the second.",
    ),
    Variant(
        name="running_maximum_tracked",
        file="kernels.py",
        old="        new_top = torch.maximum(top, scores.amax(-1)).detach()\n",
        new="        new_top = torch.maximum(top, scores.amax(-1))\n",
        explanation="Gradients through the running maximum cancel: the result does not depend on it.",
    ),
    Variant(
        name="scatter_instead_of_add",
        file="kernels.py",
        old="    hits.scatter_add_(-1, chosen, valid.to(torch.int8))\n",
        new="    hits.scatter_(-1, chosen, valid.to(torch.int8))\n",
        explanation="The chosen blocks of a query are all different, so no entry is written twice.",
    ),
    Variant(
        name="shared_compressor",
        file="layer.py",
        old="        self.compress_v = BlockCompressor(config.head_dim, config.block, config.stride)\n",
        new="        self.compress_v = self.compress_k\n",
        explanation="Keys and values share their compressor on purpose: one set of weights, no dead one.",
    ),
    Variant(
        name="tables_by_exception",
        file="rotary.py",
        old=(
            "        found = self._tables.get(key)\n"
            "        if found is None or found[0].shape[0] < length:\n"
            "            size"
        ),
        new=(
            "        try:\n"
            "            found = self._tables[key]\n"
            "            if found[0].shape[0] < length:\n"
            "                raise KeyError(length)\n"
            "        except KeyError:\n"
            "            size"
        ),
        explanation="An exception says that the table is missing or too short; it is caught where it is meant to be.",
    ),
    Variant(
        name="odd_query_chunk",
        file="config.py",
        old="    query_chunk: int = 32\n",
        new="    query_chunk: int = 45\n",
        explanation="A chunk that divides neither blocks nor window: positions are absolute, nothing depends on it.",
    ),
    Variant(
        name="sort_of_the_negative",
        file="select.py",
        old="    order = ranked.sort(dim=-1, descending=True, stable=True).indices\n",
        new="    order = (-ranked).sort(dim=-1, stable=True).indices\n",
        explanation="The same order, ties included: a stable sort of the negative keeps the earlier block first.",
    ),
]
