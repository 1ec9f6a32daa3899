"""The same work in several places: here, in local processes, on a Ray cluster. Results come as they are done."""

from paceline.scale.local import map_here, map_in_processes
from paceline.scale.ray_cluster import map_on_ray

__all__ = ["map_here", "map_in_processes", "map_on_ray"]
