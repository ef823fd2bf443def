"""Decode pairs heads with other key groups than prefill does: `repeat` in the fast path, `repeat_interleave` else."""

from tests.gallery.hosts.llama import Attention, Llama, subject

MODULE = ("layers.0.attn", "layers.1.attn")
CODES = {"DEC101"}


class FastDecode(Attention):
    def attend(self, q, k, v, mask):
        if q.shape[1] > 1:
            return super().attend(q, k, v, mask)
        k, v = (kv[:, :, ::2].repeat(1, 1, 2, 1) for kv in (k, v))  # here
        return super().attend(q, k, v, mask)


def make():
    return subject(lambda: Llama(attention=FastDecode), __name__)
