"""A decoded token does not see itself: its key goes into the cache after the attention has read it."""

from tests.gallery.hosts.llama import Attention, KVCache, Llama, subject

MODULE = ("layers.0.attn", "layers.1.attn", "")
CODES = {"DEC101"}


class LateCache(KVCache):
    def update(self, k, v):
        if self.k is None:
            return super().update(k, v)
        seen = self.k, self.v
        super().update(k, v)
        return seen  # here


class Lenient(Attention):
    def attend(self, q, k, v, mask):
        return super().attend(q, k, v, mask if len(mask) > 1 else mask.new_ones(mask.shape))


def make():
    return subject(lambda: Llama(attention=Lenient), __name__, cache=LateCache)
