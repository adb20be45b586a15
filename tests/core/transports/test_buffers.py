"""Vectors that are used again: one that was given back has one next user, and few are kept."""

import torch

from gradwire.clusters.remote import _KEPT, Buffers


def test_what_is_given_back_is_taken_once_and_of_many_few_are_kept() -> None:
    buffers = Buffers()
    given = [buffers.take(3, torch.float32) for _ in range(3 * _KEPT)]
    for vector in given:
        buffers.give_back(vector)
    taken = [buffers.take(3, torch.bool), *(buffers.take(3, torch.float32) for _ in given)]
    again = {id(vector) for vector in taken} & {id(vector) for vector in given}
    assert 0 < len(again) <= _KEPT
    assert len({id(vector) for vector in taken}) == len(taken)
    assert taken[0].dtype == torch.bool
