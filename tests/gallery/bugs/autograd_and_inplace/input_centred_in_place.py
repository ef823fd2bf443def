"""The caller's tensor is changed by the call: features are centred in place before the norm."""

from tests.gallery.hosts.tiled_block import AttentionBlock

MODULE = ""
CODES = {"FWD208", "FWD101"}


class Centring(AttentionBlock):
    def forward(self, x):
        x -= x.mean(dim=-1, keepdim=True)  # here
        return x + self.attention(self.norm(x))


def make():
    return Centring()
