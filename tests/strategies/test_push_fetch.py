"""Push and fetch: how stale a push is, by the versions that others have made; scripted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import Downpour, ElasticAveraging
from strategies.asynchronous_server.push_fetch import PushFetch
from tests.strategies.scripted import Act, PushingWorkers, epochs, staleness, start


def served(kind: type[PushFetch], workers: int, acts: list[Act]) -> PushingWorkers:
    """Serve one epoch of what the script pushes."""
    server, transport = kind(), PushingWorkers(workers, acts)
    start(server, transport)
    list(epochs(server, transport, max(1, sum(what == "push" for what, _ in acts))))
    return transport


KINDS: list[type[PushFetch]] = [Downpour, ElasticAveraging]
ACTS = st.lists(st.tuples(st.sampled_from(["push", "fetch"]), st.integers(1, 3)), max_size=40).map(
    lambda acts: [*acts, ("push", 1)]
)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(KINDS), ACTS)
def test_staleness_is_a_count_of_others_pushes(kind: type[PushFetch], acts: list[Act]) -> None:
    missed = dict.fromkeys((1, 2, 3), 0)
    expected: list[tuple[int, int]] = []
    n_pushes = sum(what == "push" for what, _ in acts)
    for what, k in acts:
        if len(expected) == n_pushes:
            break  # the epoch has its samples: no fetch is answered
        if what == "fetch":
            missed[k] = 0
            continue
        expected.append((k, missed[k]))
        missed = {j: count + (j != k) for j, count in missed.items()}
    assert staleness(served(kind, 3, acts)) == expected


def test_a_returned_worker_begins_with_what_it_was_welcomed_with() -> None:
    acts: list[Act] = [("push", 1), ("push", 2), ("die", 1), ("return", 1), ("push", 1), ("push", 2), ("push", 1)]
    assert staleness(served(Downpour, 2, acts)) == [(1, 0), (2, 1), (1, 0), (2, 2), (1, 1)]
