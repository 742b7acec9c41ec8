"""The one import of torch. It is optional, so it is loaded when it is first needed: a server goes without it."""

from __future__ import annotations

from types import ModuleType

from fedspan.errors import MissingExtraError


def import_torch(purpose: str = "a network") -> ModuleType:
    """torch, or a refusal that says how to install it."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError(purpose, "deep") from None
    return torch
