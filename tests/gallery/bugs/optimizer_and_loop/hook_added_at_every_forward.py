"""Each step is slower than the last: every forward registers one more hook and none is removed."""

from tests.gallery.hosts.gpt import GPT, MLP

MODULE = tuple(f"h.{i}.mlp{leaf}" for i in range(2) for leaf in ("", ".c_fc"))
CODES = {"PRF302", "PRF301"}


class Watched(MLP):
    def forward(self, x):
        norms = []
        self.c_fc.register_forward_hook(lambda _m, _i, out: norms.append(out.detach().norm(dim=-1)))  # here
        y = super().forward(x)
        self.activation_norm = norms[-1].mean()
        return y


def make():
    return GPT(mlp=Watched)
