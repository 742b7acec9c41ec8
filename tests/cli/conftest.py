"""What the tests of the command line share."""

from cli_fixtures import fedspan, world

__all__ = ["fedspan", "world"]
