"""Returns an output object with .logits, and takes its ids by the name input_ids alone."""

from dataclasses import dataclass

import torch

from tests.gallery.hosts.llama import Llama


@dataclass
class CausalLMOutput:
    logits: torch.Tensor
    hidden_states: tuple = ()


class ForCausalLM(Llama):
    def forward(self, *, input_ids, use_cache=False):
        h = self.features(input_ids)
        return CausalLMOutput(logits=self.head(h), hidden_states=(h,))


def make():
    return ForCausalLM()
