"""How often and after which waits something is tried again: exponential back-off with full jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tonne.clock import Clock, Deadline
from tonne.errors import Busy, TonneError
from tonne.settings import NetworkSettings


@dataclass(frozen=True, slots=True)
class Backoff:
    """The policy.  Immutable; `tries` makes the counter of one piece of work."""

    attempts: int
    first_s: float
    max_s: float
    retry_after_max_s: float

    @classmethod
    def of(cls, network: NetworkSettings) -> Backoff:
        return cls(network.attempts, network.backoff_first_s, network.backoff_max_s, network.retry_after_max_s)

    def tries(self, clock: Clock, deadline: Deadline) -> Tries:
        return Tries(self, clock, deadline)


class Tries:
    """Counts the failures of one piece of work and waits between them.  Used by one thread."""

    def __init__(self, policy: Backoff, clock: Clock, deadline: Deadline) -> None:
        self._policy = policy
        self._clock = clock
        self._deadline = deadline
        self._failures = 0

    def progressed(self) -> None:
        """Something was achieved: the count starts again, since a budget must not depend on how much there is to do."""
        self._failures = 0

    def failed(self, error: TonneError) -> None:
        """Wait before the next attempt, or raise `error` when there is none.

        There is none when the error is not retryable, the attempts are used up, the other side asks to wait longer
        than the policy allows, the deadline would pass during the wait, or nobody wants the answer any more.
        """
        self._failures += 1
        if not error.retryable or self._failures >= self._policy.attempts:
            raise error
        wait_s = random.uniform(0.0, min(self._policy.max_s, self._policy.first_s * 2.0 ** (self._failures - 1)))
        asked_s = error.fields.get("retry_after_s") if isinstance(error, Busy) else None
        if isinstance(asked_s, (int, float)):
            if asked_s > self._policy.retry_after_max_s:
                raise error
            wait_s = asked_s + wait_s
        left_s = self._deadline.left_s()
        if left_s is not None and wait_s >= left_s:
            raise error
        self._clock.sleep(wait_s, self._deadline.wake)
        if self._deadline.expired():
            raise error
