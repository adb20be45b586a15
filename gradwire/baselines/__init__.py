"""PyTorch's own data parallelism, with the options of `gradwire train`: the baselines of the strategies."""
