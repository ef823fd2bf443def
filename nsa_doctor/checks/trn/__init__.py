"""TRN: training runs, as what they leave in their folder shows them."""
