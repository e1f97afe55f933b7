"""What becomes of a pod on a simulated node: kwok Stage objects, chosen by the pod's annotations.

`testenv.hisparse.dev/outcome` is one of OUTCOMES; without it a pod is Ready at once. An annotation put on a
living pod takes effect as well: a Ready pod that gets `crash` crashes, and recovers when it goes away.
"""

from typing import Any, Final

PREFIX: Final = "testenv.hisparse.dev"
OUTCOME: Final = f"{PREFIX}/outcome"
# a Go duration: how long before a slow pod is Ready, or before a crash
DELAY: Final = f"{PREFIX}/delay"
# of a crash: the exit code and the reason of the terminated state, and which container (the first one)
EXIT_CODE: Final = f"{PREFIX}/exit-code"
REASON: Final = f"{PREFIX}/reason"
CONTAINER: Final = f"{PREFIX}/container"
# a Go duration: how long a deleted pod takes to end (at once without it)
ENDS_AFTER: Final = f"{PREFIX}/ends-after"
OUTCOMES: Final = ("slow", "never-ready", "crash", "oom")

SLOW_MS: Final = 5_000
CRASH_MS: Final = 500
BACK_OFF_AFTER_MS: Final = 1_000
BACK_OFF_MS: Final = 10_000

_CONDITION = '.status.conditions.[] | select( .type == "{}" ) | .status'
# how many readiness gates have no True condition: a kubelet leaves these to whoever owns the gate
_OPEN_GATES = (
    "((.spec.readinessGates // []) | map(.conditionType))"
    ' - ((.status.conditions // []) | map(select(.status == "True") | .type)) | length | tostring'
)


def _needs(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


def _annotation(name: str) -> str:
    return f'.metadata.annotations["{name}"]'


def _stage(
    name: str,
    *needs: dict[str, Any],
    status: str | None = None,
    delay_ms: int = 0,
    delay_from: str | None = None,
    living: bool = True,
) -> dict[str, Any]:
    ended = _needs(".metadata.deletionTimestamp", "DoesNotExist" if living else "Exists")
    delay: dict[str, Any] = {"durationMilliseconds": delay_ms}
    if delay_from:
        delay["durationFrom"] = {"expressionFrom": _annotation(delay_from)}
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": {"matchExpressions": [ended, *needs]},
            **({"delay": delay} if delay_ms or delay_from else {}),
            "next": {"statusTemplate": status} if status else {"delete": True},
        },
    }


_HEAD = """\
{{ $now := Now }}
{{ $notes := or .metadata.annotations dict }}
"""

_PLACE = """\
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
podIP: {{ PodIPWith .spec.nodeName ( or .spec.hostNetwork false ) ( or .metadata.uid "" ) \
( or .metadata.name "" ) ( or .metadata.namespace "" ) | Quote }}
startTime: {{ $now | Quote }}
phase: Running
"""

_INIT_CONTAINERS = """\
{{ if .spec.initContainers }}
initContainerStatuses:
{{ range .spec.initContainers }}
- image: {{ .image | Quote }}
  imageID: {{ .image | Quote }}
  name: {{ .name | Quote }}
  ready: true
  restartCount: 0
  {{ if eq ( or .restartPolicy "" ) "Always" }}
  started: true
  state: { running: { startedAt: {{ $now | Quote }} } }
  {{ else }}
  started: false
  state:
    terminated:
      exitCode: 0
      reason: Completed
      startedAt: {{ $now | Quote }}
      finishedAt: {{ $now | Quote }}
  {{ end }}
{{ end }}
{{ end }}
"""


def _containers(*, ready: bool) -> str:
    return f"""\
containerStatuses:
{{{{ range .spec.containers }}}}
- image: {{{{ .image | Quote }}}}
  imageID: {{{{ .image | Quote }}}}
  containerID: {{{{ printf "kwok://%s" ( uuidv4 ) | Quote }}}}
  name: {{{{ .name | Quote }}}}
  ready: {str(ready).lower()}
  started: true
  restartCount: 0
  state: {{ running: {{ startedAt: {{{{ $now | Quote }}}} }} }}
{{{{ end }}}}
"""


def _conditions(*, started: bool, ready: bool) -> str:
    """Conditions as a kubelet sets them; `Ready` waits for the readiness gates."""
    lines = ["conditions:"]

    def condition(kind: str, status: str, reason: str = "") -> None:
        lines.append(f"- type: {kind}\n  status: {status}\n  lastTransitionTime: {{{{ $now | Quote }}}}")
        lines.append(f"  reason: {reason or 'null'}")

    if started:
        condition("PodReadyToStartContainers", '"True"')
        condition("Initialized", '"True"')
    if ready:
        condition("ContainersReady", '"True"')
        condition(
            "Ready",
            '{{ if .spec.readinessGates }}"False"{{ else }}"True"{{ end }}',
            "{{ if .spec.readinessGates }}ReadinessGatesNotReady{{ else }}null{{ end }}",
        )
    else:
        condition("ContainersReady", '"False"', "ContainersNotReady")
        condition("Ready", '"False"', "ContainersNotReady")
    return "\n".join(lines) + "\n"


def _each_container(change: str) -> str:
    """All container statuses again (the list is atomic), each through `change` of the copy $c."""
    return f"""\
containerStatuses:
{{{{ range .status.containerStatuses }}}}
{{{{ $c := deepCopy . }}}}
{change}
- {{{{ YAML $c 1 }}}}
{{{{ end }}}}
"""


_GATES_PASSED = """\
conditions:
- type: Ready
  status: "True"
  reason: null
  lastTransitionTime: {{ $now | Quote }}
"""

_WHICH = (
    f'{{{{ $victim := or ( index $notes "{CONTAINER}" ) ( index .spec.containers 0 ).name }}}}\n'
    f'{{{{ $oom := eq ( or ( index $notes "{OUTCOME}" ) "" ) "oom" }}}}\n'
    f'{{{{ $code := ternary 137 ( atoi ( or ( index $notes "{EXIT_CODE}" ) "1" ) ) $oom }}}}\n'
    f'{{{{ $reason := ternary "OOMKilled" ( or ( index $notes "{REASON}" ) "Error" ) $oom }}}}\n'
)

_CRASHED = """\
{{ if eq $c.name $victim }}
{{ $end := dict "exitCode" $code "reason" $reason "startedAt" $c.state.running.startedAt "finishedAt" $now }}
{{ $_ := set $c "state" ( dict "terminated" $end ) }}
{{ $_ := set $c "started" false }}
{{ $_ := set $c "ready" false }}
{{ end }}
"""

_BACKING_OFF = """\
{{ if $c.state.terminated }}
{{ $_ := set $c "lastState" ( dict "terminated" $c.state.terminated ) }}
{{ $message := printf "back-off restarting failed container %s" $c.name }}
{{ $_ := set $c "state" ( dict "waiting" ( dict "reason" "CrashLoopBackOff" "message" $message ) ) }}
{{ end }}
"""

_RESTARTED = """\
{{ if $c.state.waiting }}
{{ $_ := set $c "state" ( dict "running" ( dict "startedAt" $now ) ) }}
{{ $_ := set $c "started" true }}
{{ $_ := set $c "restartCount" ( add1 $c.restartCount ) }}
{{ end }}
"""

_READY_NOW = '{{ $_ := set $c "ready" true }}'
_UNREADY_NOW = '{{ $_ := set $c "ready" false }}'


def pod_stages() -> list[dict[str, Any]]:
    """The stages of pods on simulated nodes."""
    new = _needs(".status.podIP", "DoesNotExist")
    runs = _needs(".status.phase", "In", "Running")
    outcome = _annotation(OUTCOME)
    healthy = _needs(outcome, "NotIn", *OUTCOMES)
    crashes = _needs(outcome, "In", "crash", "oom")
    containers_ready = _needs(_CONDITION.format("ContainersReady"), "In", "True")
    containers_not_ready = _needs(_CONDITION.format("ContainersReady"), "NotIn", "True")
    waiting = _needs(".status.containerStatuses.[].state.waiting.reason", "In", "CrashLoopBackOff")
    terminated = _needs(".status.containerStatuses.[].state.terminated", "Exists")
    not_terminated = _needs(".status.containerStatuses.[].state.terminated", "DoesNotExist")
    not_waiting = _needs(".status.containerStatuses.[].state.waiting", "DoesNotExist")
    begin = _HEAD + _PLACE + _INIT_CONTAINERS
    to_ready = _HEAD + _conditions(started=False, ready=True) + _each_container(_READY_NOW)
    to_unready = _HEAD + _conditions(started=False, ready=False)
    never_restarts = '{{ if eq .spec.restartPolicy "Never" }}phase: Failed{{ end }}\n'
    job = _needs(".metadata.ownerReferences.[].kind", "In", "Job")
    completed = (
        '{{ $_ := set $c "state" ( dict "terminated" ( dict "exitCode" 0 "reason" "Completed"'
        ' "startedAt" $now "finishedAt" $now ) ) }}\n{{ $_ := set $c "ready" false }}'
    )
    return [
        _stage(
            "pod-ready-at-once",
            new,
            healthy,
            status=begin + _containers(ready=True) + _conditions(started=True, ready=True),
        ),
        _stage(
            "pod-started",
            new,
            _needs(outcome, "In", *OUTCOMES),
            status=begin + _containers(ready=False) + _conditions(started=True, ready=False),
        ),
        _stage("pod-ready", runs, healthy, containers_not_ready, not_terminated, not_waiting, status=to_ready),
        _stage(
            "pod-ready-slowly",
            runs,
            _needs(outcome, "In", "slow"),
            containers_not_ready,
            not_terminated,
            not_waiting,
            status=to_ready,
            delay_ms=SLOW_MS,
            delay_from=DELAY,
        ),
        _stage(
            "pod-gates-passed",
            runs,
            containers_ready,
            _needs("[.spec.readinessGates.[].conditionType] | length | tostring", "NotIn", "0"),
            _needs(_CONDITION.format("Ready"), "NotIn", "True"),
            _needs(_OPEN_GATES, "In", "0"),
            status=_HEAD + _GATES_PASSED,
        ),
        _stage(
            "pod-unready",
            runs,
            _needs(outcome, "In", "never-ready"),
            containers_ready,
            status=to_unready + _each_container(_UNREADY_NOW),
        ),
        _stage(
            "pod-crash",
            runs,
            crashes,
            not_terminated,
            not_waiting,
            status=_HEAD
            + _WHICH
            + never_restarts
            + _conditions(started=False, ready=False)
            + _each_container(_CRASHED),
            delay_ms=CRASH_MS,
            delay_from=DELAY,
        ),
        _stage(
            "pod-back-off",
            runs,
            terminated,
            _needs(".spec.restartPolicy", "NotIn", "Never"),
            status=_HEAD + _each_container(_BACKING_OFF),
            delay_ms=BACK_OFF_AFTER_MS,
        ),
        _stage("pod-restart", runs, waiting, status=_HEAD + _each_container(_RESTARTED), delay_ms=BACK_OFF_MS),
        _stage(
            "pod-complete",
            runs,
            healthy,
            job,
            containers_ready,
            status=_HEAD + "phase: Succeeded\n" + _each_container(completed),
        ),
        # finalizers stay: whoever put one takes it away, as with a kubelet
        _stage("pod-delete", living=False, delay_ms=0, delay_from=ENDS_AFTER),
    ]
