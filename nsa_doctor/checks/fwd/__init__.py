"""FWD: properties of a forward pass: causality, batch invariance, determinism, equality with its equations."""
