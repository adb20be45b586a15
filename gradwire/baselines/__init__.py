"""PyTorch's own data parallelism, with the options of `gradwire train`: what the strategies are compared with."""
