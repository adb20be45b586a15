"""No server: gradients are summed, and all ranks take the same step."""
