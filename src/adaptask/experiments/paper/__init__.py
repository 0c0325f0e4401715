"""The tables and figures of the paper, and how to reproduce them."""

TARGET_NAMES = (
    *("table-mini", "table-cifar", "table-compat", "table-strategies", "table-time"),
    *("table-tiered", "figure-hyper", "figure-tsne", "figure-heatmap", "figure-samples"),
    "figure-evolution",
)
"""The keys of `targets.TARGETS`, for checks before torch is imported."""
