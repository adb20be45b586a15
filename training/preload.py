"""Imported once by the fork server, so that no rank pays for it: everything a rank imports, now or lazily.

Making a first optimizer loads hundreds of torch's modules, a second of work.
"""

import torch

import training

__all__ = ["training"]

torch.optim.SGD([torch.zeros(1)], lr=0.1)
