"""The LSTM walks along the batch in place of time: batch_first was left out."""

from torch import nn

from tests.gallery.hosts.conv_mixer import ConvMixer

MODULE = tuple(f"layers.{i}.mixer{leaf}" for i in range(2) for leaf in ("", ".rnn"))
CODES = {"FWD203", "FWD204"}


class LSTMMixer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.rnn = nn.LSTM(dim, dim)  # here

    def forward(self, x):
        return self.rnn(x)[0]


def make():
    return ConvMixer(mixer=LSTMMixer)
