"""How figures and labels are written, in tables and sentences alike."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from adaptask.report.statistics import MeanInterval, PairedDifference
from adaptask.report.study import Published


def signed(points: float) -> str:
    """Return a difference with its sign.

    >>> signed(1.2), signed(-0.001)
    ('+1.20', '+0.00')
    """
    return f"{points:+.2f}".replace("-0.00", "+0.00")


def p_value(p: float) -> str:
    """Return a p-value as it is printed.

    >>> p_value(0.6123), p_value(0.0123), p_value(0.0001)
    ('0.61', '0.012', '< 0.001')
    """
    if p < 0.001:
        return "< 0.001"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.3f}"


def mean_text(mean: MeanInterval | None) -> str:
    """Return a mean with its interval; empty where there is none.

    >>> mean_text(MeanInterval(54.871, 0.72, 3, 1000, True))
    '54.87 ± 0.72'
    """
    if mean is None:
        return ""
    return f"{mean.mean:.2f}" + ("" if mean.half_width is None else f" ± {mean.half_width:.2f}")


def difference_text(difference: PairedDifference | None) -> str:
    """Return a difference with its interval, where it has one; empty where there is none."""
    if difference is None:
        return ""
    low, high = difference.low, difference.high
    interval = "" if low is None or high is None else f" [{signed(low)}, {signed(high)}]"
    return signed(difference.mean) + interval


def milliseconds(seconds: float | None) -> str:
    """Return a time in milliseconds, to three figures or more; empty if it is not known.

    >>> milliseconds(0.0012345), milliseconds(0.0123), milliseconds(1.5)
    ('1.23', '12.3', '1500')
    """
    if seconds is None:
        return ""
    value = 1000 * seconds
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def printed(published: Published | None) -> str:
    """Return an accuracy as a paper prints it: mean and interval to the same number of decimals.

    >>> printed(Published(55.0, 1.0)), printed(Published(68.2, 0.66)), printed(Published(61.9))
    ('55.0 ± 1.0', '68.20 ± 0.66', '61.9')
    """
    if published is None or published.accuracy is None:
        return ""
    parts = [value for value in (published.accuracy, published.interval) if value is not None]
    decimals = max(len(repr(float(value)).partition(".")[2]) for value in parts)
    return " ± ".join(f"{value:.{decimals}f}" for value in parts)


def printed_factor(arm: Published | None, baseline: Published | None) -> str:
    """Return how many times as long as its baseline an arm takes by a paper; empty if unknown."""
    if arm is None or baseline is None or not arm.seconds or not baseline.seconds:
        return ""
    return f"{arm.seconds / baseline.seconds:.3f}"


def named(labels: Mapping[str, str], keys: Iterable[str]) -> str:
    """Return labels as words; a number or a truth value needs to be told what it is of.

    >>> named({"learner": "maml", "shots": "5", "alpha": "-"}, ["learner", "shots", "alpha"])
    'maml, shots 5'
    """

    def word(key: str) -> str:
        value = labels[key]
        bare = value.lower() not in ("true", "false") and any(c.isalpha() for c in value)
        return value if bare else f"{key} {value}"

    return ", ".join(word(key) for key in keys if labels[key] not in ("", "-"))


def plain(text: str) -> str:
    """Return a text on one line, without characters that steer a terminal or are no Unicode.

    >>> plain("a" + chr(10) + "b" + chr(27) + "[31m")
    'a b [31m'
    """
    kinds = {"Cc": " ", "Zl": " ", "Zp": " ", "Cs": "\ufffd"}
    return "".join(kinds.get(unicodedata.category(c), c) for c in text)
