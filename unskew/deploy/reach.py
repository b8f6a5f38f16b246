"""Find out whether this federation's server answers at an address, and if not, why."""

import socket
import ssl
from pathlib import Path

from unskew.deploy.settings import Address
from unskew.errors import DeployError


class Unreachable(DeployError):
    """No server answers at an address; it may do so later."""


def probe(reached: Address, folder: Path, name: str, timeout_s: float = 10.0) -> None:
    """Make a TLS connection to a server as a site would, with NAME.crt and NAME.key of its folder, and end it.

    Raises:
        Unreachable: If nobody answers, or something else does.
        DeployError: If the answer is not from this federation's server, or its certificate has expired.
    """
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    try:
        with (
            socket.create_connection((reached.host, reached.port), timeout_s) as line,
            context.wrap_socket(line, server_hostname=reached.host),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        raise DeployError(_distrust(error, reached)) from None
    except ssl.SSLError as error:
        raise Unreachable(f"{reached} does not speak TLS ({error.reason}); is it the right port?") from None
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Unreachable(f"nobody answers at {reached}: {why}") from None


def _distrust(error: ssl.SSLCertVerificationError, reached: Address) -> str:
    # Numbers are OpenSSL's X509_V_ERR_*.
    if error.verify_code == 10:
        return f"the certificate of {reached} has expired; the coordinator has to start unskew fed serve again"
    if error.verify_code == 9:
        return f"the certificate of {reached} is not valid yet, or the clock here is behind; compare both clocks"
    if error.verify_code in (62, 64):
        return (
            f"the certificate of {reached} is for other names than {reached.host}; use one of its names as host in "
            "site.toml, or make the federation with another --host"
        )
    return (
        f"the certificate of {reached} was not signed by this federation's authority; is the token of this federation, "
        f"and the address right? ({error.verify_message})"
    )
