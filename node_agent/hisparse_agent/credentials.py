"""Who we are to the API server: the pod's service account, or a kubeconfig with a certificate or a token.

kubernetes.aio would read these too, and every import of it costs 21 MiB of memory on every node of the cluster. What
asks another program for a token (exec, OIDC) is left out: an agent runs in a pod.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_S: Final = 60.0
"""A projected token is replaced long before it runs out; so often it is read again."""


class CredentialsError(Exception):
    """There are none, or of a kind that we do not take; the message says what to do."""


@dataclass(frozen=True)
class Credentials:
    """Where the API server is, whom to trust, and the bearer token of now (None: a client certificate speaks)."""

    server: str
    trust: ssl.SSLContext
    token: Callable[[], str | None]


def in_cluster(folder: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ) -> Credentials:
    """Those of the pod that we run in. Raises CredentialsError outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists():
        raise CredentialsError(f"no service account in {folder}: run in a pod, or name a --kubeconfig")
    address = f"[{host}]" if ":" in host else host
    trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    return Credentials(f"https://{address}:{port}", trust, _from_file(folder / "token"))


def from_kubeconfig(path: Path, context: str | None = None) -> Credentials:
    """Those of a kubeconfig. Raises CredentialsError where it has none that we can use."""
    import yaml  # noqa: PLC0415 - in a pod there is no kubeconfig, and it takes 4 MiB

    try:
        document = yaml.safe_load(path.read_text())
        wanted = _named(document, "contexts", context or document["current-context"])["context"]
        cluster = _named(document, "clusters", wanted["cluster"])["cluster"]
        user = _named(document, "users", wanted["user"])["user"]
        server = str(cluster["server"]).rstrip("/")
    except OSError as error:
        raise CredentialsError(f"{path}: {error.strerror}; name a --kubeconfig") from error
    except KeyError as error:
        raise CredentialsError(f"{path} is no kubeconfig that can be used: it has no {error}") from error
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise CredentialsError(f"{path} is no kubeconfig that can be used: {error}") from error
    if "exec" in user or "auth-provider" in user:
        raise CredentialsError(f"{path}: set a certificate or a token for {wanted['user']}; plugins are not run")
    trust = ssl.create_default_context(
        cafile=_path(path, cluster.get("certificate-authority")), cadata=_text(cluster, "certificate-authority-data")
    )
    if cluster.get("insecure-skip-tls-verify"):
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    _certificate(path, user, trust)
    if token_file := user.get("tokenFile"):
        return Credentials(server, trust, _from_file(Path(_path(path, token_file) or "")))
    token = user.get("token")
    return Credentials(server, trust, lambda: token)


def _certificate(path: Path, user: Mapping[str, Any], trust: ssl.SSLContext) -> None:
    if "client-certificate" in user:
        trust.load_cert_chain(_path(path, user["client-certificate"]) or "", _path(path, user["client-key"]))
    elif "client-certificate-data" in user:
        # the ssl module takes files only
        with tempfile.NamedTemporaryFile(suffix=".pem") as both:
            both.write(base64.b64decode(user["client-certificate-data"]) + b"\n")
            both.write(base64.b64decode(user["client-key-data"]))
            both.flush()
            trust.load_cert_chain(both.name)


def _named(document: Mapping[str, Any], part: str, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = next((one for one in document[part] if one["name"] == name), None)
    if found is None:
        raise KeyError(f"{part}: {name}")
    return found


def _path(kubeconfig: Path, named: str | None) -> str | None:
    return str(kubeconfig.parent / named) if named else None


def _text(holder: Mapping[str, Any], key: str) -> str | None:
    return base64.b64decode(holder[key]).decode() if key in holder else None


def _from_file(path: Path) -> Callable[[], str | None]:
    text, read = "", -_TOKEN_S

    def token() -> str | None:
        nonlocal text, read
        if time.monotonic() - read >= _TOKEN_S:
            text, read = path.read_text().strip(), time.monotonic()
        return text

    return token
