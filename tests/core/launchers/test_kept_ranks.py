"""Ranks that the tests keep begin each job alike, whatever happened in the job before."""

from torch.distributed import distributed_c10d as c10d

from tests.pools import Pool, rank_here


def count_groups_unlike() -> None:
    c10d._world.group_count = rank_here()


def count_of_groups() -> int:
    return c10d._world.group_count


def test_kept_ranks_count_their_groups_alike_after_one_has_failed_to_make_one() -> None:
    ranks = Pool.running("processes")
    ranks.run(2, count_groups_unlike)
    assert ranks.run(2, count_of_groups) == [0, 0]
