"""How messages get to clients and back."""

from fedspan.engines.dask_cluster import Dask, split_client
from fedspan.engines.inprocess import Faults, InProcess
from fedspan.engines.loopback import Loopback

__all__ = ["Dask", "Faults", "InProcess", "Loopback", "split_client"]
