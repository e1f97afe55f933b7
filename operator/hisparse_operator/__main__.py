"""The command line of `hisparse-operator`. Every option has an environment variable HISPARSE_OPERATOR_<OPTION>."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from hisparse.errors import UnitError
from hisparse.units import parse_duration
from hisparse_operator import logs
from hisparse_operator.cluster import hub
from hisparse_operator.cluster.kube import SERVICE_ACCOUNT
from hisparse_operator.cluster.observe import Decisions
from hisparse_operator.decide.reconcile import reconcile, wants_hub, wants_logs
from hisparse_operator.metrics import own_version
from hisparse_operator.settings import OperatorSettings
from hisparse_operator.wiring import Options, run

_PREFIX: Final = "HISPARSE_OPERATOR_"


def parser(environment: dict[str, str]) -> argparse.ArgumentParser:
    """The options; the environment supplies what the command line leaves out."""
    defaults = OperatorSettings()
    found = argparse.ArgumentParser(
        prog="hisparse-operator",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def option(name: str, default: str, text: str, **rest: object) -> None:
        variable = _PREFIX + name.removeprefix("--").replace("-", "_").upper()
        found.add_argument(name, default=environment.get(variable, default), help=text, **rest)  # type: ignore[arg-type]

    named = environment.get(f"{_PREFIX}NAMESPACE", "")
    found.add_argument(
        "--namespace",
        action="append",
        metavar="NAME",
        help="serve this namespace only (repeatable); without it the whole cluster. Nodes are then not looked at",
    )
    found.set_defaults(environment_namespaces=tuple(part for part in named.split(",") if part))
    option("--lease-namespace", "", "where the Lease lies; the own namespace if empty")
    option(
        "--agents-namespace", Options.agents_namespace, "where the node agents run and keep the Leases of their pools"
    )
    option("--engine-image", defaults.engine_image, "serves models whose spec names no image")
    option("--launcher-image", defaults.launcher_image, "brings the launcher into a user's own engine image")
    option("--listen", ":8080", "HOST:PORT of /healthz, /readyz and /metrics; no HOST means every address")
    option("--log-format", "auto", "console on a terminal, else json", choices=("auto", "json", "console"))
    option("--log-level", "info", "the least that is logged", choices=("debug", "info", "warning", "error"))
    option("--resync", "10m", "how often an object is looked at though nothing changed", type=_duration)
    option("--workers", "4", "objects worked on at a time", type=int)
    option("--hub", hub.ENDPOINT, "where config.json of public models is read from")
    found.add_argument("--no-hub", action="store_true", help="never ask the hub: spec.model.config is then needed")
    option("--kubeconfig", "", "credentials; the pod's service account if empty", metavar="FILE")
    option("--context", "", "the context of the kubeconfig")
    found.add_argument("--version", action="version", version=own_version())
    return found


def options_of(words: argparse.Namespace) -> Options:
    """The parsed command line as the shell's options. Raises ValueError with a message for the user."""
    host, colon, port = words.listen.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f'--listen: "{words.listen}" is not HOST:PORT; write ":8080" or "127.0.0.1:8080"')
    if words.workers < 1:
        raise ValueError(f"--workers: {words.workers} is less than 1")
    namespaces = tuple(dict.fromkeys(words.namespace or words.environment_namespaces))
    return Options(
        namespaces=namespaces,
        lease_namespace=words.lease_namespace or own_namespace(namespaces),
        agents_namespace=words.agents_namespace,
        kubeconfig=Path(words.kubeconfig) if words.kubeconfig else None,
        context=words.context or None,
        host=host.strip("[]") or None,
        port=int(port),
        resync_s=words.resync,
        workers=words.workers,
        hub=None if words.no_hub else words.hub,
    )


def own_namespace(namespaces: Sequence[str]) -> str:
    """The namespace of the pod that we run in, else the first one that we serve."""
    place = SERVICE_ACCOUNT / "namespace"
    if place.exists():
        return place.read_text().strip()
    return namespaces[0] if namespaces else "default"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the operator until it is told to stop."""
    found = parser(dict(os.environ))
    words = found.parse_args(arguments)
    try:
        options = options_of(words)
    except ValueError as error:
        found.error(str(error))
    logs.configure(words.log_format, words.log_level)
    settings = OperatorSettings(
        engine_image=words.engine_image,
        launcher_image=words.launcher_image,
    )
    decisions = Decisions(reconcile=partial(reconcile, settings=settings), wants_hub=wants_hub, wants_logs=wants_logs)
    sys.exit(asyncio.run(run(options, decisions)))


def _duration(text: str) -> float:
    thousandths = text.removesuffix("ms")
    if thousandths != text and thousandths.isdigit():
        return int(thousandths) / 1000  # parse_duration gives whole seconds; a test wants less
    try:
        return parse_duration(text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    main()
