"""A whole federation in one process: the real server's end and the real sites' ends, with memory in place of a network.

Use it to try a job on the folders of several sites, in milliseconds. Requests, replies and checkpoints are the same,
byte for byte, as between machines.

    federation = LoopbackFederation(Path("server"), {"north": Path("north"), "south": Path("south")})
    outcome = federation.carry_out(request)

Each site's folder has a `local/fedspan.toml`, as in its kit; the site obeys it here as it would anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedspan.deployment.approval.admission import Admission
from fedspan.deployment.approval.signed_order import sign_order
from fedspan.deployment.kit_identity import KitIdentity
from fedspan.deployment.run_request import RunRequest
from fedspan.deployment.server_job import Outcome, ServerJob, read_outcome
from fedspan.deployment.site_service import SiteService
from fedspan.engines.loopback import Loopback, Tamper
from fedspan.secure.identity import make_identities


class LoopbackFederation:
    """A server and its sites in this process.

    Parameters:
        folder: The server's own: its checkpoints and ledgers are in `runs`, what a researcher gets in `results`.
        sites: The sites' folders by name. Each has a `local/fedspan.toml`; what the site remembers is in `fedspan`.
        tamper: See `fedspan.engines.Loopback`; it may be changed between requests.
        researcher: The kit with whose key orders are signed; None: they are not, and sites that ask for it refuse.
    """

    def __init__(
        self, folder: Path, sites: Mapping[str, Path], tamper: Tamper | None = None, researcher: Path | None = None
    ) -> None:
        self.folder, self.sites, self.tamper, self.researcher = folder, dict(sites), tamper, researcher

    def place(self, request: RunRequest) -> Path:
        """The folder with the ledger, the model and the outcome of a request."""
        return self.folder / "results" / request.run

    def carry_out(self, request: RunRequest) -> Outcome:
        """Carry out a request as one job, and return its outcome: `done`, and if not, `error` and `input`.

        Sites live as long as the job. A request that was carried out before goes on from its last checkpoint.
        """
        sent = RunRequest.from_json(json.loads(json.dumps(request.to_json())))
        identities = make_identities(self.sites)  # for folders without a FLARE kit's keys
        signed = None if self.researcher is None else sign_order(self.researcher, [sent], list(self.sites))
        services = {
            name: SiteService(name, kit, KitIdentity.find(kit) or identities[name], Admission(kit, signed))
            for name, kit in self.sites.items()
        }
        job = ServerJob(Loopback(services, self.tamper), list(services), self.folder / "runs")
        try:
            job.carry_out(sent, self.place(request))
        finally:
            for service in services.values():
                service.end()
        return read_outcome(self.place(request))
