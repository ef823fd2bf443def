"""DAT: data, as the batches that training gets show it."""
