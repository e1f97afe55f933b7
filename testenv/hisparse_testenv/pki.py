"""A certificate authority that lives as long as one test cluster."""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = dt.timedelta(days=365)
# clocks of a resumed virtual machine may lag
BACKDATE = dt.timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """The paths of a certificate and of its private key, both PEM."""

    cert: Path
    key: Path


def _write_private(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(data)


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A fresh P-256 key, written as PEM for the owner only."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write_private(path, pem)
    return key


def write_public(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """The public half of a key as PEM."""
    path.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def _subject(name: str, groups: Sequence[str]) -> x509.Name:
    # Kubernetes reads the user from CN and the groups from O
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + LIFE)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def create_authority(folder: Path, name: str = "hisparse-testenv") -> Pair:
    """A self-signed authority as ca.crt and ca.key in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    pair = Pair(folder / "ca.crt", folder / "ca.key")
    key = write_key(pair.key)
    subject = _subject(name, ())
    cert = (
        _builder(subject, subject, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pair.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    return pair


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def issue(authority: Pair, stem: str, user: str, *, groups: Sequence[str] = (), names: Sequence[str] = ()) -> Pair:
    """A certificate for `user`, as STEM.crt and STEM.key beside the authority.

    With `names` (IP addresses or DNS names) it is good for a server of these names, and always for a client.
    """
    signer = serialization.load_pem_private_key(authority.key.read_bytes(), password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{authority.key}: not an elliptic-curve key; remove the state folder and start again")
    issuer = x509.load_pem_x509_certificate(authority.cert.read_bytes())
    pair = Pair(authority.cert.with_name(f"{stem}.crt"), authority.cert.with_name(f"{stem}.key"))
    key = write_key(pair.key)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if names else [])]
    builder = (
        _builder(_subject(user, groups), issuer.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False)
    pair.cert.write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return pair
