"""Make crammer_singer.json: logits of Crammer-Singer machines by two solvers that are not ours.

Run, where scikit-learn 1.9 and cvxpy 1.9 are installed (neither is needed by the tests):

    python tests/learners/references/make_crammer_singer.py

Features come from NumPy's legacy generator, whose stream never changes. The logits are those of
cvxpy (Clarabel) on the dual as MetaOptNet writes it, and of scikit-learn's
`LinearSVC(multi_class="crammer_singer", fit_intercept=False)` on the primal, with the same C.
"""

import json
from pathlib import Path

import numpy as np

CASES = [
    {"n_way": 5, "n_shot": n_shot, "size": size, "penalty": penalty}
    for n_shot in (1, 5, 15)
    for size, penalty in ((1.0, 0.1), (0.1, 0.1), (0.5, 1.0))
]


def features(n_way, n_shot, size, n_query=3, n_features=64):
    """Return support features, `(way * shot) x features`, and query features."""
    random = np.random.RandomState(n_shot)
    centers = random.standard_normal((n_way, 1, n_features))
    noise = random.standard_normal((n_way, n_shot, n_features))
    support = np.maximum(0.5 * centers + noise, 0).reshape(-1, n_features)
    query = np.maximum(random.standard_normal((n_query, n_features)), 0)
    return size * support, size * query


def by_cvxpy(support, query, labels, penalty):
    """Return the logits of the dual program."""
    import cvxpy

    targets = np.eye(labels.max() + 1)[labels]
    alpha = cvxpy.Variable(targets.shape)
    objective = 0.5 * cvxpy.sum_squares(support.T @ alpha) - cvxpy.sum(
        cvxpy.multiply(alpha, targets)
    )
    constraints = [alpha <= penalty * targets, cvxpy.sum(alpha, axis=1) == 0]
    accuracy = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
    cvxpy.Problem(cvxpy.Minimize(objective), constraints).solve("CLARABEL", **accuracy)
    return query @ (support.T @ alpha.value)


def by_scikit_learn(support, query, labels, penalty):
    """Return the logits of the primal program."""
    from sklearn.svm import LinearSVC

    machine = LinearSVC(
        multi_class="crammer_singer", fit_intercept=False, C=penalty, tol=1e-12, max_iter=10**7
    )
    return query @ machine.fit(support, labels).coef_.T


def main():
    """Write the references."""
    references = []
    for case in CASES:
        support, query = features(case["n_way"], case["n_shot"], case["size"])
        labels = np.repeat(np.arange(case["n_way"]), case["n_shot"])
        logits = {
            "cvxpy": by_cvxpy(support, query, labels, case["penalty"]),
            "scikit-learn": by_scikit_learn(support, query, labels, case["penalty"]),
        }
        rounded = {name: np.round(values, 8).tolist() for name, values in logits.items()}
        references.append({**case, "logits": rounded})
    path = Path(__file__).with_name("crammer_singer.json")
    lines = ",\n".join(json.dumps(reference) for reference in references)
    path.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
