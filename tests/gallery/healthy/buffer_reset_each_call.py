"""Keys are written into a work buffer that every call fills anew as far as it reads."""

import torch

from tests.gallery.hosts.llama import Attention, Llama


class Workspace(Attention):
    def __init__(self, args):
        super().__init__(args)
        self.register_buffer("kv", torch.empty(0), persistent=False)

    def attend(self, q, k, v, mask):
        need = (2, *k.shape)
        if self.kv.shape[:2] != need[:2] or self.kv.numel() < 2 * k.numel() or self.kv.dtype != k.dtype:
            self.kv = torch.full(need, float("nan"), dtype=k.dtype, device=k.device)
        buffer = self.kv.flatten()[: 2 * k.numel()].view(need)
        with torch.no_grad():
            buffer[0].copy_(k)
            buffer[1].copy_(v)
        if not torch.is_grad_enabled():
            k, v = buffer[0].clone(), buffer[1].clone()
        return super().attend(q, k, v, mask)


def make():
    return Llama(attention=Workspace)
