"""What chosen drafts turn out to be worth, against the estimates they were chosen by."""

from collections.abc import Hashable

PRIOR = 5.0
"""Expected drafts that the absence of a bias is worth."""

FADING = 0.99
"""What is left of older drafts after each step of their group."""

REQUEST_PRIOR, REQUEST_FADING = 4.0, 0.9
"""The same for one request: it is forgotten faster, since text changes faster than traffic."""

LARGEST_FACTOR = 1.5
"""A request whose drafts come true more often than others' is trusted so much more, at most."""


class _Share:
    """Accepted over expected drafts, older ones fading."""

    __slots__ = ("accepted", "expected")

    def __init__(self) -> None:
        self.expected = self.accepted = 0.0

    def add(self, expected: float, accepted: float, fading: float) -> None:
        self.expected = fading * self.expected + expected
        self.accepted = fading * self.accepted + accepted

    def value(self, prior: float) -> float:
        return (prior + self.accepted) / (prior + self.expected)


class ChoiceBias:
    """Discounts of estimates, by group of steps and by request.

    Estimates are right on average, but the best of many estimates are chosen, and these are too high more often than
    too low; the more requests there are to choose from, the more so. A request whose drafts keep failing is discounted
    beyond its group. Everything fades, so that a discount under which nothing is chosen does not stay for ever.
    """

    def __init__(self) -> None:
        self._of_group: dict[Hashable, _Share] = {}
        self._of_request: dict[str, _Share] = {}

    def discount(self, group: Hashable, req_id: str) -> float:
        """Returns what a node's estimate is multiplied with, never above 1.

        Args:
            group: steps that have a bias in common: a strategy at a batch size.
            req_id: the request drafted for.
        """
        return min(1.0, self._group_discount(group) * self._request_factor(req_id))

    def record(self, group: Hashable, outcomes: dict[str, tuple[float, int]]) -> None:
        """Adds one step.

        Args:
            group: of the step.
            outcomes: for each request that was drafted for, the sum of its chosen nodes' estimates before any discount
                and its accepted draft tokens. With nothing chosen, older drafts fade all the same.
        """
        expected = sum(one[0] for one in outcomes.values())
        accepted = sum(one[1] for one in outcomes.values())
        group_discount = self._group_discount(group)
        self._of_group.setdefault(group, _Share()).add(expected, accepted, FADING)
        for req_id, (own_expected, own_accepted) in outcomes.items():
            share = self._of_request.setdefault(req_id, _Share())
            share.add(own_expected * group_discount, own_accepted, REQUEST_FADING)

    def finish(self, req_id: str) -> None:
        """Forgets a request."""
        self._of_request.pop(req_id, None)

    def _group_discount(self, group: Hashable) -> float:
        share = self._of_group.get(group)
        return 1.0 if share is None else min(1.0, share.value(PRIOR))

    def _request_factor(self, req_id: str) -> float:
        share = self._of_request.get(req_id)
        return 1.0 if share is None else min(LARGEST_FACTOR, share.value(REQUEST_PRIOR))
