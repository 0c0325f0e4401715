"""The results of a study in sentences: one per comparison, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from adaptask.report.statistics import MAX_SEEDS, MIN_SEEDS
from adaptask.report.study import NO_VALUE
from adaptask.report.summary import ArmSummary, StudySummary

_NAMES = ("sampler", "learner", "backbone", "dataset", "strategy", "name")
"""Labels whose values say what they are."""
_MAX_NAMED = 5
"""Verdicts at most in the answer to all comparisons."""


def verdicts(summary: StudySummary) -> list[str]:
    """Return a sentence for each arm that has a baseline: the difference and what it means."""
    return [_verdict(summary, found) for found in summary.arms if found.arm.baseline is not None]


def headline(summary: StudySummary) -> str:
    """Return the answer to all comparisons in plain words, with which a page begins.

    A second one follows if tasks within groups were tested too. Of a sweep it is what validation
    chose. Without a baseline nothing was asked, and the answer is empty.
    """
    if summary.study.by_validation:
        return " ".join(choice(summary))
    if all(found.arm.baseline is None for found in summary.arms):
        return ""
    first, within = _headline(summary), summary.within_group
    return first if within is None else f"{first} Within groups: {_headline(within)}"


def choice(summary: StudySummary) -> list[str]:
    """Return which arm validation chooses, in sentences; none if the study does not choose so."""
    if not summary.study.by_validation:
        return []
    best = summary.arms[0]
    if best.validation is None or not best.is_finished:
        return ["No trial has finished, so that validation chooses none."]
    values = ", ".join(f"{name} {text}" for name, text in best.arm.labels.items())
    chosen = (
        f"Chosen by validation: {values}, with a validation accuracy of {best.validation:.2f} %"
    )
    if best.mean is None:
        chosen += ". The dataset has no test classes."
    else:
        chosen += (
            f" and a test accuracy of {best.mean.mean:.2f} %. The test accuracies of the others "
            "decide nothing: the highest of many is too high."
        )
    n_equal = sum(arm.is_finished and arm.validation == best.validation for arm in summary.arms)
    if n_equal == 1:
        return [chosen]
    return [
        chosen,
        f"{n_equal} trials are equally good in validation; the first of them was taken.",
    ]


def _headline(summary: StudySummary) -> str:
    compared = [found for found in summary.arms if found.difference is not None]
    if not compared:
        return "No two arms could be compared seed by seed."
    most = max(len(found.difference.seeds) for found in compared if found.difference)
    if most < MIN_SEEDS:
        few = "One seed is" if most == 1 else f"{most} seeds are"
        return f"{few} too few to tell: at least {MIN_SEEDS} are needed.{_more_seeds(compared)}"
    enough = [found for found in compared if found.has_enough_seeds]
    significant = [found for found in enough if found.is_significant]
    others = [found for found in enough if not found.is_significant]
    too_few = [found for found in compared if not found.has_enough_seeds]
    sentences = [_plain_verdict(summary, found) for found in significant[:_MAX_NAMED]]
    if len(significant) > _MAX_NAMED:
        sentences.append(f"In all, {len(significant)} differences are significant.")
    if all(found.p is None for found in enough):
        sentences.append("Nothing could be tested: every seed differs by the same amount.")
    elif not significant:
        shown = f"No difference is shown with {most} seeds: what was measured may be chance."
        sentences.append(shown + _more_seeds(others))
    elif others:
        sentences.append(f"No difference is shown for {_all_in_words(summary, others)}.")
    if too_few:
        sentences.append(f"Too few seeds for {_all_in_words(summary, too_few)}.")
    return " ".join(sentences)


def _all_in_words(summary: StudySummary, arms: Sequence[ArmSummary]) -> str:
    """Return the names of some arms, or how many they are if that is shorter."""
    if len(arms) > _MAX_NAMED:
        return f"{len(arms)} others"
    words = (in_words(summary, found) for found in arms)
    return ", ".join(f"{ours} with {context}" if context else ours for ours, _, context in words)


def _plain_verdict(summary: StudySummary, found: ArmSummary) -> str:
    ours, theirs, context = in_words(summary, found)
    points = abs(found.difference.mean) if found.difference else 0.0
    better = f"{ours} is {short_verdict(found)} than {theirs}"
    return f"{better}{f' with {context}' if context else ''}, by {points:.2f} points."


def _more_seeds(compared: Sequence[ArmSummary]) -> str:
    """Return a sentence about the seeds that would tell; empty if nothing could be tested."""
    needed = [
        found.seeds_needed or math.inf
        for found in compared
        if found.p is not None and not found.note  # more seeds would not help what it says
    ]
    if not needed or max(needed) == MIN_SEEDS:
        return ""
    few, many = min(needed), max(needed)
    if few > MAX_SEEDS:
        seeds = f"more than {MAX_SEEDS}"
    elif many > MAX_SEEDS:
        seeds = f"between {few} and more than {MAX_SEEDS}"
    else:
        seeds = f"about {few}" if few == many else f"between {few} and {many}"
    which = "a difference" if len(needed) == 1 else "differences"
    return f" It takes {seeds} seeds to detect {which} of this size."


def short_verdict(found: ArmSummary) -> str:
    """Return the verdict on an arm in a word or two, for a table; empty without a comparison.

    `better` and `worse` mean significantly so. Differences with `one seed` or `no spread` cannot be
    tested; with `too few seeds` there is a test, but no verdict.
    """
    if found.difference is None:
        return ""
    if len(found.difference.seeds) == 1:
        return "one seed"
    if found.p is None:
        return "no spread"
    if not found.has_enough_seeds:
        return "too few seeds"
    if not found.is_significant:
        return "not significant"
    return "better" if found.difference.mean > 0 else "worse"


def missing_runs(summary: StudySummary) -> list[str]:
    """Return sentences about runs that failed, have not finished, or could not be tested."""
    sentences = []
    for found in summary.arms:
        for reason, seeds in _by_reason(found.failures).items():
            sentences.append(f"{found.arm.name}, {_seeds(seeds)} failed: {reason}")
        for reason, seeds in _by_reason(found.unfinished).items():
            sentences.append(f"{found.arm.name}, {_seeds(seeds)} not finished: {reason}.")
        if found.untested:
            reason = "its dataset has no test classes"
            sentences.append(f"{found.arm.name}, {_seeds(found.untested)} not tested: {reason}.")
    return sentences


def _verdict(summary: StudySummary, found: ArmSummary) -> str:
    ours, theirs, context = in_words(summary, found)
    tasks = " within groups" if summary.tasks == "within-group" else ""
    verdict = (
        f"{ours} against {theirs}{f' with {context}' if context else ''}{tasks}: "
        f"{_result(summary, found, ours, theirs)}."
    )
    if (within := summary.within_group) is not None:
        result = _result(within, within.arm(found.arm.name), ours, theirs)
        verdict += f" Within groups: {result}."
    return verdict


def _result(summary: StudySummary, found: ArmSummary, ours: str, theirs: str) -> str:
    difference, p = found.difference, found.p
    if difference is None:
        return "no seed has finished in both"
    n, points = len(difference.seeds), f"{signed(difference.mean)} points"
    if n == 1:
        return f"{points}; one seed says nothing about whether that is more than chance"
    if p is None and signed(difference.mean) == "+0.00":
        return f"the same accuracy with each of {n} seeds; there is nothing to test"
    if p is None:
        return f"{points} with each of {n} seeds; without any spread there is no test"
    low, high = difference.low or 0.0, difference.high or 0.0
    equals = "" if p < 0.001 else "= "
    correction = f" (Holm, {summary.n_tests} comparisons)" if summary.n_tests > 1 else ""
    figures = (
        f"{points} [{signed(low)}, {signed(high)}], p {equals}{p_value(p)}{correction}, {n} seeds"
    )
    if found.is_significant:
        return f"{figures}: {ours} is {short_verdict(found)} than {theirs}"
    if not found.has_enough_seeds:
        needed = found.seeds_needed
        more = "" if needed == MIN_SEEDS else _seeds_to_detect(found)
        return f"{figures}: too few seeds for a verdict, {MIN_SEEDS} are needed{more}"
    alone = (
        f" (the interval, of this comparison alone, excludes 0; among {summary.n_tests} "
        "comparisons that also happens by chance)"
        if low > 0 or high < 0
        else ""
    )
    least = found.detectable or 0.0
    unseen = f"one below about {least:.{0 if least >= 10 else 1}f} points"
    return (
        f"{figures}: no significant difference{alone}; {unseen} would not have been detected "
        f"reliably{_seeds_to_detect(found)}"
    )


def _seeds_to_detect(found: ArmSummary) -> str:
    if found.note:
        return ""
    needed = found.seeds_needed
    seeds = f"more than {MAX_SEEDS}" if needed is None else f"about {needed}"
    return f"; it takes {seeds} seeds to detect a difference of this size"


def in_words(summary: StudySummary, found: ArmSummary) -> tuple[str, str, str]:
    """Return an arm, its baseline and what they have in common, in words.

    What all arms of the study have in common is left out.
    """
    labels = found.arm.labels
    baseline = summary.arm(found.arm.baseline or "").arm.labels
    differing = [key for key in labels if labels[key] != baseline[key]]
    shared = [key for key in summary.study.varying if key not in differing]
    return (
        named(labels, differing) or "the arm",
        named(baseline, differing) or "the baseline",
        named(labels, shared),
    )


def _by_reason(reasons: Mapping[int, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for seed, reason in reasons.items():
        found.setdefault(reason, []).append(seed)
    return found


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def signed(points: float) -> str:
    """Return a difference with its sign.

    >>> signed(1.2), signed(-0.001)
    ('+1.20', '+0.00')
    """
    return f"{points:+.2f}".replace("-0.00", "+0.00")


def p_value(p: float) -> str:
    """Return a p-value for printing.

    >>> p_value(0.6123), p_value(0.0123), p_value(0.0001)
    ('0.61', '0.012', '< 0.001')
    """
    if p < 0.001:
        return "< 0.001"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.3f}"


def named(labels: Mapping[str, str], keys: Iterable[str]) -> str:
    """Return labels as words, with their keys unless they are names.

    >>> labels = {"learner": "maml", "shots": "5", "alpha": "-", "tau": "0.5"}
    >>> named(labels, labels)
    'maml, 5-shot, tau 0.5'
    """

    def word(key: str) -> str:
        value, counted = labels[key], key.removeprefix("n_").removesuffix("s")
        if counted in ("shot", "way"):
            return f"{value}-{counted}"
        return value if key in _NAMES else f"{key} {value}"

    return ", ".join(word(key) for key in keys if labels[key] not in ("", NO_VALUE))
