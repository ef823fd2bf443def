"""GRD: what a backward pass owes the forward pass it belongs to."""
