"""GRD: gradients: correct, complete, and not overwritten."""
