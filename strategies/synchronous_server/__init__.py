"""Servers that wait: all workers of a step, or all but the slowest, take part in each update."""
