"""A plain Llama: rotary positions, grouped queries, RMSNorm; with its decode cache."""

from tests.gallery.hosts.llama import Llama, next_token_loss, subject, train_step


def make():
    return subject(Llama, __name__, loss=next_token_loss, train_step=train_step)
