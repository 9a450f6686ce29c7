"""The engine that is not there: its service looks, decides, and says so once there is work."""

from __future__ import annotations

from collections.abc import Sequence

from lapse.lifecycle.round.engine import EngineWanted
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import Run
from lapse.lifecycle.round.summarise import SummaryReceipt, SummaryRequest


class Asleep:
    """In the place of an `Engine` that costs too much to keep while nothing is due."""

    name = "none"
    can_be_lost = False

    def submit(self, plans: Sequence[RoundPlan]) -> Run[Receipt]:
        raise EngineWanted(f"rounds of {len(plans)} logs are due")

    def summarise(self, requests: Sequence[SummaryRequest]) -> Run[SummaryReceipt]:
        raise EngineWanted(f"{len(requests)} segments are to be looked through")
