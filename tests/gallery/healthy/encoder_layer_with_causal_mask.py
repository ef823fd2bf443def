"""torch's own TransformerEncoder, made causal by a mask of -inf."""

from torch import nn


class TorchDecoder(nn.Module):
    def __init__(self, d_model=16):
        super().__init__()
        self.d_model = d_model
        layer = nn.TransformerEncoderLayer(d_model, 2, 32, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        return self.encoder(x, mask=mask)


def make():
    return TorchDecoder()
