"""Decoding one token of every row: memory whose length stands on the device, and kernels that read it there."""
