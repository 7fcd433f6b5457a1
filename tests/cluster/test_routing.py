"""The router, without processes and without a clock."""

from woolly.cluster import Router

PAGE = 32


def fleet(n=2, **options):
    router = Router(PAGE)
    for i in range(n):
        router.joined(f"r{i}", 0.0, **options)
    return router


def give(router, pages, now=0.0, n_tokens=None, **options):
    n_tokens = len(pages) * PAGE + 1 if n_tokens is None else n_tokens
    choice = router.choose(pages, n_tokens, now, **options)
    return choice, router.started(choice, pages, n_tokens, now)


def end(router, ticket, now):
    router.answering(ticket, now)
    router.finished(ticket, now)


def text(name, n):
    """Names of n pages; those of one name begin alike."""
    return [(name, i) for i in range(n)]


def test_no_replica_is_chosen_without_replicas():
    assert Router().choose([], 1, 0.0) is None


def test_equal_replicas_take_turns():
    router = fleet(3)
    chosen = []
    for now in range(6):
        choice, ticket = give(router, [], now, n_tokens=1)
        chosen.append(choice.replica)
        end(router, ticket, now)
    assert chosen == ["r0", "r1", "r2"] * 2


def test_conversation_returns_to_its_cache():
    router = fleet(3)
    for name in "abc":
        first, ticket = give(router, text(name, 20))
        end(router, ticket, 1.0)
        again, ticket = give(router, text(name, 24), 1.0)
        end(router, ticket, 2.0)
        assert (again.replica, again.cached_tokens, again.reason) == (first.replica, 20 * PAGE, "prefix")


def test_cached_prefix_does_not_justify_any_wait():
    router = fleet(2, rate=100.0)
    busy, _ = give(router, text("a", 10))
    # Its prompt of 321 tokens takes 3.2 seconds: those who find 6 pages there wait longer than they would compute.
    choice, _ = give(router, text("a", 6))
    assert choice.replica != busy.replica and choice.reason == "load"
    # When the work is almost done, the cache is worth the wait.
    choice = router.choose(text("a", 10), 10 * PAGE + 1, 3.1)
    assert choice.replica == busy.replica and choice.reason == "prefix"


def test_requests_with_a_common_prefix_do_not_all_go_to_one_replica():
    router = fleet(4, rate=100.0)
    counts = {}
    for i in range(64):
        choice, _ = give(router, [("same", 0), *text(i, 30)])
        counts[choice.replica] = counts.get(choice.replica, 0) + 1
    assert set(counts.values()) == {16}


def test_full_replica_waits_for_answers_to_end():
    router = fleet(2, n_parallel=2)
    tickets = []
    for _ in range(2):
        choice = router.choose(text("a", 1), PAGE + 1, 0.0, without={"r1"})
        tickets.append(router.started(choice, text("a", 1), PAGE + 1, 0.0))
    for ticket in tickets:
        router.answering(ticket, 0.1)
    assert router.choose(text("a", 1), PAGE + 1, 0.1).replica == "r1"
    router.finished(tickets[0], 0.2)
    assert router.choose(text("a", 1), PAGE + 1, 0.2).replica == "r0"


def test_pages_are_evicted_from_the_end_and_disk_is_slower_than_memory():
    router = fleet(1, n_pages=4, n_disk_pages=4, rate=100.0, disk_rate=1000.0)
    for name in "ab":
        _, ticket = give(router, text(name, 4))
        end(router, ticket, 2.0)
    in_memory, on_disk = (router.choose(text(name, 4), 4 * PAGE + 1, 9.0) for name in "ba")
    assert in_memory.cached_tokens == on_disk.cached_tokens == 4 * PAGE
    assert on_disk.seconds > in_memory.seconds
    _, ticket = give(router, text("c", 2), 9.0)
    end(router, ticket, 9.0)
    assert router.choose(text("b", 4), 4 * PAGE + 1, 9.0).cached_tokens == 4 * PAGE
    assert router.choose(text("a", 4), 4 * PAGE + 1, 9.0).cached_tokens == 2 * PAGE


def test_last_prompt_token_is_always_computed():
    router = fleet(1)
    _, ticket = give(router, text("a", 2), n_tokens=2 * PAGE)
    end(router, ticket, 1.0)
    assert router.choose(text("a", 2), 2 * PAGE, 1.0).cached_tokens == 2 * PAGE - 1


def test_replica_measured_slower_gets_less():
    router = fleet(2, rate=100.0)
    for now in range(0, 400, 20):
        choice, ticket = give(router, text(now, 10), float(now))
        end(router, ticket, now + (16.0 if choice.replica == "r0" else 1.0))
    chosen = set()
    for now in range(400, 480, 20):
        choice, ticket = give(router, text(now, 10), float(now))
        chosen.add(choice.replica)
        end(router, ticket, now + 1.0)
    assert chosen == {"r1"}


def test_leaving_replica_gets_nothing_and_lost_replica_keeps_nothing():
    router = fleet(2)
    first, ticket = give(router, text("a", 8))
    router.closed(first.replica)
    assert router.choose(text("a", 8), 8 * PAGE + 1, 0.0).replica != first.replica
    assert router.n_open(first.replica) == 1 and first.replica not in router.replicas
    router.lost(first.replica)
    end(router, ticket, 1.0)  # late, and without effect
    router.joined(first.replica, 1.0)
    assert router.choose(text("a", 8), 8 * PAGE + 1, 1.0).cached_tokens == 0
    assert router.n_open(first.replica) == 0


def test_exclusion_is_a_preference():
    router = fleet(2)
    assert router.choose([], 1, 0.0, without={"r0"}).replica == "r1"
    router.lost("r1")
    assert router.choose([], 1, 0.0, without={"r0"}).replica == "r0"


def test_request_cancelled_before_its_first_token_is_no_longer_pending():
    router = fleet(1, rate=100.0)
    idle = router.choose([], 65, 0.0).seconds
    _, ticket = give(router, text("a", 100))
    assert router.choose([], 65, 0.0).seconds > idle
    router.finished(ticket, 0.0)
    assert router.choose([], 65, 0.0).seconds == idle
