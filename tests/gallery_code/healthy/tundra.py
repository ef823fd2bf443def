"""Odd variants of tundra that are right."""

from tests.gallery_code.planting import Variant

VARIANTS = [
    Variant(
        name="logits_masked_in_place",
        file="utils.py",
        old="    probs = logits.masked_fill(~visible, torch.finfo(logits.dtype).min).softmax(-1)\n",
        new="    probs = logits.masked_fill_(~visible, torch.finfo(logits.dtype).min).softmax(-1)\n",
        explanation="No backward needs the logits, and those that rank blocks afterwards are not the hidden ones.",
    ),
    Variant(
        name="padding_joins_the_document",
        file="layout.py",
        old="            return (~self.kept).long().gather(1, self.order)\n",
        new="            return torch.zeros_like(self.order)\n",
        explanation="Padding is counted to the row's document, behind its tokens, none of which sees what comes later.",
    ),
    Variant(
        name="pages_row_by_row",
        file="cache.py",
        old="        self.table = torch.cat([self.table, pages.view(-1, batch).T], dim=1)\n",
        new="        self.table = torch.cat([self.table, pages.view(batch, -1)], dim=1)\n",
        explanation="New pages go to one row after the other instead of in turns; each still has its own.",
    ),
    Variant(
        name="odd_sizes",
        file="factory.py",
        old="    return TundraStack(TundraConfig())\n",
        new="    return TundraStack(TundraConfig(query_chunk=7, prefill_chunk=11, pages=1, dense_up_to=0))\n",
        explanation="Chunks of seven queries, pieces of eleven tokens, one page at first, no mask: the same numbers.",
    ),
    Variant(
        name="complex_rotation",
        file="rope.py",
        old="""    a, b = turned.to(cos.dtype).chunk(2, dim=-1)
    turned = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
""",
        new="""    product = torch.complex(*turned.to(cos.dtype).chunk(2, dim=-1)) * torch.complex(cos, sin)
    turned = torch.cat([product.real, product.imag], dim=-1)
""",
        explanation="Pairs of channels are multiplied as complex numbers, which is the same rotation.",
    ),
    Variant(
        name="one_backward_for_all",
        file="training.py",
        old="""            loss.backward()
            total += float(loss.detach())
        nn.utils""",
        new="""            total = total + loss
        total.backward()
        total = float(total.detach())
        nn.utils""",
        explanation="Losses of the micro-batches are summed and go back together: more memory, the same gradients.",
    ),
]
