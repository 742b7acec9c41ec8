"""What the tests of the command line share."""

from cli_fixtures import fedspan, private, world

__all__ = ["fedspan", "private", "world"]
