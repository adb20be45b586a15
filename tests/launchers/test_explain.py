"""Which rank is named as the cause, of several that failed."""

from launchers.failures import Failure, explain

ROLES = ["server", "worker", "worker"]


def waited(kind: str, peer: int, *more: int) -> Failure:
    return Failure(kind, f"waited for {peer}", f"'x' from rank {peer}", (peer, *more))


def text(failures: dict[int, Failure], deaths: dict[int, Failure] | None = None) -> str:
    return str(explain(failures, ROLES, 5.0, deaths))


def test_the_cause_is_the_rank_that_waits_for_nobody() -> None:
    said = text({0: waited("timeout", 1), 1: waited("lost_peer", 2), 2: Failure("busy")})
    assert said.startswith("rank 2 (worker) kept others waiting")
    assert said.endswith(
        "meanwhile rank 0 (server) waited for 'x' from rank 1, rank 1 (worker) waited for 'x' from rank 2"
    )


def test_a_rank_that_nobody_waited_for_is_not_the_cause() -> None:
    assert text({0: waited("timeout", 1), 1: Failure("busy"), 2: Failure("busy")}).startswith(
        "rank 1 (worker) kept others waiting"
    )


def test_of_a_wait_for_any_the_cause_is_found_too() -> None:
    said = text({0: waited("timeout", 1, 2), 1: waited("lost_peer", 0), 2: Failure("busy")})
    assert said.startswith("rank 2 (worker) kept others waiting")


def test_ranks_that_wait_for_each_other_are_told_as_such() -> None:
    assert text({0: waited("timeout", 1), 1: waited("timeout", 0)}).startswith("rank 0 (server) waited 5 s for 'x'")


def test_a_death_is_the_cause_of_what_was_lost_by_it_though_the_rank_was_started_again() -> None:
    deaths = {1: Failure("died", "was killed by SIGKILL")}
    lost = {0: waited("lost_peer", 1), 1: Failure("busy")}
    assert text(lost, deaths).startswith("rank 1 (worker) was killed by SIGKILL; meanwhile rank 0")
    hung = {0: waited("timeout", 1), 1: Failure("busy")}
    assert text(hung, deaths).startswith("rank 1 (worker) kept others waiting")


def test_a_death_that_nobody_suffered_from_is_not_the_cause() -> None:
    deaths = {1: Failure("died", "was killed by SIGKILL")}
    assert text({0: waited("timeout", 2), 2: Failure("busy")}, deaths).startswith("rank 2 (worker) kept others waiting")
