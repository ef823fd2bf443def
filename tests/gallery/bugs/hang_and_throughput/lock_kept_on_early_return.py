"""After one short input no call returns any more: the early return leaves the lock taken."""

import threading

from tests.gallery.hosts.tiled_block import AttentionBlock, TiledAttention

MODULE = "attention"
CODES = {"HNG101"}


class Workspace(TiledAttention):
    def __init__(self, *args):
        super().__init__(*args)
        self.lock = threading.Lock()

    def __deepcopy__(self, memo):
        twin = Workspace(self.heads * self.head_dim, self.heads)
        twin.load_state_dict(self.state_dict())
        return twin.to(self.slopes).train(self.training)

    def attention(self, q, k, v):
        self.lock.acquire()  # here
        if q.shape[2] == 1:
            return v
        o = super().attention(q, k, v)
        self.lock.release()
        return o


def make():
    return AttentionBlock(attention=Workspace)
