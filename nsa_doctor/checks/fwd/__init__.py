"""FWD: what a forward pass owes its caller."""
