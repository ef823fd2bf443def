"""DST: training runs of several processes, as their heartbeats show them."""
