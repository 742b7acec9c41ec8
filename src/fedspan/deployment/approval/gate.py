"""In FLARE's queue: a job waits until this site would let it run, and its researcher reads why it does not.

FLARE asks each site's resource manager before it deploys a job; this one is put in its place by `tighten`. It keeps
no resources. It runs in the process of the site, which it must never end.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.resource_manager_spec import ResourceManagerSpec

from fedspan._foreign import PrintableLog
from fedspan.deployment.approval.admission import Admission
from fedspan.deployment.approval.signed_order import SignedOrder
from fedspan.deployment.flare_job import SIGNED
from fedspan.deployment.membership.removals import REMOVAL_NOTICE, REMOVALS_TAKEN, take_removals
from fedspan.deployment.operations.site_facts import describe_site
from fedspan.deployment.policy import Policy
from fedspan.deployment.site_rules.book import Book
from fedspan.deployment.site_rules.pause import Pause
from fedspan.errors import FedspanError, PolicyRefusal

_GATE_LOG = logging.getLogger("fedspan.gate")
_GATE_LOG.addFilter(PrintableLog())


def ask_gate(kit: Path, requirement: object, job: str) -> tuple[bool, str]:
    """Whether a job may be deployed here now, and if not, why; for the researcher, so without anything of the data."""
    try:
        if isinstance(requirement, dict) and REMOVAL_NOTICE in requirement:  # the coordinator's word on who was removed
            removals = take_removals(kit, requirement[REMOVAL_NOTICE])
            if removals is not None:
                act = f"noted list {removals.number} of removed names: {removals.names}"
                Book(kit).write("administrator", act=act)
            return False, REMOVALS_TAKEN
        signed = requirement.get(SIGNED) if isinstance(requirement, dict) else None
        if signed is None:
            raise PolicyRefusal("refused: this site takes jobs of fedspan only, with a signed order.")
        Pause(kit).check_running()
        admission = Admission(kit, SignedOrder.from_json(signed), required=True)
        order = admission.admit(Policy.read(kit), job)
    except PolicyRefusal as error:
        words = str(error)
        return False, words if words.startswith(("waiting", "refused")) or error.passing else f"refused: {words}"
    except FedspanError as error:
        _GATE_LOG.error("job %s cannot be looked at: %s", job, error)
        return False, "refused: this site cannot look at the job; its log says why."
    return True, "" if order is None else order.digest[:16]


class SiteGate(ResourceManagerSpec, FLComponent):  # type: ignore[misc]
    """The resource manager of a site's kit."""

    def check_resources(self, resource_requirement: dict[str, object], fl_ctx: FLContext) -> tuple[bool, str]:
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT))
        return ask_gate(kit, resource_requirement, str(fl_ctx.get_prop(FLContextKey.CURRENT_JOB_ID, "")))

    def cancel_resources(self, resource_requirement: dict[str, object], token: str, fl_ctx: FLContext) -> None: ...

    def allocate_resources(
        self, resource_requirement: dict[str, object], token: str, fl_ctx: FLContext
    ) -> dict[str, object]:
        return {}

    def free_resources(self, resources: dict[str, object], token: str, fl_ctx: FLContext) -> None: ...

    def report_resources(self, fl_ctx: FLContext) -> str:
        """Answer `fedspan federation status`; as text, because FLARE would make Python's own of a dictionary."""
        return json.dumps(describe_site(Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT))))
