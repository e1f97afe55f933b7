"""The judge of the node agent: a reading, those before it and a ledger give findings. Pure: no I/O and no clock."""

from hisparse_agent.judge.judge import Judgement, judge, once
from hisparse_agent.judge.ledger import Ledger

__all__ = ["Judgement", "Ledger", "judge", "once"]
