"""A number of rows that was released with noise, and how sure one can be of it."""

from __future__ import annotations

from dataclasses import dataclass

_SAID = 2.0  # deviations that are said: the true number is within them in 95 of 100 runs
_SURE = 4.0  # deviations beyond which there is no doubt: noise goes further in 3 of 100,000 runs
_VAGUE = 0.2  # a part that is not known any better than this is not known


@dataclass(frozen=True)
class NoisedCount:
    """About how many there are, and the standard deviation of the noise in it; 0: it is exact."""

    value: float
    deviation: float

    @property
    def hidden(self) -> bool:
        """Whether the noise is so large that the number says next to nothing."""
        return self.value < _SURE * self.deviation

    @property
    def least(self) -> float:
        """There are at least so many, beyond doubt."""
        return max(self.value - _SURE * self.deviation, 0.0)

    @property
    def most(self) -> float:
        """There are at most so many, beyond doubt."""
        return max(self.value, 0.0) + _SURE * self.deviation

    def describe(self, noun: str) -> str:
        """So many things in words: "1,200 rows", "about 1,200 rows (noised, ± 30)"."""
        if not self.deviation:
            return f"{self.value:,.0f} {noun}"
        if self.hidden:
            return f"{noun} whose number the noise hides ({self.figure()})"
        return f"about {self.value:,.0f} {noun} (noised, ± {self._margin()})"

    def figure(self) -> str:
        """The number alone: "1,200", "1,200 ± 30"."""
        return f"{self.value:,.0f} ± {self._margin()}" if self.deviation else f"{self.value:,.0f}"

    def _margin(self) -> str:
        return f"{max(float(f'{_SAID * self.deviation:.2g}'), 1.0):,.0f}"

    def describe_part(self, part: NoisedCount, what: str) -> str:
        """Which part of these things is `what`, in words."""
        share = min(max(part.value / self.value, 0.0), 1.0) if self.value > 0 else 0.0
        margin = _SAID * (part.deviation + share * self.deviation) / max(self.value, 1.0)
        if self.hidden or margin >= _VAGUE:
            return f"how many of them are {what} is hidden by the noise"
        return f"about {share:.0%} of them (noised, ± {margin:.0%}) are {what}"
