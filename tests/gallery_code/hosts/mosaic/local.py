"""Block-local attention with look-back, ALiBi and landmarks of older blocks."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import MosaicConfig
from .flags import landmarks_enabled, sdpa_enabled
from .positions import DistanceTable, alibi_slopes, landmark_visible, local_visible
from .state import LocalState
from .utils import ceil_div, compute_dtype, merge_heads, pad_time, split_heads, to_chunks


class LocalMixer(nn.Module):
    """A query sees its own block up to itself, the block before, and landmarks of `n_landmarks` blocks before that.

    The landmark of a block is the mean of its keys, projected, with the mean of its values. Scores fall with distance
    by a slope per head, which is learned.
    """

    def __init__(self, cfg: MosaicConfig) -> None:
        """A mixer of `cfg.n_heads` query heads on `cfg.n_kv_heads` key and value heads."""
        super().__init__()
        self.cfg = cfg
        self.q = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.kv = nn.Linear(cfg.dim, 2 * cfg.n_kv_heads * cfg.head_dim, bias=False)
        self.summary = nn.Linear(cfg.head_dim, cfg.head_dim, bias=False)
        self.log_slope = nn.Parameter(alibi_slopes(cfg.n_heads).log())
        self.gate = nn.Linear(cfg.dim, cfg.n_heads)
        self.out = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.tables = DistanceTable(cfg.block, cfg.n_landmarks)
        if cfg.zero_out:
            nn.init.zeros_(self.out.weight)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled queries [B, H, S, d], keys and values [B, G, S, d]."""
        q = split_heads(self.q(x), self.cfg.n_heads) * self.cfg.head_dim**-0.5
        k, v = (split_heads(part, self.cfg.n_kv_heads) for part in self.kv(x).chunk(2, dim=-1))
        return q, k, v

    def _finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """[B, H, S, d] gated per head, and projected."""
        gate = torch.sigmoid(self.gate(x)).transpose(1, 2).unsqueeze(-1)
        return self.out(merge_heads(mixed * gate))

    def _bias(self, landmarks: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
        """What is added to scores, [H, block, keys]."""
        distance = self.tables.get(landmarks, device)
        return -self.log_slope.exp()[:, None, None] * distance.to(dtype)

    def _block_sums(self, blocks: Tensor) -> Tensor:
        """Sums over the tokens of every block, [B, G, n, d], in the dtype of computation."""
        return blocks.to(compute_dtype(blocks)).sum(3)

    def _landmarks(self, keys: Tensor, values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Landmarks from sums of keys and values over whole blocks."""
        size = self.cfg.block
        return self.summary((keys / size).to(dtype)), (values / size).to(dtype)

    def _windows(self, landmarks: Tensor) -> Tensor:
        """For every block the landmarks that it sees: [B, G, n, d] as [B, G, n, count, d], zeros before the start."""
        count, n_blocks = self.cfg.n_landmarks, landmarks.shape[2]
        padded = F.pad(landmarks, (0, 0, count + 1, 0))
        return padded.unfold(2, count, 1)[:, :, :n_blocks].transpose(-1, -2)

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, bias: Tensor, visible: Tensor) -> Tensor:
        """Attention inside blocks.

        q [B, H, n, C, d], keys and values [B, G, n, K, d], bias [H, C, K], visible [n, C, K].
        """
        heads, groups = self.cfg.n_heads, self.cfg.n_kv_heads
        q = q.unflatten(1, (groups, heads // groups))
        keys, values = keys.unsqueeze(2), values.unsqueeze(2)
        shaped = bias.unflatten(0, (groups, heads // groups)).unsqueeze(2)
        added = shaped.masked_fill(~visible, -torch.inf)
        if not self.training and sdpa_enabled():
            shape = (*q.shape[:-2], keys.shape[-2])
            mask = added.to(q.dtype).expand(q.shape[0], *added.shape)
            mixed = F.scaled_dot_product_attention(
                q.flatten(0, 3),
                keys.expand(*shape, -1).flatten(0, 3),
                values.expand(*shape, -1).flatten(0, 3),
                attn_mask=mask.flatten(0, 3),
                scale=1.0,
            )
            return mixed.view(*q.shape).flatten(1, 2)
        scores = (q @ keys.mT).to(added.dtype) + added
        probs = scores.softmax(-1)
        return (probs.to(values.dtype) @ values).flatten(1, 2)

    def _whole(self, x: Tensor, keep: bool) -> tuple[Tensor, LocalState | None]:
        size, length = self.cfg.block, x.shape[1]
        n_blocks = ceil_div(length, size)
        pad = n_blocks * size - length
        q, k, v = self._project(x)
        qb, kb, vb = (to_chunks(pad_time(part, pad), size) for part in (q, k, v))
        keys, values = (torch.cat([F.pad(part, (0, 0, 0, 0, 1, 0))[:, :, :-1], part], dim=3) for part in (kb, vb))
        visible = local_visible(n_blocks, size, x.device)
        key_sums, value_sums = self._block_sums(kb), self._block_sums(vb)
        mark_keys, mark_values = self._landmarks(key_sums, value_sums, k.dtype)
        landmarks = landmarks_enabled()
        if landmarks:
            keys = torch.cat([keys, self._windows(mark_keys)], dim=3)
            values = torch.cat([values, self._windows(mark_values)], dim=3)
            seen = landmark_visible(n_blocks, self.cfg.n_landmarks, x.device)
            visible = torch.cat([visible, seen.unsqueeze(1).expand(-1, size, -1)], dim=2)
        bias = self._bias(landmarks, x.device, compute_dtype(x))
        mixed = self._attend(qb, keys, values, bias, visible).flatten(2, 3)[:, :, :length]
        y = self._finish(x, mixed)
        if not keep:
            return y, None
        whole = length // size
        first = max(0, (length - 1) // size - 1) * size
        marks = slice(max(0, whole - self.cfg.n_landmarks - 1), whole)
        partial = n_blocks > whole
        state = LocalState(
            keys=k[:, :, first:],
            values=v[:, :, first:],
            key_sum=key_sums[:, :, -1] if partial else torch.zeros_like(key_sums[:, :, -1]),
            value_sum=value_sums[:, :, -1] if partial else torch.zeros_like(value_sums[:, :, -1]),
            landmark_keys=mark_keys[:, :, marks],
            landmark_values=mark_values[:, :, marks],
            position=length,
        )
        return y, state

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] in and out."""
        return self._whole(x, keep=False)[0]

    def prefill(self, x: Tensor) -> tuple[Tensor, LocalState]:
        """The outputs, and the state after the last token."""
        y, state = self._whole(x, keep=True)
        assert state is not None
        return y, state

    def step(self, x: Tensor, state: LocalState) -> tuple[Tensor, LocalState]:
        """One token, [B, 1, D]."""
        cfg = self.cfg
        q, k, v = self._project(x)
        offset = state.position % cfg.block
        keys, values = state.keys, state.values
        if offset == 0:
            keys, values = keys[:, :, -cfg.block :], values[:, :, -cfg.block :]
        keys, values = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        wide = compute_dtype(x)
        distance = torch.arange(keys.shape[2] - 1, -1, -1, device=x.device, dtype=wide)
        all_keys, all_values = keys, values
        marks = state.landmark_keys.shape[2] - 1
        if landmarks_enabled() and marks > 0:
            blocks_back = torch.arange(marks + 1, 1, -1, device=x.device, dtype=wide)
            distance = torch.cat([distance, offset + blocks_back * cfg.block - (cfg.block - 1)])
            all_keys = torch.cat([all_keys, state.landmark_keys[:, :, :-1]], dim=2)
            all_values = torch.cat([all_values, state.landmark_values[:, :, :-1]], dim=2)
        all_keys = all_keys.repeat_interleave(cfg.queries_per_kv, dim=1)
        all_values = all_values.repeat_interleave(cfg.queries_per_kv, dim=1)
        scores = (q @ all_keys.mT).to(wide) - self.log_slope.exp()[:, None, None] * distance
        mixed = scores.softmax(-1).to(all_values.dtype) @ all_values
        return self._finish(x, mixed), self._advance(state, keys, values, k, v)

    def _advance(self, state: LocalState, keys: Tensor, values: Tensor, k: Tensor, v: Tensor) -> LocalState:
        """The state one token later; a block that is full becomes a landmark, and its sums start again."""
        cfg = self.cfg
        key_sum = state.key_sum + k.squeeze(2)
        value_sum = state.value_sum + v.squeeze(2)
        mark_keys, mark_values = state.landmark_keys, state.landmark_values
        position = state.position + 1
        if position % cfg.block == 0:
            new_key, new_value = self._landmarks(key_sum, value_sum, k.dtype)
            mark_keys = torch.cat([mark_keys, new_key.unsqueeze(2)], dim=2)[:, :, -cfg.n_landmarks - 1 :]
            mark_values = torch.cat([mark_values, new_value.unsqueeze(2)], dim=2)[:, :, -cfg.n_landmarks - 1 :]
            key_sum, value_sum = torch.zeros_like(key_sum), torch.zeros_like(value_sum)
        return LocalState(keys, values, key_sum, value_sum, mark_keys, mark_values, position)
