"""NVIDIA FLARE at a site: the object that a job names there; `operations/flare_server.py` has the server's.

A job carries no code: it names these two classes, which every site has installed, and requests in plain data. Arrays
travel as safetensors blobs: inline up to some size, above that FLARE lets the receiver download them in pieces.
"""

from __future__ import annotations

from pathlib import Path

from nvflare.collab import collab

from fedspan.deployment.approval.admission import Admission
from fedspan.deployment.approval.signed_order import SignedOrder
from fedspan.deployment.operations.flare_process import Blob, do_without_torch, end_with_parent, unwrap_blob, wrap_blob
from fedspan.deployment.site_service import SiteService

do_without_torch()


class FlareClient:
    """One site in one job: lives as long as the job's process there."""

    def __init__(self, signed: dict[str, str] | None = None) -> None:
        self.service: SiteService | None = None
        self.signed = signed  # the order that came with the job; the site verifies it

    @collab.init
    def begin(self) -> None:
        end_with_parent()
        kit = Path(collab.workspace.get_site_config_dir()).parent
        signed = None if self.signed is None else SignedOrder.from_json(self.signed)
        self.service = SiteService(collab.site_name, kit, admission=Admission(kit, signed, required=True))

    @collab.final
    def finish(self) -> None:
        if self.service is not None:
            self.service.end()

    @collab.publish
    def describe(self, asked: str) -> str:
        return self._service().describe(asked)

    @collab.publish
    def open(self, start: str) -> str:
        return self._service().open(start)

    @collab.publish
    def exchange(self, blob: Blob, kept: int) -> Blob:
        question = unwrap_blob(blob)
        if not isinstance(question, bytes):
            raise TypeError("a question must be bytes")
        return wrap_blob(self._service().exchange(question, kept))

    def _service(self) -> SiteService:
        if collab.caller != "server":
            raise PermissionError("only the server may ask a site")
        if self.service is None:
            raise RuntimeError("the site is not ready")
        return self.service
