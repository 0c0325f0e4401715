"""Laws that every sampler and learner must obey, as checks that you can run on your own.

In short:

    from adaptask.conformance import check_learner, check_sampler

    check_sampler(lambda seed: MySampler(n_classes=9, n_way=3, seed=seed))
    check_learner(lambda seed: MyLearner(), image_shape=(1, 16, 16))
"""

from adaptask.conformance.learners import LEARNER_LAWS, LearnerSubject, check_learner
from adaptask.conformance.samplers import SAMPLER_LAWS, check_sampler

__all__ = ["LEARNER_LAWS", "SAMPLER_LAWS", "LearnerSubject", "check_learner", "check_sampler"]
