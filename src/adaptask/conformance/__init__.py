"""Laws that every part must obey, as checks that anybody can run on a part of their own.

from adaptask.conformance import check_sampler
check_sampler(lambda seed: MySampler(n_classes=9, n_way=3, seed=seed))
"""

from adaptask.conformance.samplers import SAMPLER_LAWS, check_sampler

__all__ = ["SAMPLER_LAWS", "check_sampler"]
