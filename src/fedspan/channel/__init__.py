"""What happens to arrays between an algorithm and the wire: compression and memory."""

from fedspan.channel.memory import delta
from fedspan.channel.pack import pack
from fedspan.channel.quantize import quantize
from fedspan.channel.stage import IDENTITY, Channel, Stage, chain, only

__all__ = ["IDENTITY", "Channel", "Stage", "chain", "delta", "only", "pack", "quantize"]
