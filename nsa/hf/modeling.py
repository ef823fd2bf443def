"""The Transformer as a PreTrainedModel: what transformers asks of a model, around layers that are written elsewhere."""

from collections.abc import Mapping
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from nsa.backends import Impl, prefill_is_batched
from nsa.hf.cache import CACHE_NAME, NSACacheLayer, cache_of, only_cache
from nsa.hf.configuration import NSAConfig
from nsa.hf.internal import implementation_of, is_initialized, mark_initialized
from nsa.hf.rows import joined, new_tokens, num_whole_columns, one_row, parts_of, sequences
from nsa.nn import Transformer
from nsa.nn.cache import added_whole
from nsa.nn.linear import Head
from nsa.nn.transformer import Block
from nsa.strict import nearest
from nsa.types import CuSeqlens, Hidden

# Names that transformers has for what our own implementations are nearest to.
IMPLEMENTATIONS: Mapping[str, Impl] = {"eager": "vectorized", "sdpa": "fused", "flash_attention_2": "flash"}
_TAKEN = (
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "num_items_in_batch"),
    *("is_causal", "output_attentions", "output_router_logits"),
)


class NSAPreTrainedModel(PreTrainedModel):
    """What `NSAModel` and `NSAForCausalLM` share: initial weights, implementations, and what transformers may do."""

    config_class = NSAConfig
    config: NSAConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["CheckpointedBlock"]  # noqa: RUF012 - as its base class declares it
    _skip_keys_device_placement = ["cache", "past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True  # sequences in one row are kept apart, whatever serves them

    def post_init(self) -> None:
        """As transformers does; weights that the layers have drawn themselves stay: same seed, same weights."""
        for parameter in self.parameters():
            if not parameter.is_meta:
                mark_initialized(parameter)
        super().post_init()

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Draw what a checkpoint lacks, as its class draws it: parameters that were loaded stay as they are."""
        for module in self.modules():
            if isinstance(module, Transformer) and not all(map(is_initialized, module.parameters())):
                drawn = Transformer(module.config).state_dict()
                for name, parameter in module.named_parameters():
                    if not is_initialized(parameter):
                        parameter.copy_(drawn[name])
                        mark_initialized(parameter)
        super().initialize_weights()

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """The name of an implementation; None is `auto`. Raises ValueError for a name that means none here."""
        name = "auto" if requested_attention is None else requested_attention
        if name not in (*get_args(Impl), *IMPLEMENTATIONS):
            allowed = ", ".join((*get_args(Impl), *IMPLEMENTATIONS))
            raise ValueError(f'Specified `attn_implementation="{name}"` is not supported: it must be one of {allowed}')
        return name

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *given: Any, **named: Any) -> str:
        return self.get_correct_attn_implementation(attn_implementation)


class CheckpointedBlock(Block, GradientCheckpointingLayer):
    """A block whose inside transformers computes again in the backward pass, where that is asked for."""

    def forward(self, *given: Any, **named: Any) -> Hidden:
        return Block.forward(self, *given, **named)


class NSAModel(NSAPreTrainedModel):
    """Token ids [B, T] -> the last hidden states [B, T, hidden_size]: a `Transformer` without its head."""

    def __init__(self, config: NSAConfig) -> None:
        super().__init__(config)
        without_head = config.model_config().model_copy(update={"tie_embeddings": True})
        self.transformer = Transformer(without_head, self.impl)
        for block in self.transformer.blocks:
            block.__class__ = CheckpointedBlock  # the same layer, by a name that transformers knows
        self.gradient_checkpointing = False
        self.post_init()

    @property
    def impl(self) -> Impl:
        """Which implementation serves the branches, as the configuration says."""
        name = implementation_of(self.config)
        return IMPLEMENTATIONS[name] if name in IMPLEMENTATIONS else cast(Impl, name)

    def get_input_embeddings(self) -> nn.Module:
        return self.transformer.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.transformer.embedding = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        past_key_values: Cache | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """The hidden states of input_ids [B, T] or inputs_embeds [B, T, hidden_size] behind what the cache holds.

        attention_mask: [B, past + T], zero for tokens that are left out, whose outputs are zeros. position_ids: what
        the layers count by themselves, or the positions of several sequences in a row, each beginning at 0. use_cache:
        by default as the configuration says, and never while gradients are on. past_key_values: another name of
        cache. Raises ValueError for what the model cannot do (output_attentions, is_causal=False, masks [B, 1, T, S],
        caches of another kind), and for keywords that it does not know.
        """
        refuse_others(others)
        cache = only_cache(cache, past_key_values)
        if others.get("seq_idx") is not None and position_ids is None and others.get("cu_seq_lens_q") is None:
            raise ValueError("seq_idx must come with position_ids or cu_seq_lens_q, which mark the sequences")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds, and not both")
        x: Tensor = self.transformer.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        num_rows, num_columns = x.shape[:2]
        layers = None if cache is None else cache_of(cache, self.config)
        past = None if layers is None else layers[0]
        if past is not None:
            past.require_room(num_columns)
        is_token = new_tokens(attention_mask, num_rows, num_columns, past)
        starts = sequences(position_ids, others.get("cu_seq_lens_q"), is_token, past, (num_rows, num_columns))
        if layers is None and starts is None and self._makes_cache(use_cache):
            cache = DynamicCache(config=self.config)
            layers = cache_of(cache, self.config)
        if starts is not None and (layers is not None or use_cache):
            raise ValueError("sequences packed into a row have no cache: give use_cache=False and no cache")
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if not isinstance(output_hidden_states, bool):
            raise ValueError(f"output_hidden_states must be True, for all, or False, got {output_hidden_states!r}")  # noqa: TRY004
        states = self._prefilled(x, is_token, layers, starts, keeps_all=bool(output_hidden_states))
        answer = BaseModelOutputWithPast(
            last_hidden_state=states[-1],
            hidden_states=tuple(states) if output_hidden_states else None,
            **{CACHE_NAME: cache},
        )
        is_dict = self.config.return_dict if return_dict is None else return_dict
        return answer if is_dict else answer.to_tuple()

    def _makes_cache(self, use_cache: bool | None) -> bool:
        return bool(self.config.use_cache and not torch.is_grad_enabled() if use_cache is None else use_cache)

    def _prefilled(
        self,
        x: Hidden,
        is_token: Tensor | None,
        layers: list[NSACacheLayer] | None,
        starts: CuSeqlens | None,
        *,
        keeps_all: bool,
    ) -> list[Tensor]:
        """As `_computed`; token by token into a cache under NSA_PREFILL_BATCHED=0, equal to rounding."""
        if layers is None or prefill_is_batched():
            return self._computed(x, is_token, layers, starts, keeps_all=keeps_all)
        masks = [None] * x.shape[1] if is_token is None else is_token.split(1, dim=1)
        computed = [
            self._computed(token, mask, layers, None, keeps_all=keeps_all)
            for token, mask in zip(x.split(1, dim=1), masks, strict=True)
        ]
        return [torch.cat(states, dim=1) for states in zip(*computed, strict=True)]

    def _computed(
        self,
        x: Hidden,
        is_token: Tensor | None,
        layers: list[NSACacheLayer] | None,
        starts: CuSeqlens | None,
        *,
        keeps_all: bool,
    ) -> list[Tensor]:
        """What goes into the first block, then what comes out of each, the last normalised; that alone otherwise."""
        num_rows, num_columns = x.shape[:2]
        if starts is not None:
            parts = [one_row(is_token, num_rows, num_columns, x.device)]
        else:
            parts = parts_of(is_token, None if layers is None else layers[0], num_rows, num_columns, x.device)
        rows = [part.rows for part in parts]
        caches = [layer.part_by(rows, self.transformer.config.geometry) for layer in layers or ()]
        states, impl = [x], self.impl
        with added_whole(*(cache for each in caches for cache in each)):
            for number, block in enumerate(self.transformer.blocks):
                cast(Block, block).attention.impl = impl
                held = caches[number] if caches else [None] * len(parts)
                computed = [
                    (part, block(part.of(states[-1]), cache, starts))
                    for part, cache in zip(parts, held, strict=True)
                    if part.num_tokens
                ]
                out = joined(computed, states[-1])
                states = [*states, out] if keeps_all else [out]
            states[-1] = self.transformer.norm(states[-1])
        for layer in layers or ():
            layer.added(num_columns, num_whole_columns(is_token, num_columns))
        return states


class NSAForCausalLM(NSAPreTrainedModel, GenerationMixin):
    """Token ids [B, T] -> logits [B, T, vocab_size], with `generate`: an `NSAModel` and its head.

    With tie_word_embeddings the head's weight is the embedding's. Same seed, same weights as `Transformer`.
    """

    _tied_weights_keys = {"lm_head.weight": "model.transformer.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: NSAConfig) -> None:
        super().__init__(config)
        self.model = NSAModel(config)
        self.lm_head = Head(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.model.set_input_embeddings(value)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        past_key_values: Cache | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits of the token after each, and the loss where there are labels; the rest as `NSAModel.forward`.

        labels: [B, T], the tokens themselves, -100 for those that are not to be predicted; the loss is the mean
        cross-entropy of each from what is before it, or their sum over num_items_in_batch where that is given.
        shift_labels: the same, already the token after each. logits_to_keep: compute the last so many alone, 0 for all,
        or those at the indices given.
        """
        of_loss = {name: others.pop(name) for name in ("shift_labels", "num_items_in_batch") if name in others}
        answer = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=only_cache(cache, past_key_values),
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            return_dict=True,
            **others,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits: Tensor = self.lm_head(answer.last_hidden_state[:, kept])
        loss = None
        if labels is not None or of_loss.get("shift_labels") is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **of_loss)
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=answer.hidden_states,
            **{CACHE_NAME: getattr(answer, CACHE_NAME)},
        )
        is_dict = self.config.return_dict if return_dict is None else return_dict
        return output if is_dict else output.to_tuple()


def refuse_others(others: Mapping[str, Any]) -> None:
    """Raise ValueError for keywords of a forward pass that the model does not know or cannot follow."""
    for name, value in others.items():
        if value is None:
            continue
        if name not in _TAKEN:
            raise ValueError(f"the forward pass has no {name}: {nearest(name, _TAKEN)}")
        if name in ("output_attentions", "output_router_logits") and value:
            raise ValueError(f"{name} must be False: no implementation computes them, got {value}")
        if name == "is_causal" and value is False:
            raise ValueError("is_causal must be True: every token attends to itself and the past alone, got False")
    starts = [others[name] for name in ("cu_seq_lens_q", "cu_seq_lens_k") if others.get(name) is not None]
    if len(starts) == 1 or (starts and not torch.equal(*starts)):
        raise ValueError("cu_seq_lens_q and cu_seq_lens_k must be given both and be equal")
