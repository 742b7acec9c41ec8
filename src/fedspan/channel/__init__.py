"""What happens to arrays between an algorithm and the wire: compression, memory, and later noise and masks."""

from fedspan.channel.memory import delta, error_feedback
from fedspan.channel.pack import pack
from fedspan.channel.quantize import quantize
from fedspan.channel.stage import IDENTITY, Channel, Stage, chain, only

__all__ = ["IDENTITY", "Channel", "Stage", "chain", "delta", "error_feedback", "only", "pack", "quantize"]
