"""What holds of a causal language model however it is fed: prefixes, batches, caches, padding, packing, twins."""
