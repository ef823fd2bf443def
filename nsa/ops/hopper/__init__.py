"""Kernels for Hopper GPUs whose matrix products run while exponentials are taken."""
