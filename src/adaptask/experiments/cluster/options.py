"""Where the runs of a study are made, as the command line says it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from adaptask.arguments import check_integer
from adaptask.errors import ArgumentError

if TYPE_CHECKING:
    from adaptask.experiments.cluster.ray_cluster import RayCluster


@dataclass(frozen=True)
class ClusterOptions:
    """Where runs are made."""

    cluster: Literal["ray"] | None = None
    """Make the runs as tasks of Ray, on this machine or on all those of a cluster."""
    ray_address: Annotated[str | None, arg(metavar="ADDRESS")] = None
    """Of a cluster that runs, such as 10.0.0.1:6379, or auto; by default Ray is started here."""
    storage: Annotated[str | None, arg(metavar="URL")] = None
    """Where runs are kept if the machines share no folder: a URL such as s3://bucket/study."""
    gpus_per_run: Annotated[float | None, arg(metavar="FLOAT")] = None
    """A whole GPU, 1, or a share of one; by default 1 where the cluster has any, on a CPU none."""
    retries: int = 3
    """How often a run whose worker has died goes on from its checkpoint."""

    def open(self) -> RayCluster | None:
        """Return what makes the runs; None where this machine does without Ray.

        Raises:
            ArgumentError: If a value cannot be used, or plays no part.
        """
        if self.cluster is None:
            for field in fields(self):
                if getattr(self, field.name) != field.default:
                    flag = f"--{field.name.replace('_', '-')}"
                    raise ArgumentError(f"{flag} plays no part without --cluster ray.")
            return None
        check_integer("retries", self.retries, low=0)
        if self.gpus_per_run is not None and not 0 <= self.gpus_per_run <= 1:
            raise ArgumentError(
                f"gpus_per_run must be between 0 and 1, as a run uses one GPU; got "
                f"{self.gpus_per_run}."
            )
        from adaptask.experiments.cluster.ray_cluster import RayCluster

        return RayCluster(self)
