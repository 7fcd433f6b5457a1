"""Order in which groups of requests, such as the answers to one prompt, are admitted: round-robin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from woolly.engine.request import Request


def requests_in_turn(waiting: Sequence[Request], running: Sequence[Request], *, is_full: bool) -> list[Request]:
    """Return waiting requests by priority, then requests of groups that have no running request first.

    `is_full`: a further request runs only if it preempts another.
    """
    places = Counter(request.group for request in running)
    if is_full and len(running) == len(places):
        return []  # no group can be preempted
    turns: dict[Request, int] = {}
    for request in waiting:
        turns[request] = places[request.group]
        places[request.group] += 1
    return sorted(turns, key=lambda request: (-request.priority, turns[request]))


def request_to_displace(running: Sequence[Request], request: Request) -> Request | None:
    """Return the last request of the largest group, if it runs several and the given request's group none."""
    places = Counter(other.group for other in running)
    others = [other for other in running if places[other.group] > 1 and other.priority <= request.priority]
    if places[request.group] or not others:
        return None
    largest = max(places[other.group] for other in others)
    return [other for other in others if places[other.group] == largest][-1]
