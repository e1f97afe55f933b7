"""`HiSparseNodePolicy`: which nodes, which thresholds, and what may be done about a finding. Cluster scoped.

Nothing is ever done without a policy, and a policy does nothing but say what it would do until dryRun is false.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from hisparse.faults import judged
from hisparse.fields import NodeSelector
from hisparse.nodes.catalogue import Verb
from hisparse.rules import Between, DurationBetween, Form, Rule, Strict, at_path, cel_has
from hisparse.status import Condition, Reported

KIND: Final = "HiSparseNodePolicy"
PLURAL: Final = "hisparsenodepolicies"

ALLOWED_SYSCTLS: Final[Mapping[str, tuple[int, int]]] = {
    "vm.swappiness": (0, 100),
    "vm.zone_reclaim_mode": (0, 0),
    "kernel.numa_balancing": (0, 1),
}
"""By name, the least and the most value that the actuator writes."""

# what holds where a policy names nothing, as its fields below say; not in the schema, so that a release may change it
DEFAULT_STEP_PERCENT: Final = 10
DEFAULT_SYSCTL: Final = "vm.swappiness"
DEFAULT_SYSCTL_VALUE: Final = 10
DEFAULT_CPUFREQ: Final = "performance"
DEFAULT_TTL: Final = "1h"
DEFAULT_MAX_NODES: Final = "10%"
DEFAULT_PER_NODE_PER_HOUR: Final = 1
DEFAULT_PER_NODE_PER_DAY: Final = 3
DEFAULT_BREAKER_PERCENT: Final = 20
DEFAULT_BREAKER_WINDOW: Final = "10m"

LONGEST_TTL: Final = "24h"
"""Nothing stays changed for longer, whatever is asked for."""

LEAST_POWER_PERCENT: Final = 70
"""No cap goes below this share of the card's default limit."""

_NUMBER = Form(r"-?[0-9]{1,18}(?:\.[0-9]{1,6})?", "a number", 'write digits, as in "10" or "0.05"')
_TTL = DurationBetween("1m", LONGEST_TTL, 'set how long a change may stay, for example "1h"')
_WINDOW = DurationBetween("1m", "24h", 'set the time in which faults are counted, for example "10m"')


class TaintEffect(StrEnum):
    """What a taint does to pods that are placed later; running pods stay in every case."""

    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_SCHEDULE = "NoSchedule"


class CheckOverride(Strict):
    """Another threshold, or another patience, for one check."""

    check: Annotated[str, Field(max_length=64)]
    """The check, as in the catalogue."""
    enabled: bool | None = None
    """Judge it at all; true where it is absent."""
    warn: Annotated[str, Field(max_length=32), _NUMBER] | None = None
    """From where it is a warning, in the check's unit."""
    critical: Annotated[str, Field(max_length=32), _NUMBER] | None = None
    """From where it is critical, in the check's unit."""
    enter_polls: Annotated[int, Between(1, 1000, "set how many bad polls in a row make a fault")] | None = None
    """Bad polls in a row that make a fault."""
    leave_polls: Annotated[int, Between(1, 10_000, "set how many good polls in a row end a fault")] | None = None
    """Good polls in a row that end one."""


def _only(verb: Verb, *fields: str) -> Rule:
    """Parameters of one verb are not set for another."""
    has = " || ".join(f"has(self.parameters.{name})" for name in fields)
    given = ", ".join(fields)
    return Rule(
        f'self.verb == "{verb}" || !has(self.parameters) || !({has})',
        f"{given} are parameters of {verb} and the verb is {{verb}}; remove them",
        lambda value: (
            at_path(value, "verb") == verb
            or not any(at_path(value, f"parameters.{name}") is not None for name in fields)
        ),
        field="parameters",
        must=f"{given} with {verb} only",
    )


class RemedyParameters(Strict):
    """How far a remedy goes; each belongs to one verb."""

    step_percent: Annotated[int, Between(1, 30, "set by how many percent of the default a cap is lowered")] | None = (
        None
    )
    """power-cap: percent of the card's default that each step takes off; 10 where it is absent."""
    sysctl: (
        Annotated[
            str,
            Field(max_length=64),
            Rule(
                "self in [" + ", ".join(f'"{name}"' for name in ALLOWED_SYSCTLS) + "]",
                '"{self}" is not a setting that the actuator writes; set one of ' + ", ".join(ALLOWED_SYSCTLS),
                lambda name: name in ALLOWED_SYSCTLS,
                must="one of " + ", ".join(ALLOWED_SYSCTLS),
            ),
        ]
        | None
    ) = None
    """sysctl: the setting; vm.swappiness where it is absent."""
    value: Annotated[int, Between(0, 100, "set the value to write, for example 10")] | None = None
    """sysctl: the value; 10 where it is absent."""
    governor: Annotated[str, Field(max_length=32), Form(r"[a-z_]+", "a governor", 'write "performance"')] | None = None
    """cpufreq: the governor; performance where it is absent and the driver has one."""
    preference: (
        Annotated[str, Field(max_length=32), Form(r"[a-z_]+", "an energy preference", 'write "performance"')] | None
    ) = None
    """cpufreq: the energy performance preference, for drivers that choose frequencies themselves."""


class Remedy(Strict):
    """One thing that may be done, and for which checks."""

    verb: Verb
    """power-cap, sysctl or cpufreq."""
    checks: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=16)] | None = None
    """Checks that may ask for it; those of the catalogue that name the verb where it is absent."""
    parameters: RemedyParameters | None = None
    """How far it goes."""
    ttl: Annotated[str, Field(max_length=32), _TTL[0], _TTL[1]] | None = None
    """It is put back after this long in any case; 1h where it is absent."""

    rules = (
        _only(Verb.POWER_CAP, "stepPercent"),
        _only(Verb.SYSCTL, "sysctl", "value"),
        _only(Verb.CPUFREQ, "governor", "preference"),
    )


class Budget(Strict):
    """How much may be done at once. Putting back uses none of it."""

    max_nodes: (
        Annotated[
            str,
            Field(max_length=8),
            Form(
                r"[1-9][0-9]{0,3}|(?:[1-9][0-9]?|100)%",
                "a number of nodes or a percentage",
                'write "1" or "10%"',
            ),
        ]
        | None
    ) = None
    """Nodes of the pool that may be acted on or tainted at once, at least one; 10% where it is absent."""
    per_node_per_hour: Annotated[int, Between(1, 60, "set how many actions a node may take in an hour")] | None = None
    """Actions of a node in an hour; 1 where it is absent."""
    per_node_per_day: Annotated[int, Between(1, 1000, "set how many actions a node may take in a day")] | None = None
    """Actions of a node in a day; 3 where it is absent."""

    rules = (
        Rule(
            f"!({cel_has('perNodePerHour', 'perNodePerDay')}) || self.perNodePerHour <= self.perNodePerDay",
            "{perNodePerHour} is above perNodePerDay, which is {perNodePerDay}; raise perNodePerDay",
            lambda value: (at_path(value, "perNodePerHour") or 0) <= (at_path(value, "perNodePerDay") or 10**9),  # type: ignore[operator]
            field="perNodePerHour",
            must="perNodePerHour at most perNodePerDay",
        ),
    )


class Breaker(Strict):
    """Stops everything where too many nodes of the pool ask at once; only a person closes it again."""

    percent: Annotated[int, Between(1, 100, "set the share of the pool that trips it")] | None = None
    """Share of the pool with a critical finding; 20 where it is absent."""
    window: Annotated[str, Field(max_length=32), _WINDOW[0], _WINDOW[1]] | None = None
    """Time in which they are counted; 10m where it is absent."""


class HiSparseNodePolicySpec(Strict):
    """What may be done about findings of nodes."""

    node_selector: NodeSelector | None = None
    """Labels of the nodes that it is for; all nodes where it is absent. Of two policies the older one wins."""
    checks: Annotated[list[CheckOverride], Field(max_length=64)] | None = None
    """Thresholds and patience other than the catalogue's."""
    remedies: Annotated[list[Remedy], Field(max_length=16)] | None = None
    """What may be done; nothing where it is absent."""
    taint: TaintEffect | None = None
    """Taint of a node with a critical finding; none where it is absent."""
    budget: Budget | None = None
    """How much at once."""
    breaker: Breaker | None = None
    """When to stop."""
    dry_run: bool = True
    """Only say what would be done. Setting it to true puts back what is in force."""


class PolicyStatus(Reported):
    """What became of a policy, as the operator sees it."""

    observed_generation: int | None = None
    """Generation of the policy that all of this speaks of."""
    selected: int | None = None
    """Nodes that it is in force on."""
    conditions: Annotated[
        list[Condition] | None,
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = None
    """Accepted: whether it can be used, and why not. InForce: on which nodes it is, and where an older one wins.
    BreakerClosed: whether anything may begin, from the Lease of its nodes."""


def parse_policy(raw: Mapping[str, object]) -> HiSparseNodePolicySpec:
    """The spec of a policy, judged as the API server does. Raises SpecErrors with every fault at once."""
    return judged(HiSparseNodePolicySpec, raw, "spec")
