"""Fair order of request groups, such as the answers to a prompt: groups run round-robin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from woolly.engine.request import Request


def requests_in_turn(waiting: Sequence[Request], running: Sequence[Request], *, is_full: bool) -> list[Request]:
    """Return waiting requests by priority, then round-robin over groups, starting with groups without running requests.

    If `is_full`, a request can only run by preempting another one.
    """
    places = Counter(request.group for request in running)
    if is_full and len(running) == len(places):
        return []  # no group has a request to preempt
    turns: dict[Request, int] = {}
    for request in waiting:
        turns[request] = places[request.group]
        places[request.group] += 1
    return sorted(turns, key=lambda request: (-request.priority, turns[request]))


def request_to_displace(running: Sequence[Request], request: Request) -> Request | None:
    """Return the last request of the largest group if it has several, and the group of `request` has none running."""
    places = Counter(other.group for other in running)
    others = [other for other in running if places[other.group] > 1 and other.priority <= request.priority]
    if places[request.group] or not others:
        return None
    largest = max(places[other.group] for other in others)
    return [other for other in others if places[other.group] == largest][-1]
